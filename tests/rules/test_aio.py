"""`weir.aio`: the whole surface for tasks, on the same core."""

import ast
import asyncio
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa
import pytest

import weir
from tests.support.loops import BlockedLoop, refuse_in_loops
from weir import aio
from weir.env import SYSTEM, SystemClock
from weir.errors import InvalidInput, SchemaMismatch, WriterClosed
from weir.read.scan import Scan
from weir.shard.ack import Ack
from weir.shard.state import WriterState

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
SHARDS = pytest.mark.parametrize("shards", [1, 3])


def row(key, text="a"):
    return {"id": key, "v": text}


async def make(place, shards=1):
    sharding = weir.Bucket("id", shards) if shards > 1 else None
    return await aio.create(str(place), SCHEMA, primary_key="id", sharding=sharding)


async def read(table):
    return {r["id"]: r["v"] async for batch in table.scan() for r in batch.to_pylist()}


@SHARDS
def test_a_table_is_made_written_read_and_kept_by_tasks(tmp_path, shards):
    async def run():
        made = await make(tmp_path / "t", shards)
        table = await aio.open(made.uri)
        async with table.writer() as writer:
            receipts = await asyncio.gather(*(writer.put(row(key)) for key in range(200)))
            assert all(receipt.done for receipt in receipts)
            await writer.delete([3, 4])
            assert await writer.put_once([row(200)], app="a", version=1)
            assert not await writer.put_once([row(200, "b")], app="a", version=1)
            later = await writer.put([row(201)], wait=False)
            assert (await writer.settled(later)).done
            await writer.flush_wal()
            assert sum(stats.puts for stats in writer.stats().values()) >= 203
        keys = set(range(202)) - {3, 4}
        assert await read(table) == dict.fromkeys(keys, "a")
        assert (await table.get([7, 3, 8]))["id"].to_pylist() == [7, 8]
        assert await table.scan(filter="id < 10").count() == 8
        assert (await table.scan(columns=["id"]).to_table()).num_rows == 200
        checkpoint = await table.checkpoint(name="here")
        assert [c.id for c in await table.checkpoints()] == [checkpoint.id]
        assert (await table.compact()).skipped is None
        await table.gc(dry_run=True)
        assert (await table.schema()).names == ["id", "v"]
        copy = await table.clone(str(tmp_path / "copy"), checkpoint)
        assert await read(copy) == dict.fromkeys(keys, "a")

    asyncio.run(run())


def test_a_feed_follows_without_holding_a_thread(tmp_path):
    async def run():
        table = await make(tmp_path / "t", 2)
        seen = []
        all_seen = asyncio.Event()

        async def follow():
            async for change in table.changes(follow=True, poll=0.01):
                seen.extend(change.batch["id"].to_pylist())
                if len(seen) == 60:
                    all_seen.set()

        followers = [asyncio.create_task(follow()) for _ in range(12)]
        async with table.writer() as writer:
            for key in range(5):
                await writer.put(row(key))
            await asyncio.wait_for(all_seen.wait(), 50)
        for task in followers:
            task.cancel()
        await asyncio.gather(*followers, return_exceptions=True)
        feed = table.changes()
        found = [key async for change in feed for key in change.batch["id"].to_pylist()]
        assert sorted(found) == [0, 1, 2, 3, 4]
        assert sorted(seen) == sorted([*range(5)] * 12)
        assert set(feed.bookmark.positions) == {s.id for s in await table.shards()}

    loop = asyncio.new_event_loop()
    loop.set_default_executor(ThreadPoolExecutor(4))  # fewer threads than followers
    loop.run_until_complete(asyncio.wait_for(run(), 60))
    loop.close()


def test_m7_a_bad_put_among_many_tasks_fails_alone(tmp_path):
    async def run():
        table = await make(tmp_path / "t")
        async with table.writer() as writer:
            await writer.put(row(0))
            puts = [writer.put(row(key) if key % 7 else {"id": key, "v": 1}) for key in range(99)]
            results = await asyncio.gather(*puts, return_exceptions=True)
            wrong = [isinstance(result, SchemaMismatch) for result in results]
            assert wrong == [key % 7 == 0 for key in range(99)]
        assert await read(table) == {key: "a" for key in range(99) if key % 7 or not key}

    asyncio.run(run())


def test_m6_tasks_wait_for_room_and_take_no_thread_each(tmp_path):
    async def run():
        table = await make(tmp_path / "t")
        small = weir.WriterConfig(max_unflushed_memtable_bytes=20_000, max_wal_buffer_size=5_000)
        threads = threading.active_count()
        async with table.writer(small) as writer:
            await writer.put(row(0))
            puts = [asyncio.create_task(writer.put(row(k, "x" * 50))) for k in range(2000)]
            await asyncio.sleep(0)
            assert threading.active_count() < threads + 80  # the pools, not one thread per task
            await asyncio.gather(*puts)
            (stats,) = writer.stats().values()
            assert stats.memtable.flushes > 0
        assert len(await read(table)) == 2000

    asyncio.run(asyncio.wait_for(run(), 100))


class BareLoop(asyncio.SelectorEventLoop):
    """A loop with its own futures and callbacks, like third-party loops: it has nothing beyond
    what `asyncio.AbstractEventLoop` promises."""

    def create_future(self):
        return asyncio.futures._PyFuture(loop=self)

    def call_soon(self, callback, *args, context=None):
        assert threading.get_ident() == self.home
        return super().call_soon(callback, *args, context=context)


def bare_loop():
    loop = BareLoop()
    loop.home = threading.get_ident()
    return loop


def uv_loop():
    return pytest.importorskip("uvloop").new_event_loop()


@pytest.mark.parametrize("new_loop", [bare_loop, uv_loop])
def test_m7_puts_of_tasks_on_any_loop_are_written_also_after_a_pause(tmp_path, new_loop):
    async def run():
        table = await make(tmp_path / "t")
        async with table.writer() as writer:
            for first in (0, 100, 200):  # between rounds the pump is idle and waits
                puts = [writer.put(row(key)) for key in range(first, first + 100)]
                receipts = await asyncio.wait_for(asyncio.gather(*puts), 60)
                assert all(receipt.done for receipt in receipts)
                await asyncio.to_thread(writer.sync.flush_wal)
        assert len(await read(table)) == 300

    loop = new_loop()
    loop.run_until_complete(run())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


def test_f16_cancelled_puts_go_on_and_the_writer_stays_sound(tmp_path):
    async def run():
        table = await make(tmp_path / "t", 3)
        async with table.writer() as writer:
            await writer.put([row(key) for key in range(30)])
            puts = [asyncio.create_task(writer.put(row(key, "b"))) for key in range(30)]
            await asyncio.sleep(0)
            for task in puts[::2]:
                task.cancel()
            results = await asyncio.gather(*puts, return_exceptions=True)
            assert all(r.done for r in results[1::2])
            await writer.flush_wal()  # settles the cancelled puts
            found = await read(table)
            assert all(found[key] == "b" for key in range(1, 30, 2))
            assert all(found[key] in "ab" for key in range(0, 30, 2))

    asyncio.run(run())


def test_o5_what_became_of_cancelled_decisions_can_be_asked_for(tmp_path):
    async def run():
        table = await make(tmp_path / "t")
        async with table.writer() as writer:
            await writer.put([row(key) for key in range(40)])
            inserts = [asyncio.create_task(writer.insert(row(100 + key))) for key in range(40)]
            updates = [asyncio.create_task(writer.update(row(key, "b"))) for key in range(40)]
            await asyncio.sleep(0.001)
            for task in (*inserts[::2], *updates[::2]):
                task.cancel()
            results = await asyncio.gather(*inserts, *updates, return_exceptions=True)
            told = [r for r in results if not isinstance(r, BaseException)]
            assert len(told) >= 40
            assert all(r.inserted + r.updated == 1 for r in told)
            assert all(isinstance(r, asyncio.CancelledError) for r in results if r not in told)
            again = [writer.insert(row(100 + key), on_conflict="skip") for key in range(40)]
            counts = await asyncio.gather(*again)
            assert all(c.skipped for c in counts[1::2])
            assert all(c.inserted + c.skipped == 1 for c in counts)
        found = await read(table)
        assert found == {**found, **{100 + key: "a" for key in range(40)}}
        assert all(found[key] == "b" for key in range(1, 40, 2))
        assert {found[key] for key in range(40)} <= {"a", "b"}
        assert len(found) == 80

    asyncio.run(asyncio.wait_for(run(), 60))


def test_m8_tasks_that_wait_while_the_writer_closes_are_durable_or_told(tmp_path):
    async def run():
        table = await make(tmp_path / "t")
        writer = table.writer()
        await writer.__aenter__()
        await writer.put(row(0))
        puts = [asyncio.create_task(writer.put(row(key))) for key in range(1, 200)]
        await asyncio.sleep(0)
        closing = asyncio.create_task(writer.close())
        results = await asyncio.gather(*puts, return_exceptions=True)
        await closing
        durable = {0} | {k for k, r in enumerate(results, 1) if not isinstance(r, BaseException)}
        assert all(isinstance(r, WriterClosed) or r.done for r in results)
        assert set(await read(table)) == durable

    asyncio.run(run())


def test_a_writer_that_was_not_entered_says_how(tmp_path):
    async def run():
        writer = (await make(tmp_path / "t")).writer()
        with pytest.raises(InvalidInput, match="async with"):
            await writer.put([row(1)])

    asyncio.run(run())


FOR_OTHER_LAYERS = {
    weir.Table: {"core"},
    Scan: {"narrowed", "stored", "has_sql_filter"},
    weir.Changes: {
        "commit_at",
        "fetch",
        "hand_over",
        "handed_out",
        "pause",
        "rounds_to_poll",
        "settle",
    },
    weir.TableWriter: {"aput", "adelete", "shard_writers"},
    weir.Database: set(),
}
PAIRS = [
    (weir.Table, aio.Table),
    (Scan, aio.Scan),
    (weir.Changes, aio.Changes),
    (weir.TableWriter, aio.TableWriter),
    (weir.Database, aio.Database),
]


def members(kind):
    return {
        name: inspect.getattr_static(kind, name)
        for name in dir(kind)
        if not name.startswith("_") and name not in FOR_OTHER_LAYERS[kind]
    }


@pytest.mark.parametrize(("kind", "like"), PAIRS, ids=lambda kind: kind.__name__)
def test_every_verb_parameter_and_property_has_its_like(kind, like):
    assert len(members(kind)) > 1
    for name, member in members(kind).items():
        assert hasattr(like, name), f"{like.__name__}.{name}"
        if inspect.isfunction(member):
            wanted = inspect.signature(member).parameters
            found = inspect.signature(getattr(like, name)).parameters
            assert list(found) == list(wanted), name
            for option, parameter in wanted.items():
                if option not in ("self", "stop"):
                    assert found[option].default == parameter.default, f"{name}({option}=)"


@pytest.mark.parametrize("name", ["create", "open", "enable", "exists", "drop", "connect"])
def test_every_function_has_its_like(name):
    found, wanted = inspect.signature(getattr(aio, name)), inspect.signature(getattr(weir, name))
    assert found.parameters == wanted.parameters


def large(first, count=3000):
    return [row(key) for key in range(first, first + count)]


async def every_verb(place):
    """Call every verb, with small and large inputs."""
    db = aio.connect(str(place))
    schema = SEARCHABLE
    table = await db.create_table("t", schema, primary_key="id", sharding=weir.Bucket("id", 2))
    assert await db.exists("t")
    assert await db.tables() == ["t"]
    assert await db.namespaces() == []
    assert await aio.exists(table.uri)
    table = await db.open_table("t")
    async with table.writer() as writer:
        await writer.put(row(1))
        await writer.put(large(0))
        await writer.put(pa.Table.from_pylist(large(10), schema=SCHEMA))
        await writer.put(iter(large(20, 5)))
        await writer.put(row(2), timeout=60)
        await writer.settled(await writer.put(large(30), wait=False))
        await writer.put(row(2, "b"), when="incoming.v > current.v")
        await writer.delete([2])
        await writer.delete(list(range(2000, 2500)), wait=False)
        await writer.delete([3], timeout=60)
        await writer.put_once(large(40), app="a", version=1)
        await writer.update([row(key, "c") for key in range(100, 1100)])
        await writer.insert(large(100), on_conflict="skip")
        await writer.delete_where("id = 5")
        await writer.update_where("id = $id", {"v": "$v"}, params={"id": 6, "v": "d"})
        await writer.put(row(6), when="current.v = $v", params={"v": "d"})
        await writer.flush_wal()
        await writer.flush()
        writer.stats()
        assert len(writer.shards) == 2
        assert writer.fenced == ()
    assert (table.wal_uri, table.primary_key) == (None, ("id",))
    assert table.writer_defaults.durable_write
    await table.schema()
    await table.set_expire(None)
    assert await table.expire() is None
    await table.add_columns(pa.field("x", pa.int64()))
    await table.rename_column("x", "y")
    await table.drop_columns(["y"])
    await table.create_index("id")
    await table.create_fts_index("w")
    assert len(await table.indexes()) == 2
    await table.drop_index("w_idx")
    assert await table.count() == await table.scan().count()
    one = table.scan(filter="id = $id", params={"id": 6})
    assert await one.count() == await table.count("id = $id", params={"id": 6}) == 1
    await table.snapshot()
    await table.shards()
    await table.shard(1)
    assert await table.shard_of(row(1)) in await table.shards_of(large(0))
    assert not await table.refresh()
    await table.stats()
    await table.history()
    checkpoint = await table.checkpoint(name="here")
    await table.checkpoints()
    await table.refresh_checkpoint("here", ttl="1d")
    scan = table.scan(checkpoint="here", filter="id < 900")
    assert [batch async for batch in scan]
    await scan.schema()
    await scan.explain()
    await scan.to_table()
    await scan.to_pandas()
    await scan.to_polars()
    await scan.to_dataset()
    await scan.lazy()
    await scan.loader()
    await scan.snapshot()
    await scan.to_reader()
    await table.get([1, 2], checkpoint=checkpoint)
    await table.search("v", "a", k=3, checkpoint="here")
    await table.hybrid_search({"v": "a", "w": "a"}, k=3)
    await table.sql("select count(*) from t")
    feed = table.changes(expired=True)
    assert [change async for change in feed]
    assert [change async for change in feed.poll()] == []
    assert (feed.failed_polls, feed.bookmark.snapshot) == (0, None)
    feed = table.changes(consumer="c")
    await feed.begin()
    assert [change async for change in feed]
    await feed.commit()
    assert [change async for change in table.follow("d", once=True)]
    await table.drop_consumer("d")
    await table.clone(str(place / "copy"), checkpoint)
    await table.compact()
    await table.gc(dry_run=True)
    await table.restore("here")
    await table.delete_checkpoint("here")
    await table.reshard(weir.Bucket("id", 3))
    await table.move_wal(str(place / "wal"))
    assert table.uri == db.table_uri("t")
    assert table.sharding == weir.Bucket("id", 3)
    await aio.due(table)
    with pytest.raises(InvalidInput):
        await table.adopt_shard((await table.shards())[0].id, "newer")
    with pytest.raises(InvalidInput):
        await table.discard_clone(str(place / "copy"))
    await aio.drop(str(place / "copy"))
    with pytest.raises(InvalidInput):
        await table.release_clone(str(place / "copy"))
    await db.drop_table("t")
    await aio.create(str(place / "plain"), SCHEMA)
    await aio.open(str(place / "plain"))
    with pytest.raises(InvalidInput):
        await aio.enable(str(place / "plain"))


def test_every_verb_is_called_where_the_loop_refuses_to_block():
    """Fails for a new verb of `weir.aio`: call it in `every_verb`."""
    tree = ast.parse(inspect.getsource(every_verb))
    called = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    verbs = {name for _, like in PAIRS for name in vars(like) if not name.startswith("_")}
    by_syntax = {"sync", "close", "to_batches"}  # `async with`, `async for`
    assert sorted((verbs | set(aio.__all__)) - called - by_syntax - CLASSES) == []


CLASSES = {"Changes", "Database", "Scan", "Table", "TableWriter"}
SEARCHABLE = pa.schema([*SCHEMA, ("w", pa.string())])


def test_no_verb_makes_a_request_or_converts_many_rows_in_the_loop(tmp_path, monkeypatch):
    refuse_in_loops(monkeypatch)
    asyncio.run(asyncio.wait_for(every_verb(tmp_path), 300))


@pytest.mark.parametrize("form", [list, iter, pa.Table.from_pylist])
def test_the_writer_of_a_shard_converts_many_rows_outside_the_loop(tmp_path, monkeypatch, form):
    """`TableWriter` did; a put of a shard's writer stopped the loop for as long as it converted."""
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id")
    with table.shard(None).writer() as writer:
        refuse_in_loops(monkeypatch)

        async def run():
            small, many = await asyncio.gather(
                writer.aput(row(-1)), writer.aput(form(large(0))), return_exceptions=True
            )
            assert (small.done, many.done) == (True, True)
            with pytest.raises(SchemaMismatch, match="'v'"):
                await writer.aput([row(1), *large(2), {"id": 5000, "v": 1}])

        asyncio.run(asyncio.wait_for(run(), 60))
    assert table.count() == 3001


def test_the_guard_of_the_loop_bites(tmp_path, monkeypatch):
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id")
    refuse_in_loops(monkeypatch)

    async def block():
        table.count()

    with pytest.raises(BlockedLoop):
        asyncio.run(block())


def test_a_put_that_need_not_be_durable_returns_when_it_is_accepted(tmp_path):
    async def run():
        table = await make(tmp_path / "t")
        config = weir.WriterConfig(durable_write=False, max_wal_flush_interval="1h")
        async with table.writer(config) as writer:
            buffered = await writer.put(row(1))
            assert not buffered.done
            assert (await writer.put(row(2), wait=True)).done
        assert set(await read(table)) == {1, 2}

    asyncio.run(run())


def test_m7_waiting_for_room_and_for_the_log_share_a_timeout(tmp_path, monkeypatch):
    """Each had all of it: a put with a timeout could take twice as long."""

    class Clock(SystemClock):
        ahead = 0.0

        def boottime(self):
            return super().boottime() + self.ahead

    clock, waits = Clock(), []
    submit, pass_gate = WriterState.submit, Ack.pass_gate

    def submit_late(state, ack):
        clock.ahead += 600
        submit(state, ack)

    def noted(ack, gate, timeout):
        waits.append(timeout)
        return pass_gate(ack, gate, timeout)

    async def run():
        env = replace(SYSTEM, clock=clock)
        table = await aio.create(str(tmp_path / "t"), SCHEMA, primary_key="id", env=env)
        async with table.writer() as writer:
            await writer.put(row(0))
            monkeypatch.setattr(WriterState, "submit", submit_late)
            monkeypatch.setattr(Ack, "pass_gate", noted)
            await writer.put(row(1), timeout=1000)

    asyncio.run(asyncio.wait_for(run(), 60))
    assert max(waits) <= 400
