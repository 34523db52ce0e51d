"""M-1 and G-12 of a live writer: its own reads and searches beside its own flushes and puts."""

import contextlib

import pyarrow as pa
import pytest

import weir
from simulator.env import make_actor
from simulator.scheduler import Scheduler, Settings
from tests.support.one_shard import open_writer, site_on
from weir.config import WriterConfig
from weir.errors import FencedError, MissingEntry
from weir.search import plan
from weir.store.memory import MemoryStore
from weir.upkeep.gc.collect import collect


def in_simulation(work, seed=1):
    """Run `work(env)` under the simulator: while a thread sleeps, all others run until they
    wait."""
    scheduler = Scheduler(seed, Settings())
    actor = make_actor(scheduler, "writer", str(seed))
    answer = []
    scheduler.spawn(actor, lambda: answer.append(work(actor.env)), name="main")
    scheduler.run()
    return answer[0]


@pytest.mark.parametrize("asleep", ["flush() after its commit", "the background after its commit"])
def test_m1_a_flush_beside_the_background_flush_hides_no_row(asleep):
    """The earlier of two commits is reported last: the manifest in memory must not go back.

    The second story ended the writer: it mistook the background's commit for a compaction's.
    """

    def work(env):
        site = site_on(MemoryStore(), env=env)
        writer = open_writer(site, WriterConfig(max_memtable_rows=2))
        manifests = writer._appender.manifests
        real = manifests.update
        calls = []

        def update(*args, **options):
            calls.append(None)
            first = len(calls) == 1  # flush() closes the gap that opening left
            if first and asleep != "flush() after its commit":
                env.clock.sleep(100.0)
            done = real(*args, **options)
            if first == (asleep == "flush() after its commit"):
                env.clock.sleep(200.0)
            return done

        manifests.update = update
        thread = env.threads.start(writer.flush, name="flusher")
        env.clock.sleep(1.0)
        assert len(calls) == 1
        for number in range(2):
            writer.put([{"k": number, "v": number}])
        thread.join()
        env.clock.sleep(1000.0)
        keys = writer.get([0, 1]).column("k").to_pylist()
        scanned = [k for batch in writer.scan() for k in batch.column("k").to_pylist()]
        writer.close()
        return sorted(keys), sorted(scanned)

    assert in_simulation(work) == ([0, 1], [0, 1])


SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("text", pa.string()),
        ("at", pa.list_(pa.float32(), 2)),
    ]
)


def row(key, word="fox"):
    return {"id": key, "text": f"a quick {word}", "at": [float(key), 0.0]}


@pytest.mark.parametrize(("column", "query"), [("at", [0.0, 0.0]), ("text", "quick")])
def test_m1_a_search_beside_puts_finds_every_key_that_was_there(
    tmp_path, monkeypatch, column, query
):
    """A put of an existing key in the middle of the search hides the old row before the search
    sees the new one: hidden keys and offered rows must be of one moment."""
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id")
    real = plan.best_of
    with table.writer() as writer:
        writer.put([row(key) for key in range(8)])
        writer.flush()
        table.compact()  # 0 to 7 in the base
        writer.put([row(key) for key in range(4, 6)])
        writer.flush()  # 4 and 5 in an SSTable too
        writer.put([row(key) for key in range(6, 8)])  # 6 and 7 in the MemTable too
        own = table.core.live_writer(table.shards()[0].id)

        def best_of(*args, **options):
            own.put([row(key, "dog") for key in range(8)])
            return real(*args, **options)

        monkeypatch.setattr(plan, "best_of", best_of)
        found = own.search(column, query, k=8)
        assert sorted(found.column("id").to_pylist()) == list(range(8))
        monkeypatch.undo()
        assert set(own.search("text", "dog", k=20).column("id").to_pylist()) == set(range(8))


def collected_once(monkeypatch, lake, name, collect):
    """Collect right before the first call of `name` on the lake: after the read was planned."""
    real = getattr(lake, name)
    calls = []

    def call(*args, **options):
        calls.append(args)
        if len(calls) == 1:
            collect()
        return real(*args, **options)

    monkeypatch.setattr(lake, name, call)
    return calls


@pytest.fixture
def cold(monkeypatch):
    """Writers do not keep flushed rows in memory."""
    monkeypatch.setattr("weir.shard.memtable.WARM_BYTES", 0)


def use(own, read):
    """One of a writer's own reads."""
    if read == "get":
        return own.get([3])
    return own.scan().read_all() if read == "scan" else own.search("text", "quick", k=8)


@pytest.mark.parametrize("read", ["get", "scan", "search"])
def test_g12_a_writer_s_own_read_overtaken_by_collection_is_planned_anew(
    tmp_path, monkeypatch, cold, read
):
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id")
    with table.writer() as writer:
        writer.put([row(key) for key in range(8)])
        writer.flush()
        own = table.core.live_writer(table.shards()[0].id)
        other = weir.open(table.uri)

        def overtake():
            other.compact()
            collect(other.core, 0, 120, keep_first_entries=False)

        calls = collected_once(monkeypatch, table.core.lake, "open_sstable", overtake)
        rows = use(own, read)
        assert calls
        assert rows.num_rows == (1 if read == "get" else 8)


@pytest.mark.parametrize("read", ["get", "scan", "search"])
@pytest.mark.parametrize(("taken", "told"), [(False, MissingEntry), (True, FencedError)])
def test_g12_an_sstable_that_is_lost_is_data_and_a_fenced_writer_is_fenced(
    tmp_path, cold, read, taken, told
):
    """Planning again must not make damage look like collection, nor hide a takeover."""
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id")
    writer = table.writer()
    writer.put([row(key) for key in range(8)])
    writer.flush()
    own = table.core.live_writer(table.shards()[0].id)
    if taken:
        weir.open(table.uri).shards()[0].writer().close()
    (folder,) = tmp_path.glob("t/_mem_wal/*/*_gen_1")
    folder.rename(tmp_path / "elsewhere")
    with pytest.raises(told):
        use(own, read)
    with contextlib.suppress(FencedError):
        writer.close()
