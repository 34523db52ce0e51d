"""P-6: exactly-once tokens live as long as the rows, through any flush, collection, reshard,
restore or clone."""

from dataclasses import replace

import lance
import pyarrow as pa
import pytest

import weir
from simulator.steps import Died
from tests.support.local_shard import LocalShard, row
from tests.support.moments import SCHEMA, again
from tests.support.sim_table import core_on
from tests.support.tables import CountingStore
from tests.support.threads import Caller
from weir.errors import InvalidInput
from weir.log.fence import claim_shard
from weir.shard.tokens import Tokens
from weir.spark.queries import require_own_numbers
from weir.upkeep.gc.collect import collect


@pytest.fixture
def dies_before_the_marker(monkeypatch):
    """A context in which writers die right after their entry is durable."""
    real = Tokens.record

    def die(*_args, **_options):
        raise Died

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
    """pylance takes over the shard, flushes the rows it finds, and closes."""
    native = lance.dataset(shard.uri).mem_wal_writer(str(shard.shard))
    native.put(pa.table({"id": pa.array([99]), "x": pa.array([0.0]), "s": pa.array(["native"])}))
    native.close()
    assert shard.manifest().sstables


def count(shard, number):
    with shard.writer() as w:
        return sum(1 for i in w.scan().read_all().column("id").to_pylist() if i == number)


# -- found in the log, whatever the columns -------------------------------------------------------

WORDS = pa.dictionary(pa.int32(), pa.string())


def columns_of(kind):
    if kind == "dictionary":
        return [pa.field("d", WORDS)]
    if kind == "large dictionary":
        return [pa.field("d", WORDS), pa.field("e", WORDS)]
    return [pa.field(f"a_column_with_a_long_name_{i}", pa.int64()) for i in range(300)]


def values_of(kind):
    if kind == "dictionary":
        return {"d": "word"}
    if kind == "large dictionary":
        return {"d": "word", "e": "w" * 20_000}
    return {f"a_column_with_a_long_name_{i}": i for i in range(300)}


@pytest.mark.parametrize("recovers", ["next writer", "collection", "compaction"])
@pytest.mark.parametrize("kind", ["dictionary", "large dictionary", "wide"])
def test_p2_a_batch_whose_writer_died_is_found_among_columns_of_any_kind(
    tmp_path, dies_before_the_marker, kind, recovers
):
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), *columns_of(kind)])
    table = weir.create(str(tmp_path / "t"), schema)
    rows = [{"id": 1, **values_of(kind)}]
    wal_only = weir.WriterConfig(enable_memtable=False)
    writer = table.shards()[0].writer(wal_only)
    with dies_before_the_marker, pytest.raises(Died):
        writer.put_once(rows, app="q", version=7)
    table = again(table)
    if recovers == "compaction":
        table.compact(fold_wal=True)
    if recovers == "collection":
        table.compact(fold_wal=True)
        collect(table.core, 0, "2m", keep_first_entries=False)
    with again(table).shards()[0].writer(wal_only) as next_writer:
        assert not next_writer.put_once(rows, app="q", version=7), "applied twice"
    assert again(table).count() == 1


# -- flushed by any writer -------------------------------------------------------------------------


@pytest.mark.parametrize("memtable", [True, False])
def test_p6_a_token_whose_writer_died_survives_a_native_flush(
    shard, dies_before_the_marker, memtable
):
    writer = shard.writer(enable_memtable=False)
    with dies_before_the_marker, pytest.raises(Died):
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
    with dies_before_the_marker, pytest.raises(Died):
        writer.put_once([row(1)], app="q", version=7)
    for _ in range(3):
        native_flush(shard)
    core = core_on(shard.site, shard.table_schema, lake=shard.lake)
    collect(core, 0, "2m", keep_first_entries=False)
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
    """Put one batch of an application, split by shard; return how many shards took it."""
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


def put_natively(table):
    """A row of a native writer, which flushes what was in the log."""
    native = lance.dataset(table.uri).mem_wal_writer(str(table.shards()[0].id))
    native.put(pa.table({"id": pa.array([99]), "v": pa.array(["native"])}, schema=SCHEMA))
    native.close()


@pytest.fixture
def flushed(tmp_path, dies_before_the_marker):
    """A table with a batch of a writer that died, flushed by a native one."""
    table = weir.create(str(tmp_path / "t"), SCHEMA, sharding=weir.Unsharded())
    writer = table.shards()[0].writer(weir.WriterConfig(enable_memtable=False))
    with dies_before_the_marker, pytest.raises(Died):
        writer.put_once(ROWS, app="q", version=3)
    put_natively(table)
    return table


def test_p6_a_token_whose_writer_died_survives_a_native_flush_and_a_reshard(flushed):
    again(flushed).reshard(weir.Bucket("id", 3))
    assert not put_all(again(flushed), ROWS, 3), "applied again"
    assert seen(flushed) == [*range(20), 99]


# -- clone and restore -----------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path):
    return weir.create(str(tmp_path / "t"), SCHEMA, sharding=weir.Bucket("id", 2))


def compacted(table):
    again(table).compact()
    collect(again(table).core, 0, 120, keep_first_entries=False)


@pytest.mark.parametrize("scope", ["durable", "all"])
@pytest.mark.parametrize("settle", [lambda _table: None, compacted], ids=["flushed", "collected"])
def test_p6_a_clone_knows_what_the_checkpoint_had_and_nothing_later(table, tmp_path, scope, settle):
    put_all(table, ROWS, 3)
    settle(table)
    held = again(table).checkpoint(scope=scope)
    for version in (4, 5, 6):
        put_all(again(table), [{"id": 100 + version, "v": "later"}], version)
    copy = again(table).clone(str(tmp_path / "copy"), checkpoint=held)
    assert not put_all(copy, ROWS, 3), "applied again"
    assert seen(copy) == list(range(20))
    assert put_all(copy, [{"id": 104, "v": "later"}], 4) == 1, "left out: its rows are not here"
    assert seen(copy) == [*range(20), 104]


def test_p6_a_clone_knows_tokens_in_the_log_though_a_native_writer_flushes_it(tmp_path):
    table = weir.create(str(tmp_path / "t"), SCHEMA, sharding=weir.Unsharded())
    with table.shards()[0].writer(weir.WriterConfig(enable_memtable=False)) as writer:
        writer.put_once(ROWS, app="q", version=3)
    copy = table.clone(str(tmp_path / "copy"))
    put_natively(copy)
    assert not put_all(again(copy), ROWS, 3), "applied again"


def test_p6_a_clone_knows_tokens_of_a_dead_writer_that_a_native_one_flushed(tmp_path, flushed):
    for number, scope in enumerate(("durable", "all")):
        held = again(flushed).checkpoint(scope=scope)
        copy = again(flushed).clone(str(tmp_path / f"copy{number}"), checkpoint=held)
        assert not put_all(copy, ROWS, 3), "applied again"


def test_p6_a_clone_of_a_resharded_table_knows_its_former_routings(table, tmp_path):
    put_all(table, ROWS, 3)
    again(table).reshard(weir.Bucket("id", 3))
    copy = again(table).clone(str(tmp_path / "copy"))
    second = copy.clone(str(tmp_path / "second"))
    for each in (copy, second):
        assert not put_all(again(each), ROWS, 3), "applied again"
        assert seen(each) == list(range(20))
        assert put_all(again(each), [{"id": 100, "v": "next"}], 4) == 1


def test_p6_batches_put_while_a_checkpoint_flushes_are_in_it_with_their_tokens_or_not_at_all(
    tmp_path, monkeypatch
):
    """One before the cut of the writer's flush, one after it: both after the first check."""
    table = weir.create(str(tmp_path / "t"), SCHEMA, sharding=weir.Unsharded())
    writer = table.shards()[0].writer()
    assert writer.put_once(ROWS[:5], app="q", version=0)
    real = writer.cut

    def cut():
        writer.put_once(ROWS[5:10], app="q", version=1)
        manifest = real()
        for version in (2, 3, 4):
            writer.put_once(ROWS[10:15], app="q", version=version)
        return manifest

    monkeypatch.setattr(writer, "cut", cut)
    held = table.checkpoint(scope="all")
    copy = again(table).clone(str(tmp_path / "copy"), checkpoint=held)
    assert seen(copy) == list(range(10))
    with copy.shards()[0].writer() as own:
        assert own.last_version("q") == 1


def test_p6_a_token_outlives_the_restore_that_discarded_its_rows(table, dies_before_the_marker):
    """As documented: an applied batch is not taken again, nor twice when the undo is restored."""
    put_all(table, ROWS[:5], 0)
    target = table.checkpoint(scope="all")
    shard = table.shards()[0]
    value = shard.value
    rows = [
        r
        for r in ROWS
        if table.core.router.split(pa.RecordBatch.from_pylist([r], schema=SCHEMA))[0][0] == value
    ]
    writer = shard.writer(weir.WriterConfig(enable_memtable=False))
    with dies_before_the_marker, pytest.raises(Died):
        writer.put_once(rows, app="q", version=1)
    report = again(table).restore(target)
    with again(table).shard(value).writer() as own:
        assert not own.put_once(rows, app="q", version=1)
    again(table).restore(report.undo)
    with again(table).shard(value).writer() as own:
        assert not own.put_once(rows, app="q", version=1)
    assert len(seen(table)) == 5 + len(rows)


# -- whose numbers ---------------------------------------------------------------------------------


def test_p6_the_name_of_an_application_belongs_to_the_query_that_took_it_first(table, tmp_path):
    core = table.core
    for batch in (0, 1, 0):  # a query may go back to its own earlier numbers
        require_own_numbers(core, "q", "query-1", batch)
    with pytest.raises(InvalidInput, match="an appId of its own"):
        require_own_numbers(core, "q", "query-2", 0)
    with pytest.raises(InvalidInput, match="an appId of its own"):
        require_own_numbers(core, "q", "query-2", 100)
    require_own_numbers(core, "other", "query-2", 0)
    copy = table.clone(str(tmp_path / "copy")).core
    with pytest.raises(InvalidInput, match="query-1"):
        require_own_numbers(copy, "q", "query-2", 0)
    require_own_numbers(copy, "q", "query-1", 2)


def test_p6_numbers_that_an_older_release_recorded_are_not_anothers(table):
    put_all(table, ROWS, 3)
    with pytest.raises(InvalidInput, match="batch 3"):
        require_own_numbers(table.core, "q", "new", 0)
    require_own_numbers(table.core, "q", "the same one, which goes on", 3)


def test_p6_the_log_is_read_once_for_the_tokens_of_any_number_of_applications(shard):
    """Each batch of a job may be of an application of its own."""
    writer = shard.writer()
    for n in range(20):
        assert writer.put_once([row(n)], app=f"job {n}", version=1)
    claim = claim_shard(shard.site)  # the writer dies with its notes
    counting = CountingStore(shard.site.wal)
    site = replace(shard.site, store=counting, wal=counting)
    Tokens(site).recover(None, epoch=claim.epoch, through=claim.fence)
    assert counting.calls["get_range"] <= 2 * claim.fence
    assert [Tokens(site).load(f"job {n}") for n in range(20)] == [1] * 20
