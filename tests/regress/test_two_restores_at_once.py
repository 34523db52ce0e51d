"""A restore slept before its rollback of the base while another restore and a compaction finished,
and then woke up: rows acknowledged since were lost, and the table seemed whole (seeds 50524 and
50978 of the simulator's restores). One that slept inside its commit to the base did so too: it is
announced again, and known by its commit."""

import pytest

from simulator.steps import Died, dies_at, watched
from tests.support.moments import again, expect, make, put, rows
from weir.errors import CommitConflict
from weir.upkeep.health import find_problems
from weir.upkeep.restore import restore

A, B, C = range(10), range(5, 20), range(15, 30)


def filled(tmp_path):
    table = make(tmp_path / "t", 1)
    with table.writer() as writer:
        put(writer, A, "a")
    held = table.checkpoint(scope="all")
    with table.writer() as writer:
        put(writer, B, "b")
    return table, held


@pytest.mark.parametrize("moment", ["begun", "held"])
def test_a_restore_that_slept_through_another_one_stops(tmp_path, moment):
    table, held = filled(tmp_path)

    def meanwhile(step):
        if step == moment:
            again(table).restore(held)
            with again(table).writer() as writer:
                put(writer, C, "c")
            again(table).compact(lease=0)

    with pytest.raises(CommitConflict):
        restore(watched(again(table).core, "restore", meanwhile), held)
    assert rows(again(table)) == expect((A, "a"), (C, "c"))


def test_a_restore_is_not_done_while_another_one_has_announced_its_rollback(tmp_path, caplog):
    table, held = filled(tmp_path)

    def meanwhile(step):
        if step == "base":
            with pytest.raises(Died):
                restore(watched(again(table).core, "restore", dies_at("announced")), held)

    with pytest.raises(CommitConflict):
        restore(watched(again(table).core, "restore", meanwhile), held)
    with caplog.at_level("WARNING", "weir"):
        again(table)
    assert "run it again" in caplog.text
    again(table).restore(held)
    assert rows(again(table)) == expect((A, "a"))


def late_restore(table, held, after_rollback=lambda: None):
    """A restore that stalls inside its commit to the base, while another one, a put, a compaction
    and a collection finish."""
    core = again(table).core
    rollback = core.lake.restore

    def restore_late(version, checkpoint):
        again(table).restore(held)
        with again(table).writer() as writer:
            put(writer, C, "c")
        again(table).compact(lease=0)
        again(table).gc(min_age=0, kinds=["sstables"])
        assert rows(again(table)) == expect((A, "a"), (C, "c"))
        landed = rollback(version, checkpoint)
        after_rollback()
        return landed

    core.lake.restore = restore_late
    return restore(core, held)


def test_l8_a_rollback_that_lands_after_another_restore_is_announced_again(tmp_path, caplog):
    """Its lineage said "ready", and a compaction took the table for damaged. Found by seed
    15019069."""
    table, held = filled(tmp_path)
    with pytest.raises(CommitConflict):
        late_restore(table, held)
    caplog.clear()
    with caplog.at_level("WARNING", "weir"):
        again(table)
    assert "run it again" in caplog.text
    again(table).restore(held)
    again(table).compact(lease=0)
    assert rows(again(table)) == expect((A, "a"))


def test_l8_a_rollback_that_lands_late_is_known_by_its_commit(tmp_path):
    """The restore dies right after it: nothing else says that weir took the base back."""
    table, held = filled(tmp_path)

    def die():
        raise Died

    with pytest.raises(Died):
        late_restore(table, held, die)
    for write in (
        lambda: again(table).compact(lease=0),
        lambda: again(table).writer().put([{"id": 1, "v": "late"}]),
    ):
        with pytest.raises(CommitConflict, match=f"restore of checkpoint {held.id} rolled the"):
            write()
    told = [found.detail for found in find_problems(again(table).core) if found.state == "bad"]
    assert len(told) == 1
    assert f"restore of checkpoint {held.id} rolled the base back" in told[0]
    again(table).restore(held)
    again(table).compact(lease=0)
    assert rows(again(table)) == expect((A, "a"))
