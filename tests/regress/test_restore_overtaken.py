"""A restore slept after it had rolled back the base, and others continued. When its base version
was cleaned up it raised `MissingEntry`, as if rows were lost (simulator's restores, seed 20896)."""

from datetime import timedelta

import lance

from simulator.steps import watched
from tests.support.moments import again, expect, make, put, rows
from weir.upkeep.restore import restore

A, B = range(10), range(5, 20)


def test_g12_a_restore_needs_nothing_that_only_it_knows_of(tmp_path):
    table = make(tmp_path / "t", 1)
    with table.writer() as writer:
        put(writer, A, "a")
    held = table.checkpoint(scope="all")
    with table.writer() as writer:
        put(writer, B, "b")

    def go_on(step):
        if step == "base":
            lance.dataset(table.uri).update_config({"somebody": "was here"})
            again(table).core.lake.cleanup_old_versions(timedelta(0))

    restore(watched(again(table).core, "restore", go_on), held)
    assert rows(again(table)) == expect((A, "a"))
