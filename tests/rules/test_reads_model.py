"""L-1, L-2, L-3: random histories of a real table equal dictionaries, at every level of freshness.

Puts, deletes, flushes, closes, compactions and crashes during them, over 1 to 8 shards and every
type of key; after each step, several reads with random level, projection and filter. Each compared
read is an example: thousands in a normal run. `WEIR_READ_HISTORIES=100` makes the run a long one.
"""

import os

import pytest

from tests.support.read_model import KINDS, LEVELS, History

HISTORIES = int(os.environ.get("WEIR_READ_HISTORIES", "5"))
STEPS = 12
READS = 4


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_l1_l2_l3_reads_equal_a_dictionary(kind, tmp_path, record_property):
    total = 0
    for seed in range(HISTORIES):
        history = History(str(tmp_path / f"t{seed}"), kind, seed)
        for _ in range(STEPS):
            history.step()
            for _ in range(READS):
                history.check()
        history.check_all()
        history.finish()
        total += sum(history.examples[name] for name in (*LEVELS, "count", "get"))
    record_property("examples", total)
    assert total == HISTORIES * (STEPS * READS + len(LEVELS))
