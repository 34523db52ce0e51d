"""Clones whose maker died, or was assumed dead, at an unlucky moment. Found by the simulator.

When the maker died between the record of the WAL store and the mark that announces it to readers,
a retry never wrote the mark, and the clone had a hole where its log was (S-8, seed 94 of the
clones). And whoever assumes a slow clone dead could release its pin just before the clone became
"ready": a finished clone of files that nothing protects (C-3).
"""

import pytest

import weir
from simulator.steps import watched
from tests.support.dying import die_at_every_write
from tests.support.moments import again, expect, make, put, rows
from weir.errors import CommitConflict, InvalidInput
from weir.records.holds import Holds
from weir.records.lineage import read_lineage
from weir.upkeep import clone as clones

A = range(10)


@pytest.fixture
def parent(tmp_path):
    table = make(tmp_path / "t", 1)
    writer = table.shards()[0].writer()
    put(writer, A, "a")
    writer.flush()
    table.compact()
    return table, table.checkpoint(scope="durable")


def test_s8_a_clone_with_a_log_of_its_own_survives_a_death_at_every_write(
    parent, tmp_path, monkeypatch
):
    table, made = parent
    real = clones.open_store
    count = [0]

    def run(life):
        count[0] += 1
        place = str(tmp_path / f"copy{count[0]}")
        monkeypatch.setattr(clones, "open_store", lambda *a, **k: life.store(real(*a, **k)))
        life.table(again(table)).clone(place, made, wal_uri=f"{place}-wal")

    def check(n, finished):
        monkeypatch.setattr(clones, "open_store", real)
        place = str(tmp_path / f"copy{count[0]}")
        again(table).clone(place, made, wal_uri=f"{place}-wal")
        assert rows(weir.open(place)) == expect((A, "a")), n

    assert die_at_every_write(run, check) > 10


@pytest.mark.parametrize("moment", ["begun", "base", "kept", "recorded"])
def test_c3_a_clone_that_is_released_does_not_become_ready_without_its_pin(
    parent, tmp_path, moment
):
    table, made = parent
    place = str(tmp_path / "copy")

    def interfere(step):
        if step == moment:
            again(table).gc(min_age=0, fence_retention="2m")
            if moment != "begun":  # there is no pin yet
                again(table).release_clone(place)

    try:
        clones.clone(watched(again(table).core, ("clone", "checkpoint"), interfere), place, made)
    except (CommitConflict, clones.CheckpointNotFound):
        assert read_lineage(clones.open_store(place)).state == "copying"
        again(table).clone(place, made)
    lineage = read_lineage(clones.open_store(place))
    records = Holds(table.core.store)
    assert lineage.state == "ready"
    assert all(records.load(pin.checkpoint) is not None for pin in lineage.pins)
    with pytest.raises(InvalidInput, match="still exists"):
        again(table).release_clone(place)
    again(table).gc(min_age=0, fence_retention="2m")
    assert all(records.load(pin.checkpoint) is not None for pin in lineage.pins)
    assert rows(weir.open(place)) == expect((A, "a"))
