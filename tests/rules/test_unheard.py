"""F-16: what a call finds out after its caller has gone is reported once, by a flush or close."""

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import weir
from tests.interrupts.points import Points
from tests.support.interrupting import interrupt_each
from tests.support.threads import Caller, until
from weir import aio
from weir.env import Env, SystemThreads
from weir.errors import Interrupted, PartialWrite, StoreError, WeirError
from weir.routing.fan_out import Outcomes
from weir.routing.open_writers import OpenWriters
from weir.routing.receipt import Receipt
from weir.routing.unheard import Unheard
from weir.shard.commit import Committer
from weir.shard.ending import Ending
from weir.testing.faulty import FaultyStores

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
BUFFERED = weir.WriterConfig(durable_write=False, max_wal_flush_interval=3600)
ALL = list(range(100, 120))
SECONDS = 30
"""Longer than anything takes here, also on a busy machine."""


def row(key: int) -> dict[str, Any]:
    return {"id": key, "v": "a"}


def rows(keys: list[int]) -> list[dict[str, Any]]:
    return [row(key) for key in keys]


def ids(batches: list[pa.RecordBatch]) -> list[int]:
    return [key for batch in batches for key in batch["id"].to_pylist()]


def there(table: weir.Table) -> list[int]:
    return sorted(weir.open(table.uri).scan().to_table()["id"].to_pylist())


class Reports:
    """What the calls of a writer have handed back."""

    def __init__(self) -> None:
        self.errors: list[WeirError] = []

    def of(self, call: Callable[[], object]) -> None:
        try:
            call()
        except WeirError as error:
            self.errors.append(error)

    async def awaited(self, call: Awaitable[object]) -> None:
        try:
            await call
        except WeirError as error:
            self.errors.append(error)

    @property
    def not_written(self) -> Counter[int]:
        return Counter(key for error in self.errors for key in ids(error.not_written))

    @property
    def perhaps(self) -> Counter[int]:
        return Counter(key for error in self.errors for key in ids(error.perhaps_written))


# -- tasks that are cancelled ----------------------------------------------------------------------


async def settled(writer: aio.TableWriter) -> None:
    await writer.settled(await writer.put([row(2)], wait=False))


async def flushed(writer: aio.TableWriter) -> None:
    await writer.put([row(2)], wait=False)
    await writer.flush_wal()


async def closed(writer: aio.TableWriter) -> None:
    await writer.put([row(2)], wait=False)
    await writer.close()


async def left(writer: aio.TableWriter) -> None:
    await writer.put([row(2)], wait=False)
    await writer.__aexit__(None, None, None)


Act = Callable[[aio.TableWriter], Awaitable[object]]
ACTS: dict[str, tuple[Act, weir.WriterConfig | None]] = {
    "put(timeout=)": (lambda w: w.put([row(2)], timeout=SECONDS), None),
    "delete(timeout=)": (lambda w: w.delete([2], timeout=SECONDS), None),
    "put(wait=True), buffered": (lambda w: w.put([row(2)], wait=True), BUFFERED),
    "settled, buffered": (settled, BUFFERED),
    "flush_wal": (flushed, None),
    "close": (closed, None),
    "leaving the block": (left, None),
    "insert": (lambda w: w.insert([row(2)]), None),
    "update": (lambda w: w.update([row(2)], missing="insert"), None),
    "put(when=)": (lambda w: w.put([row(2)], when="current IS NULL"), None),
    "put_once": (lambda w: w.put_once([row(2)], app="a", version=1), None),
}


@pytest.mark.parametrize("ask_first", ["flush_wal", "close"])
@pytest.mark.parametrize(("act", "config"), ACTS.values(), ids=ACTS.keys())
def test_f16_rows_of_a_cancelled_task_are_handed_back_once_when_the_shard_is_lost(
    tmp_path: Path, act: Act, config: weir.WriterConfig | None, ask_first: str
) -> None:
    async def run() -> None:
        faulty = FaultyStores()
        table = await aio.create(
            str(tmp_path / "t"), SCHEMA, primary_key="id", env=faulty.env, writer_defaults=config
        )
        writer = await table.writer().__aenter__()
        await writer.put([row(0)], wait=True)
        gate = faulty.at(table.uri).on("put_if_absent", "*/wal/*").pause()
        await writer.put([row(1)], wait=False)  # its entry is stuck: what follows waits behind it
        (shard,) = writer.sync.shard_writers().values()
        front = asyncio.create_task(asyncio.to_thread(shard.see_through, None))
        await asyncio.to_thread(gate.wait_reached)
        reports = Reports()

        task = asyncio.ensure_future(act(writer))
        queue = shard._state.queue
        await asyncio.to_thread(until, lambda: len(queue) > 1 and queue[-1].waiters)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        rival = (await asyncio.to_thread(weir.open, table.uri)).shards()[0].writer()
        gate.release()
        await front
        await reports.awaited(getattr(writer, ask_first)())
        await reports.awaited(writer.close())
        await reports.awaited(writer.close())
        rival.close()
        assert there(table.sync) == [0]
        assert reports.not_written == {1: 1, 2: 1}
        assert not reports.perhaps

    asyncio.run(asyncio.wait_for(run(), SECONDS))


@pytest.mark.parametrize("closes", [True, False])
def test_f16_a_flush_or_close_raises_what_an_earlier_one_finds_whose_task_was_cancelled(
    tmp_path: Path, closes: bool
) -> None:
    unheard = Unheard(weir.create(str(tmp_path / "t"), SCHEMA).core)
    begun, held, done = threading.Event(), threading.Event(), threading.Event()

    def find() -> None:
        begun.set()
        held.wait()
        raise Interrupted("found", not_written=[pa.RecordBatch.from_pylist([row(1)], SCHEMA)])

    async def run() -> None:
        first = asyncio.ensure_future(unheard.report(find))
        await asyncio.to_thread(begun.wait)
        if not closes:
            first.cancel()
            await asyncio.wait([first])
        second = asyncio.ensure_future(unheard.report(done.set, closes=closes))
        await asyncio.to_thread(done.wait)
        (earlier, *_) = unheard._reports
        await asyncio.to_thread(until, lambda: earlier.settled._gates or second.done())
        held.set()
        until(lambda: earlier._is_over)  # the loop is held up: the task has not heard of it
        first.cancel()
        with pytest.raises(Interrupted, match="found") as told:
            await second
        assert ids(told.value.not_written) == [1]
        await unheard.report(lambda: None)  # once

    asyncio.run(asyncio.wait_for(run(), SECONDS))


def test_f16_what_a_receipt_found_before_it_was_interrupted_is_handed_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = sharded(tmp_path / "t", Env(), 2)
    # Nothing is sent before somebody waits, or the put itself may be told.
    writer = table.writer(BUFFERED)
    writer.put(rows(ALL), wait=True)
    for shard in weir.open(table.uri).shards():  # the writer is fenced everywhere
        shard.writer().close()
    wait = Receipt._wait
    waits = iter([wait, _interrupted])
    monkeypatch.setattr(Receipt, "_wait", lambda *args: next(waits)(*args))
    put = writer.put(rows(ALL), wait=False)
    with pytest.raises(KeyboardInterrupt):
        put.wait()
    reports = Reports()
    reports.of(writer.close)
    assert reports.not_written == Counter(ALL)


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_f16_a_call_that_no_thread_had_begun_when_its_task_was_cancelled_is_not_made(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        asyncio.get_running_loop().set_default_executor(pool)
        held, made = threading.Event(), []
        first = asyncio.ensure_future(unheard.in_thread(held.wait))
        second = asyncio.ensure_future(unheard.in_thread(lambda: made.append(2)))
        third = asyncio.ensure_future(unheard.in_thread(lambda: made.append(3), must_run=True))
        await asyncio.sleep(0)
        second.cancel()
        third.cancel()
        await asyncio.wait([second, third])
        held.set()
        await first
        await asyncio.to_thread(unheard.settle)
        assert made == [3]

    pool = ThreadPoolExecutor(1)
    unheard = Unheard(weir.create(str(tmp_path / "t"), SCHEMA).core)
    asyncio.run(asyncio.wait_for(run(), SECONDS))


# -- several shards --------------------------------------------------------------------------------


def sharded(place: Path, env: Env, shards: int = 4) -> weir.Table:
    sharding = weir.Bucket("id", shards)
    return weir.create(str(place), SCHEMA, primary_key="id", sharding=sharding, env=env)


def test_f16_parts_of_a_cancelled_put_that_reached_no_shard_are_handed_back(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        faulty = FaultyStores()
        made = sharded(tmp_path / "t", faulty.env)
        table = await aio.open(made.uri, env=faulty.env)
        async with table.writer() as writer:
            await writer.put(row(0))  # opens one shard
            gate = faulty.at(made.uri).on("put_if_absent", "*/manifest/*").pause(times=None)
            task = asyncio.ensure_future(writer.put(rows(ALL)))
            await asyncio.to_thread(gate.wait_reached, 3)
            task.cancel()
            with pytest.raises(asyncio.CancelledError) as cancelled:
                await task
            gate.release()
            with pytest.raises(PartialWrite) as told:
                await writer.flush_wal()
            assert {type(error) for error in told.value.failures.values()} == {Interrupted}
            assert told.value.kind == "unavailable"
            lost = ids(told.value.not_written)
            assert f"{len(lost)} of its 20 rows reached no writer" in cancelled.value.__notes__[-1]
            assert f"{20 - len(lost)} of its 20 rows are written" in cancelled.value.__notes__[-1]
            assert sorted([*there(made), *lost]) == [0, *ALL]
            await writer.flush_wal()  # once
            await writer.put(rows(lost))  # and the writer goes on
        assert there(made) == [0, *ALL]

    asyncio.run(asyncio.wait_for(run(), SECONDS))


VERBS: dict[str, Callable[[weir.TableWriter], object]] = {
    "put": lambda w: w.put(rows(ALL)),
    "put(wait=False)": lambda w: w.put(rows(ALL), wait=False),
    "insert": lambda w: w.insert(rows(ALL)),
    "update": lambda w: w.update(rows(ALL), missing="insert"),
    "put(when=)": lambda w: w.put(rows(ALL), when="current IS NULL"),
    "put_once": lambda w: w.put_once(rows(ALL), app="a", version=1),
}


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS.keys())
def test_f16_an_interrupt_while_shards_are_opened_leaves_no_row_out_of_the_report(
    tmp_path: Path, verb: Callable[[weir.TableWriter], object]
) -> None:
    made: list[weir.Table] = []

    def scenario(points: Points) -> None:
        made.append(sharded(tmp_path / str(len(made)), Env(), 3))
        writer = made[-1].writer()
        notes: list[str] = []
        reports = Reports()
        try:
            with points:
                verb(writer)
        except KeyboardInterrupt as interrupt:
            notes = interrupt.__notes__
        for _ in range(2):
            reports.of(writer.close)
        assert not reports.perhaps
        assert sorted([*there(made[-1]), *reports.not_written.elements()]) == ALL
        if reports.errors:
            assert "rows reached no writer" in notes[-1] or "go on" in notes[-1]

    assert (
        interrupt_each(scenario, at=r"^weir\.routing\.open_writers:OpenWriters\._open:\d+ entry")
        > 0
    )


def test_f16_an_interrupt_that_ends_the_block_stays_one_and_brings_the_rows(tmp_path: Path) -> None:
    threads = OneGoesOn()
    table = sharded(tmp_path / "t", Env(threads=threads), 2)

    def use() -> None:
        with table.writer() as writer:
            threads.armed = lambda: None
            writer.put(rows(ALL))

    with pytest.raises(KeyboardInterrupt) as interrupted:
        use()
    error = interrupted.value.__cause__
    assert isinstance(error, WeirError)
    assert sorted([*there(table), *ids(error.not_written)]) == ALL


class OneGoesOn(SystemThreads):
    """Once `armed`, a map leaves its last item to another thread, and is interrupted."""

    def __init__(self) -> None:
        self.armed: Callable[[], object] | None = None
        self.other = threading.current_thread()

    def map(self, run: Any, items: list[Any], *, workers: int) -> list[Any]:
        if self.armed is None or len(items) < 2:
            return super().map(run, items, workers=workers)
        reached, self.armed = self.armed, None
        self.other = threading.Thread(target=run, args=[items[-1]], daemon=True)
        self.other.start()
        reached()
        raise KeyboardInterrupt


def test_f16_close_waits_for_threads_that_go_on_with_an_interrupted_call(tmp_path: Path) -> None:
    threads = OneGoesOn()
    faulty = FaultyStores(env=Env(threads=threads))
    table = sharded(tmp_path / "t", faulty.env, 2)
    writer = table.writer()
    gate = faulty.at(table.uri).on("put_if_absent", "*/manifest/*").pause()
    threads.armed = gate.wait_reached
    with pytest.raises(KeyboardInterrupt):
        writer.put(rows(ALL))
    reports = Reports()
    closing = Caller(lambda: reports.of(writer.close))
    until(lambda: writer._writers._is_shut)
    gate.release()
    closing.result()
    assert sorted([*there(table), *reports.not_written.elements()]) == ALL
    for error in reports.errors:
        parts = error.failures.values() if isinstance(error, PartialWrite) else [error]
        assert {type(part) for part in parts} == {Interrupted}
    writer.close()


@pytest.mark.parametrize("is_over", [True, False])
def test_f16_a_part_that_failed_beside_an_interrupt_is_handed_back_once(
    tmp_path: Path, is_over: bool
) -> None:
    threads = OneGoesOn()
    table = sharded(tmp_path / "t", Env(threads=threads), 2)
    writer = table.writer()
    writer.put(rows(ALL))
    for shard in weir.open(table.uri).shards():  # the writer is fenced everywhere
        shard.writer().close()
    threads.armed = (lambda: threads.other.join()) if is_over else (lambda: None)
    with pytest.raises(KeyboardInterrupt):
        writer.put(rows([key + 1000 for key in ALL]))
    reports = Reports()
    for call in (writer.flush_wal, writer.close, writer.close):
        reports.of(call)
    assert reports.not_written == Counter(key + 1000 for key in ALL)


# -- what is claimed of rows -----------------------------------------------------------------------


@pytest.mark.parametrize("accepted", [True, False])
@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS.keys())
def test_f16_rows_are_called_not_written_only_if_no_writer_got_them(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    verb: Callable[[weir.TableWriter], object],
    accepted: bool,
) -> None:
    """An error that says nothing of rows, after the writer took them, or before."""
    put = Committer.put

    def fail(committer: Committer, ack: Any, **options: Any) -> None:
        if accepted:
            put(committer, ack, **options)
        raise RuntimeError("no word of rows")

    table = sharded(tmp_path / "t", Env(), 2)
    with table.writer() as writer:
        writer.put(rows([0, 1, 2, 3]))
        with monkeypatch.context() as patched:
            patched.setattr(Committer, "put", fail)
            with pytest.raises(PartialWrite) as told:
                verb(writer)
    error = told.value
    claimed, others = error.not_written, error.perhaps_written
    if accepted:
        claimed, others = others, claimed
    assert sorted(ids(claimed)) == ALL
    assert not others
    assert set(there(table)) & set(ALL) == (set(ALL) if accepted else set())


# -- one error for all -----------------------------------------------------------------------------


def test_f16_errors_of_one_shard_are_raised_as_one_with_the_rows_of_both(tmp_path: Path) -> None:
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id")
    batches = [pa.RecordBatch.from_pylist(rows([key]), SCHEMA) for key in (1, 2, 3)]
    with table.writer() as writer:
        writer.unheard.keep(Interrupted("one", not_written=batches[:1]))
        writer.unheard.keep(StoreError("two", perhaps_written=batches[1:2]))
        writer.unheard.keep(StoreError("no rows"))
        writer.unheard.keep(weir.KeyConflict("decided", [3], not_written=batches[2:]))
        with pytest.raises(StoreError, match="two") as told:
            writer.flush_wal()
        assert (ids(told.value.not_written), ids(told.value.perhaps_written)) == ([1], [2])
        assert told.value.__notes__ == ["also: one"]
        writer.flush_wal()


# -- rows that no shard has yet --------------------------------------------------------------------


def test_f16_rows_that_a_writer_tells_of_twice_in_one_close_are_all_handed_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A put that timed out as its writer was closed is told of by the second look at it."""
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id")
    writer = table.writer(BUFFERED)
    writer.put(rows([1]))
    weir.open(table.uri).shard(0).writer().close()
    left = WeirError("later", not_written=[pa.RecordBatch.from_pylist(rows([2]), schema=SCHEMA)])

    def tell_of_another(_: Ending) -> None:
        raise left

    monkeypatch.setattr(Ending, "require_all_reported", tell_of_another)
    with pytest.raises(WeirError) as closed:
        writer.close()
    assert sorted(ids(closed.value.not_written)) == [1, 2]


def strike(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    """A signal that comes as that method is entered, once."""
    real = getattr(owner, name)

    def struck(*_args: object, **_options: object) -> None:
        monkeypatch.setattr(owner, name, real)
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, name, struck)


@pytest.mark.parametrize("sharding", [weir.Bucket("id", 2), weir.PerWriter()], ids=str)
def test_f16_rows_interrupted_while_their_shard_is_opened_are_handed_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sharding: weir.Bucket | weir.PerWriter
) -> None:
    table, reports = weir.create(str(tmp_path / "t"), SCHEMA, sharding=sharding), Reports()
    writer = table.writer()
    strike(monkeypatch, OpenWriters, "_open")
    with pytest.raises(KeyboardInterrupt) as interrupt:
        writer.put(rows(ALL))
    assert f"{len(ALL)} of its {len(ALL)} rows reached no writer" in interrupt.value.__notes__[-1]
    reports.of(writer.close)
    assert reports.not_written == Counter(ALL)
    assert there(table) == []


def test_p2_a_batch_that_is_in_is_not_reported_though_a_flush_was_interrupted_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = weir.create(str(tmp_path / "t"), SCHEMA, sharding=weir.Bucket("id", 2))
    writer = table.writer()
    strike(monkeypatch, OpenWriters, "_open")
    with pytest.raises(KeyboardInterrupt):
        writer.put_once(rows(ALL), app="a", version=1)
    strike(monkeypatch, Outcomes, "report")
    with pytest.raises(KeyboardInterrupt):
        writer.flush_wal()
    assert writer.put_once(rows(ALL), app="a", version=1)
    writer.close()
    assert there(table) == ALL


@pytest.mark.parametrize("keys", [[1000], list(range(1000, 1010))], ids=["one shard", "two shards"])
def test_f16_rows_of_a_task_cancelled_while_it_waits_for_room_are_handed_back(
    tmp_path: Path, keys: list[int]
) -> None:
    stores, reports = FaultyStores(), Reports()
    little = weir.WriterConfig(max_unflushed_memtable_bytes=4000, max_wal_buffer_size=4000)

    def waits(writer: aio.TableWriter) -> int:
        return sum(stats.backpressure_waits for stats in writer.stats().values())

    async def story() -> weir.Table:
        table = await aio.create(
            str(tmp_path / "t"), SCHEMA, sharding=weir.Bucket("id", 2), env=stores.env
        )
        writer = table.writer(little)
        await writer.__aenter__()
        await writer.put(rows(ALL))
        gate = stores.at(table.uri).on("put_if_absent", "*/wal/*").pause(times=None)
        full = [
            asyncio.create_task(writer.put([{"id": key, "v": "x" * 3900}]))
            for key in range(200, 220)
        ]
        await asyncio.to_thread(gate.wait_reached)
        before = waits(writer)
        late = asyncio.create_task(writer.put(rows(keys)))
        parts = min(2, len(keys))
        await asyncio.to_thread(until, lambda: waits(writer) == before + parts)
        late.cancel()
        await asyncio.gather(late, return_exceptions=True)
        gate.release()
        await asyncio.gather(*full)
        await reports.awaited(writer.close())
        return table.sync

    table = asyncio.run(story())
    assert reports.not_written == Counter(keys)
    assert not set(there(table)) & set(keys)
