"""C-17: a shard that a reshard left costs nothing once it is empty."""

import shutil
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from msgspec import structs

import weir
from tests.support.moments import again, expect, make, put, rows
from tests.support.tables import CountingStore
from weir.format import paths
from weir.read.positions import passed_by, positions_at
from weir.upkeep.gc.collect import collect

A, B = range(40), range(20, 60)


def resharded(place, **options):
    """A table whose first two shards are sealed, everything folded and collected."""
    table = make(place, 2, **options)
    with table.writer() as writer:
        put(writer, A, "a")
    table.reshard(weir.Bucket("id", 3))
    return again(table)


def sweep(table, times=3):
    for _ in range(times):
        again(table).compact()
        report = collect(again(table).core, 0, 120, keep_first_entries=False)
        assert report.ok, report.errors


def release(table):
    """Delete the checkpoints that reshards make."""
    for made in again(table).checkpoints():
        if made.owner is None and made.name not in ("held", "base"):
            again(table).delete_checkpoint(made)


def finished(table):
    return len(again(table).core.record.finished)


def test_c17_reads_do_not_visit_what_reshards_left(tmp_path):
    table = make(tmp_path / "t", 4)
    counts = []
    for shards in (5, 4, 5, 4):
        with again(table).writer() as writer:
            put(writer, A, f"of {shards}")
        again(table).reshard(weir.Bucket("id", shards))
        release(table)
        sweep(table)
        reader = again(table)
        reader.core.store = store = CountingStore(reader.core.store)
        assert reader.count() == len(A)
        counts.append(store.requests)
    assert finished(table) == 4 + 5 + 4 + 5
    assert counts[3] <= counts[1] < counts[0] + 6, counts
    assert len(again(table).shards()) == 4
    assert len(again(table).stats().shards) == 4
    assert rows(again(table)) == rows(table) == expect((A, "of 4"))


@pytest.mark.parametrize("reason", ["checkpoint", "consumer", "token", "clone"])
def test_c17_a_shard_that_somebody_needs_is_not_finished(tmp_path, reason):
    table = make(tmp_path / "t", 2)
    with table.writer() as writer:
        put(writer, A, "a")
        if reason == "token":
            writer.put_once([{"id": i, "v": "once"} for i in A], app="app", version=1)
    let_go = {
        "checkpoint": lambda: table.delete_checkpoint("held"),
        "consumer": lambda: table.drop_consumer("slow"),
        "clone": lambda: table.delete_checkpoint("base"),
        "token": lambda: None,
    }[reason]
    if reason == "checkpoint":
        table.checkpoint(name="held")
    elif reason == "clone":
        table.clone(str(tmp_path / "copy"), table.checkpoint(name="base"))
    elif reason == "consumer":
        feed = table.changes(consumer="slow")
        next(feed)
        feed.commit()
    table.reshard(weir.Bucket("id", 3))
    release(table)
    sweep(table)
    assert finished(table) == 0
    let_go()
    sweep(table)
    assert finished(table) == (0 if reason == "token" else 2)
    if reason == "clone":
        assert rows(weir.open(str(tmp_path / "copy"))) == expect((A, "a"))


def test_c17_a_shard_that_a_late_checkpoint_pins_is_not_finished(tmp_path):
    table = resharded(tmp_path / "t")
    release(table)
    sweep(table, 1)
    assert finished(table) == 0
    table.checkpoint(name="held")  # pins the sealed shards as they are: empty, and not finished
    sweep(table)
    assert finished(table) == 0
    table.delete_checkpoint("held")
    sweep(table)
    assert finished(table) == 2


def test_c17_a_feed_that_had_not_read_a_finished_shard_is_told_so(tmp_path):
    table = make(tmp_path / "t", 2)
    with table.writer() as writer:
        put(writer, range(20), "a")
        mark = next(table.changes()).bookmark
        put(writer, A, "b")
    table.reshard(weir.Bucket("id", 3))
    release(table)
    sweep(table)
    assert finished(table) == 2
    with pytest.raises(weir.SnapshotExpired):
        list(again(table).changes(mark))
    with again(table).writer() as writer:
        put(writer, B, "c")
    told = [value for change in again(table).changes() for value in change.batch["v"].to_pylist()]
    assert told == ["c"] * len(B)


@pytest.mark.parametrize("consumer", [None, "mirror"])
def test_c17_a_feed_with_the_rows_of_now_begins_beside_finished_shards(tmp_path, consumer):
    table = resharded(tmp_path / "t")
    release(table)
    sweep(table)
    assert finished(table) == 2
    feed = again(table).follow(consumer, once=True)
    seen = {}
    for change in feed:
        seen |= {row["id"]: row["v"] for row in change.batch.to_pylist()}
    assert seen == expect((A, "a"))
    with again(table).writer() as writer:
        put(writer, B, "b")
    since = feed.bookmark if consumer is None else None
    later = again(table).changes(since, consumer=consumer)
    assert {row["id"]: row["v"] for change in later for row in change.batch.to_pylist()} == expect(
        (B, "b")
    )


def test_c17_a_feed_from_before_a_shard_that_came_and_went_is_told_so(tmp_path):
    """A shard made after the checkpoint, used and finished: its changes are gone."""
    table = make(tmp_path / "t", 2)
    with table.writer() as writer:
        put(writer, A, "a")
    pinned = table.checkpoint("durable", name="held")
    table.reshard(weir.Bucket("id", 3))
    with again(table).writer() as writer:
        put(writer, B, "b")
    again(table).reshard(weir.Bucket("id", 2))
    for made in again(table).checkpoints():
        if made.name != "held":
            again(table).delete_checkpoint(made)
    sweep(table)
    assert finished(table) == 3
    core = again(table).core
    assert passed_by(core, positions_at(core, pinned.shards, pinned.base_version))


def test_c17_finished_shards_go_with_their_table(tmp_path):
    table = resharded(tmp_path / "t")
    release(table)
    sweep(table)
    assert finished(table) == 2
    weir.drop(table.uri)
    anew = make(tmp_path / "t", 2)
    with anew.writer() as writer:
        put(writer, B, "anew")
    assert rows(again(anew)) == expect((B, "anew"))
    assert finished(anew) == 0


def test_c17_a_shard_of_the_routing_that_counts_is_not_finished(tmp_path, monkeypatch):
    """A reshard died after it had sealed them, and had not recorded the new routing (seed 28004427:
    checkpoints did not pin them)."""
    table = make(tmp_path / "t", 2)
    with table.writer() as writer:
        put(writer, A, "a")
    sweep(table)

    def die(*_args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("weir.upkeep.reshard._checkpoint", die)
        with pytest.raises(KeyboardInterrupt):
            again(table).reshard(weir.Bucket("id", 3))
    for _ in range(3):
        collect(again(table).core, 0, 120, keep_first_entries=False)
    assert finished(table) == 0
    copy = again(table).clone(str(tmp_path / "copy"), again(table).checkpoint(name="held"))
    assert rows(copy) == expect((A, "a"))
    again(table).reshard(weir.Bucket("id", 3))
    assert rows(again(table)) == expect((A, "a"))


def test_c17_finished_shards_move_with_the_log(tmp_path):
    """Feeds look at them: their logs must be where the others are."""
    table = resharded(tmp_path / "t", wal_uri=str(tmp_path / "wal"))
    release(table)
    sweep(table)
    assert finished(table) == 2
    again(table).move_wal(str(tmp_path / "new"))
    shutil.rmtree(tmp_path / "wal")
    with again(table).writer() as writer:
        put(writer, B, "c")
    assert rows(again(table)) == expect((A, "a"), (B, "c"))
    told = [value for change in again(table).changes() for value in change.batch["v"].to_pylist()]
    assert told == ["c"] * len(B)


def test_c17_what_is_finished_is_left_out_by_one_look_at_each_shard(tmp_path):
    """Each writer that dies adds one; a search of all of them for each cost 0.3 s of a read."""

    class Id(UUID):
        compared = 0

        def __eq__(self, other):
            Id.compared += 1
            return super().__eq__(other)

        __hash__ = UUID.__hash__

    table = weir.create(str(tmp_path / "t"), {"id": int}, sharding=weir.PerWriter())
    ids = [Id(int=uuid4().int) for _ in range(200)]
    for one in ids:
        (Path(table.uri) / paths.SHARDS / str(one)).mkdir(parents=True)
    table.core.record = structs.replace(table.core.record, finished=tuple(ids))
    assert table.core.shard_ids() == []
    assert Id.compared <= 2 * len(ids)
