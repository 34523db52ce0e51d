"""Death at every write of every protocol, then recovery.

The enumeration is complete: each test first counts the script's writes, then dies at each of them.
"""

import logging

import pytest

from simulator.crash import (
    SMALL,
    WAL_ONLY,
    Death,
    Life,
    deaths,
    live,
    second_deaths,
    session,
)
from simulator.crash_stories import STORIES
from simulator.keepers import collect_once

LIVES = {
    "open": Life(session(SMALL, "")),
    "open after others": Life(session(SMALL, ""), before=session(SMALL, "pfpx")),
    "append": Life(session(SMALL, "pppx")),
    "append without waiting": Life(session(SMALL, "nnnwnx")),
    "append wal-only": Life(session(WAL_ONLY, "pppp")),
    "flush": Life(session(SMALL, "ppfpfpp")),
    "replay": Life(session(SMALL, "p"), before=session(WAL_ONLY, "ppppppx")),
    "replay wal-only": Life(session(WAL_ONLY, "p"), before=session(SMALL, "ppppppx")),
    "collect": Life(collect_once, before=session(SMALL, "ppfppfpp")),
    "collect beside an open log": Life(
        collect_once, before=session(SMALL, "pfppfpx"), again=session(SMALL, "pf")
    ),
}
SHORT = {
    "open": LIVES["open"],
    "open after others": LIVES["open after others"],
    "append": LIVES["append"],
    "replay": Life(session(SMALL, ""), before=session(WAL_ONLY, "pppx")),
    "collect": Life(collect_once, before=session(SMALL, "pfpf")),
}


@pytest.fixture(autouse=True)
def _quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.slow
@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "append-only"])
@pytest.mark.parametrize("name", sorted(LIVES))
def test_death_at_every_write(name, keyed):
    life = LIVES[name]
    points = deaths(life, keyed=keyed)
    failures = [
        (point, str(outcome.failure))
        for point in points
        if (outcome := live(life, point, keyed=keyed)).failure is not None
    ]
    assert not failures, f"{len(failures)} of {len(points)} points, first: {failures[0]}"


@pytest.mark.slow
@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "append-only"])
@pytest.mark.parametrize("name", sorted(STORIES))
def test_death_at_every_write_of_a_story(name, keyed):
    life = STORIES[name]
    points = deaths(life, keyed=keyed)
    failures = [
        (point, repr(outcome.failure))
        for point in points
        if (outcome := live(life, point, keyed=keyed)).failure is not None
    ]
    assert not failures, f"{len(failures)} of {len(points)} points, first: {failures[0]}"
    assert len(points) > 6


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SHORT))
def test_second_death_inside_recovery(name):
    life = SHORT[name]
    failures = []
    for first in deaths(life):
        for point in second_deaths(life, first):
            outcome = live(life, point)
            if outcome.failure is not None:
                failures.append((point, str(outcome.failure)))
    assert not failures, f"{len(failures)} points, first: {failures[0]}"


def test_the_harness_dies_where_it_says():
    life = LIVES["append"]
    counted = len(deaths(life)) - 1
    assert counted >= 5  # at least a claim, a hint, a fence and three entries
    outcome = live(life, Death(4, "before"))
    assert any(what == "killed" and who == "script" for _, who, what in outcome.notes)
    assert outcome.writes["script"] == 4
