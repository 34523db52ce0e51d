"""The simulator itself: the same seed gives the same history, and every promise holds."""

import logging
import os
import subprocess
import sys

import pytest

from simulator.simulate import ALL, EDGES, STORIES, draw_plan, simulate
from simulator.soak import run_chunk
from weir.env import SystemClock, SystemThreads

SEEDS_PER_TEST = 40
KNOWN = {
    "clones": (28, 30, 94, 1251, 3_003_385, 6_009_809),
    "compaction": (4_006_908, 7_002_971),
    "cuts": (9_405_281,),
    "decisions": (8, 11, 33, 49, 5_012_817, 8_019_297, 10_313_779),
    "feeds": (21, 270, 1162, 5_000_881),
    "interrupts": (28, 42, 89, 374, 9_213_872, 10_319_057, 10_500_146),
    "limits": (0, 5, 10, 2_019_544),
    "loads": (12, 178, 262, 4_045_718),
    "own-reads": (5, 8, 167),
    "unseen clones": (13_042_576, 17_004_830),
    "moves": (
        0,
        28,
        84,
        1184,
        2140,
        2182,
        2240,
        2283,
        3362,
        2_005_234,
        2_006_832,
        4_003_546,
        4_004_622,
    ),
    "reshards": (
        10_624_160,
        8,
        17,
        42,
        1084,
        1114,
        1115,
        1206,
        1241,
        1_000_837,
        2_002_019,
        3_007_953,
        4_012_058,
        6_011_068,
        6_012_052,
        9_000_545,
        2_001_102,
        4_009_432,
    ),
    "restores": (
        20896,
        50360,
        50524,
        50765,
        50807,
        50978,
        51562,
        4_006_738,
        5_003_210,
        5_004_245,
        8_009_252,
        10_001_865,
        4_037_253,
        15_019_069,
    ),
    "stream": (2_017_747, 4_003_709),
    "strangers": (2_008_285, 5_000_299, 5_002_089),
    "twins": (1, 2, 4, 6, 104, 4_018_177),
    "writers": (2_005_735,),
    "unmounts": (
        31,
        60_220,
        60_483,
        60_508,
        2_018_648,
        3_000_550,
        4_019_869,
        10_223_349,
        11_032_610,
    ),
}
"""Seeds that once broke a promise; most bugs they found also have a test in tests/regress."""


@pytest.fixture(autouse=True)
def _quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", range(8))
def test_same_seed_same_history(seed):
    first, second = simulate(draw_plan(seed)), simulate(draw_plan(seed))
    assert first.notes == second.notes
    assert first.digest == second.digest


@pytest.mark.parametrize("story", sorted(STORIES | EDGES))
def test_same_seed_same_story(story):
    first, second = simulate(draw_plan(3, story)), simulate(draw_plan(3, story))
    assert first.notes == second.notes


@pytest.mark.parametrize("scenario", sorted(ALL))
def test_nothing_of_the_real_machine_is_used(scenario, monkeypatch):
    """A real thread, wait or clock inside a history would change the history, or hang it."""
    used = []

    def forbid(owner, name):
        def call(*_args, **_options):
            used.append(f"{owner.__name__}.{name}")
            raise AssertionError(used[-1])

        monkeypatch.setattr(owner, name, call)

    for name in ("start", "map", "condition"):
        forbid(SystemThreads, name)
    for name in ("sleep", "boottime", "wall"):
        forbid(SystemClock, name)
    for seed in range(3):
        outcome = simulate(draw_plan(seed, scenario))
        assert used == []
        assert outcome.failure is None


@pytest.mark.slow
def test_same_seed_same_history_in_another_process_with_another_hash_seed():
    code = (
        "import logging; logging.disable(50)\n"
        "from simulator.simulate import EDGES, STORIES, draw_plan, simulate\n"
        "print([simulate(draw_plan(seed)).digest for seed in range(20, 32)])\n"
        "print([simulate(draw_plan(5, story)).digest for story in sorted(STORIES | EDGES)])"
    )
    answers = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": number},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for number in ("1", "2")
    ]
    assert answers[0] == answers[1]


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 320, SEEDS_PER_TEST))
def test_seeds_hold_every_promise(start):
    part = run_chunk((start, SEEDS_PER_TEST, None))
    assert part["failures"] == [], "run `make sim SEED=...` for the history"
    assert part["counts"]["acks"] > SEEDS_PER_TEST
    assert part["counts"]["views"] > SEEDS_PER_TEST


@pytest.mark.parametrize("story", sorted(KNOWN))
def test_seeds_that_failed_once(story):
    failures = {seed: simulate(draw_plan(seed, story)).failure for seed in KNOWN[story]}
    assert not {seed: failure for seed, failure in failures.items() if failure is not None}


def test_every_scenario_is_drawn():
    assert {draw_plan(seed).scenario for seed in range(300)} == set(ALL)
