"""A restore slept before its rollback of the base while another restore and a compaction finished,
and then woke up: rows acknowledged since were lost, and the table seemed whole (seeds 50524 and
50978 of the simulator's restores)."""

import pytest

from simulator.steps import watched
from tests.support.moments import again, expect, make, put, rows
from weir.errors import CommitConflict
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

    class Asleep(Exception):
        pass

    def sleep(step):
        if step == "announced":
            raise Asleep

    def meanwhile(step):
        if step == "base":
            with pytest.raises(Asleep):
                restore(watched(again(table).core, "restore", sleep), held)

    with pytest.raises(CommitConflict):
        restore(watched(again(table).core, "restore", meanwhile), held)
    with caplog.at_level("WARNING", "weir"):
        again(table)
    assert "run it again" in caplog.text
    again(table).restore(held)
    assert rows(again(table)) == expect((A, "a"))
