"""A checkpoint could not be cloned once the base had been cleaned up past it.

The pin of a clone is made under the protection of the checkpoint, but it was checked against the
floor of the base like a new pin: `CommitConflict`, forever (K-1b). Found by the simulator's clones.
"""

from tests.support.moments import again, expect, make, put, rows
from weir.records.holds import Holds
from weir.upkeep.pinning import base_floor

A, B = range(10), range(5, 20)


def test_k1_a_checkpoint_below_the_base_floor_is_cloned(tmp_path):
    table = make(tmp_path / "t", 1)
    with table.writer() as writer:
        put(writer, A, "a")
    table.compact()
    held = table.checkpoint(scope="all")
    for text in ("b", "c"):
        with table.writer() as writer:
            put(writer, B, text)
        table.compact()
    table.gc(min_age=0, fence_retention="2m")
    assert base_floor(table.core) >= held.base_version
    copy = again(table).clone(str(tmp_path / "c"), held)
    assert rows(copy) == expect((A, "a"))
    table.delete_checkpoint(held)
    table.gc(min_age=0, fence_retention="2m")
    assert rows(again(copy)) == expect((A, "a"))
    assert [c.owner for c in Holds(table.core.store).checkpoints()] == [copy.uri]
