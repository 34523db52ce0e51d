"""Every public verb on real Lance, against a dictionary: fixed seeds. `make fuzz` runs more."""

import inspect
import re
from pathlib import Path

import pytest

import weir
from tests.fuzz.__main__ import run, shrink

SEEDS = range(1, 9)
STEPS = range(25)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_history_equals_its_model(seed: int) -> None:
    failure = run(seed, STEPS)
    assert failure is None, str(shrink(failure))


ELSEWHERE = {
    "adopt_shard",  # tests/interop: of a shard that another program made
    "aput", "adelete",  # tests/rules/test_aio.py
    "shard", "shards_of", "shard_writers",  # tests/rules/test_own_shards.py
}  # fmt: skip
"""Verbs with tests of their own, and in no history."""


def test_every_verb_of_a_table_and_its_writer_is_in_the_histories() -> None:
    texts = [path.read_text() for path in Path(__file__).parent.glob("[mow]*.py")]
    called = {name for text in texts for name in re.findall(r"\.(\w+)\(", text)}
    verbs = {
        name
        for cls in (weir.Table, weir.TableWriter)
        for name, _ in inspect.getmembers(cls, inspect.isfunction)
        if not name.startswith("_")
    }
    assert verbs - called == ELSEWHERE
