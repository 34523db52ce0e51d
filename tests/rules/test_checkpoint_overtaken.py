"""K-9, K-10 and K-5: checkpoints through a handle that was overtaken, beside a reshard, deleted
twice."""

import threading

import pytest
from msgspec.structs import replace

import weir
from simulator.steps import Died, dies_at, watched
from tests.support.moments import SCHEMA, again, expect, make, put, rows
from weir.errors import CommitConflict, FencedError, PartialWrite, WeirError
from weir.shard.writer import ShardWriter
from weir.upkeep import checkpoint as checkpoints
from weir.upkeep.reshard import reshard

OLD, NEW = range(10), range(10, 20)


# -- K-9 -------------------------------------------------------------------------------------------


def overtaken(tmp_path, *, flushed=False, idle_flushed=False, **config):
    """A handle whose idle writers do not know that a newer writer fenced them and wrote rows."""
    table = make(tmp_path / "t", writer_defaults=weir.WriterConfig(**config))
    idle = table.writer()
    put(idle, OLD, "old")
    if idle_flushed:
        idle.flush()
    newer = again(table).writer()
    put(newer, NEW, "new")
    if flushed:
        newer.flush()
        put(newer, OLD, "newest")
    assert all(w.is_open for w in idle.shard_writers().values()), "nobody told them"
    return table, idle, newer


@pytest.mark.parametrize("idle_flushed", [False, True])
@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("scope", ["durable", "all"])
def test_k9_a_checkpoint_through_a_fenced_idle_writer_has_every_acknowledged_row(
    tmp_path, scope, flushed, idle_flushed
):
    table, _, _ = overtaken(tmp_path, flushed=flushed, idle_flushed=idle_flushed)
    wanted = expect((OLD, "newest" if flushed else "old"), (NEW, "new"))
    held = table.checkpoint(scope=scope)
    assert rows(table, checkpoint=held) == wanted
    assert rows(again(table).clone(str(tmp_path / "copy"), checkpoint=held)) == wanted


def test_k9_the_undo_of_a_restore_holds_what_a_newer_writer_was_acknowledged(tmp_path):
    table = make(tmp_path / "t")
    idle = table.writer()
    put(idle, OLD, "old")
    target = table.checkpoint(scope="all")
    put(again(table).writer(), NEW, "new")
    report = table.restore(target)
    assert rows(table) == expect((OLD, "old"))
    table.restore(report.undo)
    assert rows(again(table)) == expect((OLD, "old"), (NEW, "new"))


def test_k9_a_wal_only_writer_that_was_fenced_does_not_stand_in_the_way(tmp_path):
    table, _, _ = overtaken(tmp_path, enable_memtable=False)
    held = table.checkpoint(scope="all")
    assert rows(table, checkpoint=held) == expect((OLD, "old"), (NEW, "new"))


@pytest.mark.parametrize("memtable", [True, False])
def test_k9_rows_that_only_a_fenced_writer_holds_are_not_left_out_silently(tmp_path, memtable):
    table = make(tmp_path / "t", shards=1)
    config = weir.WriterConfig(
        durable_write=False, max_wal_flush_interval="1h", enable_memtable=memtable
    )
    idle = table.shards()[0].writer(config)
    idle.put([{"id": 1, "v": "buffered"}])
    put(again(table).writer(), NEW, "new")
    with pytest.raises(FencedError) as told:
        table.checkpoint(scope="all")
    assert sum(batch.num_rows for batch in told.value.unacknowledged) == 1
    assert table.checkpoints() == []


def test_k9_rows_of_a_writer_that_ended_in_the_background_are_not_left_out_silently(tmp_path):
    """The writer knows that it was fenced, its user does not: no call waited for the row."""
    table = make(tmp_path / "t", shards=1)
    config = weir.WriterConfig(durable_write=False, max_wal_flush_interval="1h")
    idle = table.shards()[0].writer(config)
    idle.put([{"id": 1, "v": "buffered"}])
    put(again(table).writer(), NEW, "new")
    with pytest.raises(FencedError) as other:
        idle.put([{"id": 2, "v": "waited for"}], wait=True)
    assert sum(batch.num_rows for batch in other.value.unacknowledged) == 1
    assert not idle.is_open
    with pytest.raises(FencedError) as told:
        table.checkpoint(scope="all")
    assert [b.to_pylist()[0]["id"] for b in told.value.unacknowledged] == [1]
    held = table.checkpoint(scope="all")  # reported only once
    assert rows(table, checkpoint=held) == expect((NEW, "new"))


def test_f16_rows_of_several_shards_that_a_checkpoint_met_are_all_handed_back(
    tmp_path, monkeypatch
):
    """Of two shards whose writers had ended one error was raised, and the other rows lost."""
    table, idle, newer = overtaken(tmp_path, durable_write=False, max_wal_flush_interval="1h")
    put(idle, range(30, 50), "buffered")
    both, cut = threading.Barrier(2), ShardWriter.cut

    def cut_together(writer):
        both.wait(30)
        return cut(writer)

    monkeypatch.setattr(ShardWriter, "cut", cut_together)
    with pytest.raises(PartialWrite) as told:
        table.checkpoint("all")
    assert len(told.value.failures) == 2
    back = [key for batch in told.value.not_written for key in batch["id"].to_pylist()]
    assert sorted(back) == [*OLD, *range(30, 50)]
    idle.close()  # owes nobody rows
    newer.close()


def test_k9_a_checkpoint_does_not_make_the_handle_forget_its_writer(tmp_path):
    """The first checkpoint claims the shard briefly; the second still asks the idle writer."""
    table = make(tmp_path / "t", shards=1)
    config = weir.WriterConfig(durable_write=False, max_wal_flush_interval="1h")
    idle = table.shards()[0].writer(config)
    put(again(table).writer(), NEW, "new")
    table.checkpoint(scope="all")
    idle.put([{"id": 1, "v": "buffered"}])
    with pytest.raises(FencedError) as told:
        table.checkpoint(scope="all")
    assert sum(batch.num_rows for batch in told.value.unacknowledged) == 1


# -- K-10 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["durable", "all"])
def test_k10_a_checkpoint_beside_a_reshard_is_of_before_or_after_it(tmp_path, scope):
    table = make(tmp_path / "t")
    with table.writer() as writer:
        put(writer, OLD, "old")
    met = []

    def step(name):
        if name != "pinned" or met:
            return
        met.append(name)
        # Dies after the routing changed but before the base did: the base version shows nothing.
        with pytest.raises(Died):
            reshard(
                watched(again(table).core, "reshard", dies_at("routed")),
                weir.Bucket("id", 3),
                compact=False,
            )
        with again(table).writer() as writer:
            put(writer, OLD, "new")

    core = watched(table.core, "checkpoint", step)
    held = checkpoints.create(core, scope=scope)
    assert met
    routed = {r.shard for r in core.record.routing}
    assert held.routing_version == core.record.routing_version
    assert routed <= {pin.shard for pin in held.shards}
    copy = again(table).clone(str(tmp_path / "copy"), checkpoint=held)
    assert rows(copy) == expect((OLD, "new"))
    with copy.writer() as writer:
        put(writer, OLD, "own")
    copy.compact()
    assert rows(copy) == expect((OLD, "own"))


def test_k10_a_shard_that_is_sealed_while_a_checkpoint_claims_it_is_no_error(tmp_path):
    table = make(tmp_path / "t", shards=1)
    put(again(table).writer(), OLD, "old")  # in the log: a flush needs a claim
    met = []

    def step(name):
        if name == "probed" and not met:
            met.append(name)
            reshard(again(table).core, weir.Bucket("id", 3), compact=False)

    held = checkpoints.create(watched(table.core, "claim", step), scope="all")
    assert met
    assert held.routing_version == again(table).core.record.routing_version
    assert rows(again(table), checkpoint=held) == expect((OLD, "old"))


@pytest.mark.parametrize("sharding", [weir.Bucket("id", 2), weir.Identity("v"), weir.Unsharded()])
def test_k10_a_clone_of_the_moment_before_a_reshard_can_be_written(tmp_path, sharding):
    key = ["id", "v"] if isinstance(sharding, weir.Identity) else "id"
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key=key, sharding=sharding)
    with table.writer() as writer:
        put(writer, OLD, "old")
    report = again(table).reshard(weir.Bucket("id", 3))
    with again(table).writer() as writer:
        put(writer, OLD, "new")
    copy = again(table).clone(str(tmp_path / "copy"), checkpoint=report.checkpoint)
    assert rows(copy) == expect((OLD, "old"))
    with copy.writer() as writer:
        writer.put([{"id": i, "v": "old"} for i in NEW], timeout=5)
    assert rows(copy) == expect((OLD, "old"), (NEW, "old"))
    copy.reshard(weir.Bucket("id", 3))
    with copy.writer() as writer:
        writer.delete([{"id": i, "v": "old"} for i in OLD])
    copy.compact()
    assert rows(copy) == expect((NEW, "old"))


# -- K-5 -------------------------------------------------------------------------------------------


def test_k5_two_deletes_of_one_checkpoint_at_once_both_succeed(tmp_path):
    table = make(tmp_path / "t", shards=1)
    with table.writer() as writer:
        put(writer, OLD, "old")
    failures: list[WeirError] = []
    for _ in range(24):
        held = table.checkpoint(scope="durable")
        gate = threading.Barrier(4)

        def delete(handle, held=held, gate=gate):
            gate.wait()
            try:
                handle.delete_checkpoint(held.id)
            except WeirError as error:
                failures.append(error)

        threads = [threading.Thread(target=delete, args=(again(table),)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures, failures
    assert table.checkpoints() == []


def test_k10_a_checkpoint_gives_up_when_the_routing_never_rests(tmp_path, monkeypatch):
    table = make(tmp_path / "t", shards=1)
    turn = iter(range(1, 1000))
    real = table.core.refresh

    def restless():

        table.core.record = replace(real(), routing_version=next(turn))
        return table.core.record

    monkeypatch.setattr(table.core, "refresh", restless)
    with pytest.raises(CommitConflict):
        table.checkpoint(scope="durable")
    assert table.checkpoints() == []
