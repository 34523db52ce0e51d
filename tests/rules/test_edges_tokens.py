"""P-6: exactly-once tokens live as long as the rows, whoever flushes, collects, reshards, restores
or clones."""

import lance
import pyarrow as pa
import pytest

import weir
from tests.support.local_shard import LocalShard, row
from tests.support.moments import SCHEMA, again
from tests.support.threads import Caller
from weir.shard.tokens import Tokens
from weir.upkeep.gc.collect import Target, collect


class Dead(Exception):
    """The end of a process."""


@pytest.fixture
def dies_before_the_marker(monkeypatch):
    """A context in which writers end right after their entry is durable."""
    real = Tokens.record

    def die(*_args):
        raise Dead

    class Context:
        def __enter__(self):
            monkeypatch.setattr(Tokens, "record", die)

        def __exit__(self, *_):
            monkeypatch.setattr(Tokens, "record", real)

    return Context()


@pytest.fixture
def shard(tmp_path):
    return LocalShard(tmp_path / "t", key=False)


def native_flush(shard):
    """pylance takes the shard over, flushes what it finds, and goes."""
    native = lance.dataset(shard.uri).mem_wal_writer(str(shard.shard))
    native.put(pa.table({"id": pa.array([99]), "x": pa.array([0.0]), "s": pa.array(["native"])}))
    native.close()
    assert shard.manifest().sstables


def count(shard, number):
    with shard.writer() as w:
        return sum(1 for i in w.scan().read_all().column("id").to_pylist() if i == number)


# -- flushed by anybody ----------------------------------------------------------------------------


@pytest.mark.parametrize("memtable", [True, False])
def test_p6_a_token_whose_writer_died_survives_a_native_flush(
    shard, dies_before_the_marker, memtable
):
    writer = shard.writer(enable_memtable=False)
    with dies_before_the_marker, pytest.raises(Dead):
        writer.put_once([row(1)], app="q", version=7)
    native_flush(shard)
    with shard.writer(enable_memtable=memtable) as again_:
        assert not again_.put_once([row(1)], app="q", version=7), "applied twice"
        assert again_.put_once([row(2)], app="q", version=8)
    assert count(shard, 1) == 1


def test_p6_a_token_whose_writer_died_survives_native_flush_and_collection(
    shard, dies_before_the_marker
):
    writer = shard.writer(enable_memtable=False)
    with dies_before_the_marker, pytest.raises(Dead):
        writer.put_once([row(1)], app="q", version=7)
    for _ in range(3):
        native_flush(shard)
    target = Target(shard.store, shard.env, [shard.site], lake=shard.lake, fence_ttl=0)
    collect(target, 0, 0, keep_first_entries=False)
    assert 2 not in [position for position, *_ in shard.log()], "the entry is gone"
    with shard.writer() as again_:
        assert not again_.put_once([row(1)], app="q", version=7)


def test_p6_a_clean_close_leaves_no_note_and_a_healthy_reopen_reads_no_log(shard):
    with shard.writer(enable_memtable=False) as w:
        assert w.put_once([row(1)], app="q", version=0)
        assert w.put_once([row(2)], app="q", version=1)
    assert not [m.path for m in shard.raw.list("_weir") if "open-" in m.path]


def test_p6_a_call_that_timed_out_is_recorded_by_the_next(shard):
    w = shard.writer(enable_memtable=False)
    gate = shard.faults.on("put_if_absent", "*/wal/*").pause(times=1)
    lead = Caller(lambda: w.put([row(5)]))
    gate.wait_reached()
    with pytest.raises(TimeoutError):
        w.put_once([row(1)], app="q", version=0, timeout=0.01)
    gate.release()
    lead.result()
    assert not w.put_once([row(1)], app="q", version=0)
    assert Tokens(shard.site).load("q") == 0
    w.close()
    assert not [m.path for m in shard.raw.list("_weir") if "open-" in m.path]


# -- reshard ---------------------------------------------------------------------------------------

ROWS = [{"id": i, "v": f"v{i}"} for i in range(20)]


def put_all(table, rows, version):
    """One batch of an application, as whoever sorts it by shard puts it; how many shards took it"""
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    taken = 0
    for value, part in table.core.router.split(batch):
        table.core.ensure_shard(value)
        with table.shard(value).writer() as writer:
            taken += writer.put_once(pa.Table.from_batches([part]), app="q", version=version)
    return taken


def seen(table, **how):
    return sorted(r["id"] for r in again(table).scan(**how).to_table().to_pylist())


SHARDINGS = [weir.Unsharded(), weir.Bucket("id", 2), weir.Identity("v")]


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_p6_a_batch_put_before_a_reshard_is_not_taken_again_after_it(tmp_path, sharding):
    table = weir.create(str(tmp_path / "t"), SCHEMA, sharding=sharding)
    assert put_all(table, ROWS, 3)
    for new in (weir.Bucket("id", 3), weir.Bucket("id", 5)):
        again(table).reshard(new)
        assert not put_all(again(table), ROWS, 3), "applied again"
        assert not put_all(again(table), ROWS, 2), "an earlier one, even"
        assert seen(table) == list(range(20))
    assert put_all(again(table), [{"id": 100, "v": "next"}], 4) == 1


def test_p6_a_batch_in_part_in_before_a_reshard_is_completed_after_it(tmp_path):
    table = weir.create(str(tmp_path / "t"), SCHEMA, sharding=weir.Bucket("id", 4))
    (value, part), *_ = table.core.router.split(pa.RecordBatch.from_pylist(ROWS, schema=SCHEMA))
    with table.shard(value).writer() as writer:
        writer.put_once(pa.Table.from_batches([part]), app="q", version=3)
    again(table).reshard(weir.Unsharded())
    assert put_all(again(table), ROWS, 3) == 1
    assert put_all(again(table), ROWS, 3) == 0
    assert seen(table) == list(range(20))


def test_p6_a_token_whose_writer_died_survives_a_native_flush_and_a_reshard(
    tmp_path, dies_before_the_marker
):
    table = weir.create(str(tmp_path / "t"), SCHEMA, sharding=weir.Unsharded())
    writer = table.shards()[0].writer(weir.WriterConfig(enable_memtable=False))
    with dies_before_the_marker, pytest.raises(Dead):
        writer.put_once(ROWS, app="q", version=3)
    native = lance.dataset(table.uri).mem_wal_writer(str(table.shards()[0].id))
    native.put(pa.table({"id": pa.array([99]), "v": pa.array(["native"])}, schema=SCHEMA))
    native.close()
    again(table).reshard(weir.Bucket("id", 3))
    assert not put_all(again(table), ROWS, 3), "applied again"
    assert seen(table) == [*range(20), 99]


def test_p6_a_table_resharded_by_an_older_release_knows_its_former_routings(tmp_path):
    from dataclasses import replace

    from weir.records.table import TableRecords

    table = weir.create(str(tmp_path / "t"), SCHEMA, sharding=weir.Unsharded())
    assert put_all(table, ROWS, 3)
    again(table).reshard(weir.Bucket("id", 3))
    TableRecords(table.core.store).update(lambda record: replace(record, former=()))
    assert not put_all(again(table), ROWS, 3), "applied again"
