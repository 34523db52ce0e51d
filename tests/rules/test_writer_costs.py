"""What opening, replaying and writing cost and leave behind, where no other test covers it."""

import contextlib
from pathlib import Path

import pyarrow as pa
import pytest

import weir
from tests.support.local_shard import LocalShard, ids, row
from tests.support.recording_proxy import RecordingProxy
from weir.errors import FencedError, WriterClosed
from weir.format import paths
from weir.log.appender import WalAppender
from weir.log.manifests import Manifests
from weir.log.tailer import WalTailer
from weir.types import Epoch

MODES = pytest.mark.parametrize("memtable", [True, False], ids=["memtable", "wal-only"])
GUIDES = Path(__file__).parents[2] / "docs" / "guides"


@pytest.fixture
def shard(tmp_path) -> LocalShard:
    return LocalShard(tmp_path / "t")


def killed(writer):
    """Make the writer look as if its process died: nothing is closed."""
    writer._closed = True


def calls(shard, since):
    """The requests to the store after the first `since` ones."""
    return [(event.op, event.path) for event in shard.faults.log[since:]]


@MODES
def test_m7_ten_durable_puts_are_ten_conditional_puts_on_the_wire_and_nothing_else(s3, memtable):
    """On S3 itself: no probe, no listing, no head, no retry; each position requested once."""
    options = s3.storage_options()
    port = int(options["aws_endpoint"].rpartition(":")[2])
    uri = f"s3://weir-test/wire-{memtable}"
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    table = weir.create(uri, schema, primary_key="id", storage_options=options)
    with RecordingProxy(port) as proxy:
        bent = weir.open(uri, storage_options={**options, "aws_endpoint": proxy.endpoint})
        writer = bent.shards()[0].writer(weir.WriterConfig(enable_memtable=memtable))
        proxy.seen.clear()
        for i in range(10):
            writer.put([{"id": i}])
        seen = list(proxy.seen)
        writer.close()
    folder = f"/{paths.wal_dir(table.shards()[0].id)}/"
    assert len(seen) == 10
    assert {(s.method, s.if_none_match) for s in seen} == {("PUT", "*")}
    assert all(folder in s.path for s in seen)
    assert len({s.path for s in seen}) == 10
    assert weir.open(uri, storage_options=options).scan().count() == 10


def test_f13_an_owner_is_fenced_by_a_higher_epoch_only(shard):
    with shard.writer():
        pass
    manifests = Manifests(shard.site)
    manifest = manifests.require()
    assert manifest.writer_epoch == 1
    manifests.require_owner(manifest, Epoch(1))
    # A higher epoch than the manifest's: the manifest was read before this epoch's claim.
    manifests.require_owner(manifest, Epoch(2))
    with pytest.raises(FencedError) as caught:
        manifests.require_owner(manifest, Epoch(0))
    assert (caught.value.epoch, caught.value.fenced_by) == (0, 1)


@MODES
def test_f1_every_open_is_a_write_of_its_own(shard, memtable):
    """Five opens leave epoch 5 and five fences; the guide says that opening is not idempotent."""
    for _ in range(5):
        with contextlib.suppress(FencedError):
            killed(shard.writer(enable_memtable=memtable))
    assert shard.manifest().writer_epoch == 5
    assert [(e[0], e[1], e[3]) for e in shard.log()] == [(n, n, None) for n in range(1, 6)]
    text = " ".join((GUIDES / "writing.md").read_text(encoding="utf-8").split())
    assert "Opening a writer is a write, and is not idempotent" in text


def test_f1_both_modes_claim_once_and_write_through_the_same_appender(shard):
    for number, memtable in enumerate([True, False, True, False], start=1):
        before = len(shard.faults.log)
        writer = shard.writer(enable_memtable=memtable)
        made = [path for op, path in calls(shard, before) if op == "put_if_absent"]
        assert made == [
            paths.manifest_path(shard.shard, number),
            paths.wal_path(shard.shard, writer.wal_stats().fence_position),
        ]
        assert type(writer._appender) is WalAppender
        assert writer.epoch == writer._appender.epoch == number
        position = writer.put([row(number)]).position
        assert shard.log()[-1][:2] == (position, number)
        killed(writer)


@pytest.mark.parametrize("left", ["nothing", "a closed writer", "a dead writer", "two fences"])
def test_f2_an_appender_and_a_writer_begin_at_the_same_position(tmp_path, left):
    found = []
    for kind in ("appender", "memtable", "wal-only"):
        shard = LocalShard(tmp_path / kind)
        if left != "nothing":
            writer = shard.writer()
            writer.put([row(1)])
            if left == "a closed writer":
                writer.close()
            killed(writer)
        if left == "two fences":
            killed(shard.writer())
        if kind == "appender":
            opened = WalAppender.open(shard)
            found.append((opened.epoch, opened.claim.fence, opened.next_position))
        else:
            opened = shard.writer(enable_memtable=kind == "memtable")
            stats = opened.wal_stats()
            found.append((opened.epoch, stats.fence_position, stats.next_position))
    assert found[0] == found[1] == found[2]
    assert found[0][2] == found[0][1] + 1


def test_m1_memtable_stats_of_a_closed_writer_say_how_it_ended(shard):
    with shard.writer() as writer:
        writer.put([row(1), row(2)])
        assert (writer.memtable_stats().rows, writer.memtable_stats().flushes) == (2, 0)
    before = len(shard.faults.log)
    stats = writer.memtable_stats()
    assert (stats.rows, stats.frozen, stats.unflushed_bytes) == (0, 0, 0)
    assert (stats.flushes, stats.flushed_rows, stats.generation) == (1, 2, 2)
    assert len(shard.faults.log) == before
    with pytest.raises(WriterClosed):
        writer.get([1])


@pytest.mark.parametrize(("column", "query"), [("vec", [5.0, 0.0]), ("text", "word5")])
def test_f8_replay_fills_the_indexes_of_the_memtable(tmp_path, column, query):
    """Rows of a dead writer are found by vector and by text, without a new put."""
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("vec", pa.list_(pa.float32(), 2)),
            ("text", pa.string()),
        ]
    )
    configs = (weir.IndexConfig("v", "vec", "vector"), weir.IndexConfig("t", "text", "text"))
    config = weir.WriterConfig(index_configs=configs)
    table = weir.create(str(tmp_path / "t"), schema, primary_key="id")
    writer = table.shards()[0].writer(config)
    for i in range(10):
        writer.put([{"id": i, "vec": [float(i), 0.0], "text": f"word{i} and more"}])
    killed(writer)
    again = weir.open(table.uri).shards()[0].writer(config)
    assert again.memtable_stats().rows == 10
    assert again.search(column, query, k=1).column("id").to_pylist() == [5]
    again.close()


@MODES
@pytest.mark.parametrize("left", ["nothing", "rows"])
def test_the_first_put_after_opening_needs_no_probe(shard, memtable, left):
    if left == "rows":
        writer = shard.writer(enable_memtable=memtable)
        writer.put([row(1)])
        killed(writer)
    writer = shard.writer(enable_memtable=memtable)
    next_position = writer.wal_stats().next_position
    before = len(shard.faults.log)
    assert writer.put([row(2)]).position == next_position
    assert calls(shard, before) == [("put_if_absent", paths.wal_path(shard.shard, next_position))]
    writer.close()


def test_f8_replay_of_a_fresh_shard_is_a_no_op(shard):
    writer = shard.writer()
    stats, memtable = writer.stats(), writer.memtable_stats()
    assert (stats.replayed_entries, stats.replayed_rows) == (0, 0)
    assert (memtable.rows, memtable.batches, memtable.bytes, memtable.frozen) == (0, 0, 0, 0)
    assert (memtable.generation, memtable.flushes) == (1, 0)
    read = [path for op, path in calls(shard, 0) if op == "get" and "/wal/" in path]
    assert read == []  # replay ends before its own fence (F-6)
    assert ids(writer) == []
    writer.close()
    assert not list(Path(shard.uri, "_mem_wal").rglob("*_gen_*"))


@pytest.mark.parametrize(
    ("settings", "puts"),
    [
        ({"max_memtable_rows": 6}, 3),
        ({"max_memtable_batches": 4}, 4),
        ({"max_memtable_size": 1}, 1),
    ],
    ids=["rows", "batches", "bytes"],
)
def test_m6_a_memtable_freezes_by_rows_by_batches_and_by_bytes(shard, settings, puts):
    """Each put has two rows; the put that reaches the bound closes the generation, none before."""
    with shard.writer(**settings) as writer:
        seen = []
        for i in range(puts + 1):
            writer.put([row(2 * i), row(2 * i + 1)])
            seen.append(writer.memtable_stats().generation)
        assert seen[: puts - 1] == [1] * (puts - 1)
        assert seen[puts - 1] == 2
    tags = [generation for _, _, generation, found in shard.log() if found is not None]
    assert tags[:puts] == [1] * puts
    assert tags[puts] == 2


def test_f12_a_tailer_reads_nothing_past_the_tip(shard):
    tailer = WalTailer(shard.site, 1)
    with shard.writer() as writer:
        at = writer.put([row(1)]).position
        tip = tailer.tip()
        assert tip == at
        assert tailer.read(at).position == at
        assert tailer.read(tip + 1) is None
        assert tailer.read(tip + 1000) is None


@pytest.mark.parametrize("place", ["beside the data", "a store of its own"])
def test_s1_where_the_log_is_costs_a_writer_nothing(s3, place):
    """Requests on the wire: the place is in the manifest, which a claim reads anyway."""
    options = s3.storage_options()
    port = int(options["aws_endpoint"].rpartition(":")[2])
    name = f"s3://weir-test/costs-{place.replace(' ', '-')}"
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    wal = None if place == "beside the data" else f"{name}-wal"
    sharding = weir.Bucket("id", 2)
    table = weir.create(
        name, schema, primary_key="id", sharding=sharding, wal_uri=wal, storage_options=options
    )
    for shard in table.shards():
        with shard.writer() as writer:
            writer.put(_row_of(table, shard))

    with RecordingProxy(port) as proxy:
        bent = weir.open(name, storage_options={**options, "aws_endpoint": proxy.endpoint})
        opened = []
        for shard in bent.shards():
            proxy.seen.clear()
            writer = shard.writer()
            opened.append(sum(_is_of(seen, shard) for seen in proxy.seen))
        writer.put(_row_of(table, shard))
        proxy.seen.clear()
        writer.put(_row_of(table, shard))
        put = len(proxy.seen)
        writer.flush()
        proxy.seen.clear()
        writer.close()
        closed = len(proxy.seen)
    assert opened == ([16, 16] if wal is None else [18, 17])
    assert put == 1
    assert closed <= 7


def _is_of(seen, shard):
    """True for a request about the shard or the folder of its log, not about the table."""
    return str(shard.id) in seen.path or paths.LOG_OWNER in seen.path


def _row_of(table, shard):
    ids = pa.RecordBatch.from_pydict({"id": range(20)})
    return ids.filter(table.core.router.mask(ids, shard.value)).slice(0, 1)
