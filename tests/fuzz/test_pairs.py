"""Each upkeep verb beside a third of the others, and after its death: some writes of each pair.

`make fuzz` takes every pair, and stops the first verb at every write.
"""

import pytest

from tests.fuzz.pairs import MODES, VERBS, run, verbs_of

FEW = [(kind, verb) for kind in ("appended", "per-writer") for verb in ("fold_wal", "restore")]
FEW += [("rival", "adopt_shard")]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("kind", "first"), [*(("keyed", verb) for verb in VERBS), *FEW])
def test_a_verb_that_another_one_interrupts_or_follows_loses_nothing(kind: str, first: str) -> None:
    """Where in the first the others come differs from pair to pair."""
    told: list[str | None] = []
    every = 61 if kind == "keyed" else 97
    others = list(enumerate(verbs_of(kind)[1]))
    for number, then in others[len(first) % 3 :: 3]:
        told += run(first, then, MODES, range(1 + 5 * number % every, 200, every), kind)
    assert told.count(None) == len(told), "\n".join(filter(None, told))
