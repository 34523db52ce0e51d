"""Each upkeep verb beside each other one, and after its death: some writes of each pair.

`make fuzz` stops the first verb at every write.
"""

import pytest

from tests.fuzz.pairs import KINDS, MODES, VERBS, run

EVERY = {"keyed": 11, "appended": 29, "per-writer": 29}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", VERBS)
def test_a_verb_that_another_one_interrupts_or_follows_loses_nothing(first: str, kind: str) -> None:
    """Where in the first the others come differs from pair to pair."""
    told: list[str | None] = []
    every = EVERY[kind]
    for number, then in enumerate(VERBS):
        told += run(first, then, MODES, range(1 + number % every, 200, every), kind)
    assert told.count(None) == len(told), "\n".join(filter(None, told))
