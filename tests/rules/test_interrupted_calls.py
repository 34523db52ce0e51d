"""F-16: Ctrl-C ends one call of one thread. What it leaves behind is finished by others, and every
row that was not written is reported once.

`tests.interrupts` interrupts every verb at every point; here are the points that once failed.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import weir
from simulator.steps import watched
from tests.interrupts.points import Points
from tests.support.interrupting import interrupt_each
from weir.config import WriterConfig
from weir.env import SYSTEM
from weir.shard import commit
from weir.shard.ack import Ack, Heirs, closed_gate
from weir.shard.request import WriteCounts
from weir.shard.writer import ShardWriter
from weir.spark.writers import ShardWriters
from weir.upkeep.exclusive import without_compaction
from weir.upkeep.reshard import reshard

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
SECONDS = 20.0
"""Longer than anything takes here, also on a busy machine."""


class Tables:
    """Makes one table after the other."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._made = 0

    def make(self, **options: Any) -> weir.Table:
        self._made += 1
        options = {"primary_key": "id", **options}
        return weir.create(str(self._place / str(self._made)), SCHEMA, **options)


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables(tmp_path)


def writer_of(table: weir.Table, **config: Any) -> ShardWriter:
    return table.shards()[0].writer(WriterConfig(**config))


def in_a_thread(call: Callable[[], object]) -> Callable[[], object]:
    """Call it in another thread; what is returned waits for its end, and returns its answer."""
    answers: list[object] = []

    def run() -> None:
        try:
            answers.append(call())
        except BaseException as error:  # the answer
            answers.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def outcome() -> object:
        thread.join(SECONDS)
        assert not thread.is_alive(), "the call hangs"
        return answers[0]

    return outcome


def ids(batches: Any) -> list[int]:
    return [row["id"] for batch in batches for row in batch.to_pylist()]


def reported(error: object) -> list[int]:
    return ids(error.unacknowledged) if isinstance(error, weir.WeirError) else []


def test_f16_put_once_with_a_timeout_leaves_its_lock_free(tables: Tables) -> None:
    writer = writer_of(tables.make())
    versions = iter(range(1_000_000))

    def scenario(points: Points) -> None:
        def put() -> bool:
            n = next(versions)
            return writer.put_once([{"id": n}], app="a", version=n, timeout=SECONDS)

        with suppress(KeyboardInterrupt), points:
            put()
        assert in_a_thread(put)() is True

    assert interrupt_each(scenario, r"^weir.shard.once:ExactlyOnce.put:") >= 3
    writer.close()


def test_m6_a_put_that_waits_for_room_gets_it_though_the_one_before_was_interrupted(
    tables: Tables,
) -> None:
    def big(key: int) -> list[dict[str, object]]:
        return [{"id": key, "v": "x" * 2000}]

    def scenario(points: Points) -> None:
        bounds = {"max_unflushed_memtable_bytes": 3000, "max_wal_buffer_size": 3000}
        writer = writer_of(tables.make(), **bounds)
        committer, state = writer._committer, writer._state
        others: list[Callable[[], object]] = []
        book = committer.book

        def book_once_another_waits() -> None:
            if threading.current_thread() is threading.main_thread() and not others:
                others.append(in_a_thread(lambda: writer.put(big(2))))
                while not state.room:
                    pass
            book()

        committer.book = book_once_another_waits  # type: ignore[method-assign]
        with suppress(KeyboardInterrupt), points:
            writer.put(big(1))
        assert isinstance(others[0](), Ack)
        assert in_a_thread(writer.close)() is None

    assert interrupt_each(scenario, r"Committer\._booked|WriterState\.book:") >= 10


def test_f16_a_flush_interrupted_as_it_started_the_thread_makes_no_two_flushers(
    tables: Tables,
) -> None:
    def scenario(points: Points) -> None:
        table = tables.make(primary_key=None)
        writer = writer_of(table)
        flusher = writer._flusher
        assert flusher is not None
        write, together = flusher._write, threading.Barrier(2)
        met = []

        def write_beside_another(memtable: Any) -> Any:
            with suppress(threading.BrokenBarrierError):
                together.wait(0.1)
                met.append(memtable.generation)
            return write(memtable)

        flusher._write = write_beside_another  # type: ignore[method-assign]
        writer.put([{"id": n} for n in range(10)])
        with suppress(KeyboardInterrupt), points:
            writer.flush()
        for call in (writer.flush, lambda: writer.put([{"id": 10}]), writer.flush, writer.close):
            assert not isinstance(in_a_thread(call)(), BaseException)
        assert met == []
        assert sorted(table.scan().to_table()["id"].to_pylist()) == list(range(11))

    assert interrupt_each(scenario, r"Flusher\.wake:") >= 5


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "beside others"])
def test_f16_rows_of_an_interrupted_put_are_reported_when_the_writer_was_fenced(
    tables: Tables, alone: bool
) -> None:
    def scenario(points: Points) -> None:
        table = tables.make()
        writer = writer_of(table)
        writer.put([{"id": 0}])
        newer = writer_of(table)  # fences it
        state = writer._state
        submit, accepted = state.submit, []

        def note(ack: Ack) -> None:
            submit(ack)
            accepted.append(ack)

        state.submit = note  # type: ignore[method-assign]
        if not alone:
            state.crowd.unsettled += 1  # a put of another thread
        told: list[int] = []
        try:
            with points:
                writer.put([{"id": 1}])
        except KeyboardInterrupt:
            pass
        except weir.WeirError as error:
            told += reported(error)
        for _ in range(2):
            told += reported(in_a_thread(writer.close)())
        assert told == ([1] if accepted else [])
        newer.close()

    ways = r"^weir.shard.commit:Committer\.(put|_put|_await|_commit_here|_pass):|^weir.shard.ack:"
    assert interrupt_each(scenario, ways) >= 5


def test_f16_rows_of_a_put_that_is_being_accepted_are_reported_once(tables: Tables) -> None:
    """A flush that fails meanwhile leaves them to the put."""
    table = tables.make(primary_key=None)
    writer = writer_of(table, durable_write=False)
    newer = writer_of(table)  # fences it
    committer = writer._committer
    book, flushed = committer.book, []

    def book_and_fail() -> None:
        book()
        if threading.current_thread() is threading.main_thread() and not flushed:
            flushed.append(in_a_thread(writer.flush_wal)())

    committer.book = book_and_fail  # type: ignore[method-assign]
    with pytest.raises(weir.FencedError) as refused:
        writer.put([{"id": 1}], wait=False)
    assert isinstance(flushed[0], weir.FencedError)
    assert reported(flushed[0]) + reported(refused.value) == [1]
    assert reported(in_a_thread(writer.close)()) == []
    newer.close()


def test_o2_a_decision_made_again_leaves_no_rows_of_its_first_attempt(tables: Tables) -> None:
    """The thread that decided was interrupted; made again, the decision was stale."""
    table = tables.make()
    writer = writer_of(table)
    writer.put([{"id": 0}])
    committer, state = writer._committer, writer._state
    book, book_each, decide = committer.book, committer._book_each, committer._decide
    inserts: list[Callable[[], object]] = []
    steps: list[str] = []

    def is_interrupted() -> bool:
        return threading.current_thread() is threading.main_thread()

    def book_beside_an_insert() -> None:
        if is_interrupted() and not inserts:
            inserts.append(in_a_thread(lambda: writer.insert([{"id": 7, "v": "b"}])))
            while len(state.queue) < 2:
                pass
        book()

    def book_until_interrupted(run: Any) -> None:
        if is_interrupted() and run[0].decision is not None and not steps:
            steps.append("interrupted")
            raise KeyboardInterrupt
        book_each(run)

    def decide_stale(run: Any) -> None:
        if steps == ["interrupted"]:
            steps.append("stale")
            for ack in run:  # as if the generation that was looked at had been flushed
                found = ack.decision.found
                mark = type(found.mark)(found.mark.generation - 1, 0)
                ack.decision.found = replace(found, mark=mark)
        decide(run)

    committer.book = book_beside_an_insert  # type: ignore[method-assign]
    committer._book_each = book_until_interrupted  # type: ignore[method-assign]
    committer._decide = decide_stale  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        writer.put([{"id": 1}])
    answer = inserts[0]()
    assert isinstance(answer, WriteCounts), answer
    assert answer.inserted == 1
    assert steps == ["interrupted", "stale"]
    assert in_a_thread(writer.close)() is None
    assert sorted(table.scan().to_table()["id"].to_pylist()) == [0, 1, 7]


def test_f16_an_entry_whose_outcome_was_booked_is_not_booked_again(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted twice, the slot stays filled while the flusher publishes its generation."""
    writer = writer_of(tables.make(), max_memtable_rows=2)
    committer = writer._committer
    call, release_gate = committer._call, commit.release_gate
    interrupts: list[str] = []

    def interrupt_once(step: str, done: int) -> None:
        if threading.current_thread() is threading.main_thread() and len(interrupts) == done:
            interrupts.append(step)
            raise KeyboardInterrupt

    def released(ack: Ack) -> None:
        interrupt_once("before the slot was emptied", 0)
        release_gate(ack)

    def called() -> bool:
        interrupt_once("before the commit thread was called", 1)
        return call()

    monkeypatch.setattr(commit, "release_gate", released)
    committer._call = called  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        writer.put([{"id": 1}, {"id": 2}])
    assert len(interrupts) == 2
    memtables = writer._state.memtables
    assert memtables is not None
    while memtables.frozen:
        pass  # the flusher publishes the generation
    assert isinstance(in_a_thread(lambda: writer.put([{"id": 3}]))(), Ack)
    assert in_a_thread(writer.close)() is None


def test_m7_whoever_an_interrupted_putter_passed_over_is_woken(tables: Tables) -> None:
    """The first has left, so nobody wakes the second; the third, interrupted, opens `gathered`."""
    writer = writer_of(tables.make())
    committer = writer._committer
    acks = [Ack(committer, (), rows=0, nbytes=0) for _ in range(3)]
    for ack in acks:
        ack.gate = closed_gate(SYSTEM)
    gathered = closed_gate(SYSTEM)
    woken = committer._wake_in_order(acks, gathered)
    last = acks[2].wakes
    assert last is gathered
    acks[2].wakes = None
    last.release()
    committer._gather(woken, gathered)
    second = acks[1].gate
    assert second is not None
    assert second.acquire(timeout=0)
    writer.close()


@pytest.mark.parametrize("memtable", [True, False], ids=["memtable", "wal-only"])
def test_c11_a_reshard_leaves_buffered_rows_of_its_own_process_to_the_heirs(
    tables: Tables, memtable: bool
) -> None:
    table = tables.make(sharding=weir.Bucket("id", 2))
    config = WriterConfig(
        enable_memtable=memtable, durable_write=False, max_wal_flush_interval="1h"
    )
    with table.writer(config) as writer:
        writer.put([{"id": n} for n in range(10)], wait=True)

        more = iter([[{"id": n} for n in range(10, 20)]])

        def put_more(step: str) -> None:
            if step.startswith("sealed"):
                for rows in more:
                    writer.put(rows)

        reshard(watched(table.core, "reshard", put_more), weir.Bucket("id", 3))
        assert in_a_thread(writer.flush_wal)() is None
    assert sorted(weir.open(table.uri).scan().to_table()["id"].to_pylist()) == list(range(20))


def test_f16_an_interrupted_wait_for_heirs_holds_up_no_other() -> None:
    def scenario(points: Points) -> None:
        heirs = Heirs(SYSTEM.threads)
        heirs.moved([])
        with suppress(KeyboardInterrupt), points:
            heirs.parts()
        assert in_a_thread(lambda: heirs.parts(1.0))() == []

    assert interrupt_each(scenario, r"weir.shard.ack:Heirs.parts") >= 1
    assert interrupt_each(scenario, r"weir.env:Latch") >= 3


def test_f16_an_interrupted_call_of_a_claim_leaves_its_lock_free(tables: Tables) -> None:
    """Upkeep ends by Ctrl-C, too, and waits for the thread that renews its claim."""
    core = tables.make().core

    def scenario(points: Points) -> None:
        held = without_compaction(core)
        claim = held.__enter__()
        with suppress(KeyboardInterrupt), points:
            claim.remember({})
            assert claim.is_held
        assert in_a_thread(lambda: claim.is_held)() is True
        assert in_a_thread(lambda: held.__exit__(None, None, None))() is None

    assert interrupt_each(scenario, r"^(weir.upkeep.compact.claim:Claim|threading:)") >= 5


def test_f16_an_interrupted_call_for_kept_writers_leaves_their_lock_free(tables: Tables) -> None:
    core = tables.make().core

    def scenario(points: Points) -> None:
        kept = ShardWriters(core)
        with suppress(KeyboardInterrupt), points:
            kept.leave(None)
            kept.close()
        assert in_a_thread(lambda: kept.take(None, SCHEMA, limit=1, decides=False))() is None

    assert interrupt_each(scenario, r"^(weir.spark.writers:ShardWriters|threading:)") >= 8


def test_c11_an_interrupt_while_rows_are_taken_to_their_heirs_loses_none(tables: Tables) -> None:
    config = WriterConfig(durable_write=False, max_wal_flush_interval="1h")

    def scenario(points: Points) -> None:
        table = tables.make()
        writer = weir.open(table.uri).writer(config)
        writer.put([{"id": 0}])
        writer.flush_wal()
        receipts = [writer.put([{"id": key}]) for key in (1, 2)]
        weir.open(table.uri).reshard(weir.Bucket("id", 2), compact=False)
        with suppress(KeyboardInterrupt), points:
            writer.flush_wal()
        assert in_a_thread(writer.close)() is None
        for receipt in receipts:
            assert isinstance(in_a_thread(lambda receipt=receipt: receipt.wait(SECONDS))(), dict)
        assert weir.open(table.uri).count() == 3

    at = r"^[^<]*(OpenWriters._to_heirs|Heirs.moved|Latch.open):\d+ entry"
    assert interrupt_each(scenario, at) >= 5


def left_behind(tables: Tables) -> tuple[weir.Table, Any]:
    """An append-only table and a writer of it whose one shard a reshard has sealed."""
    table = tables.make(primary_key=None)
    writer = weir.open(table.uri).writer()
    writer.put([{"id": 0}])
    weir.open(table.uri).reshard(weir.Bucket("id", 2), compact=False)
    return table, writer


def all_once(table: weir.Table, writer: Any, rows: list[int], told: list[int]) -> None:
    """Each of the rows is in the table, or in one report."""
    for _ in range(2):
        told += reported(in_a_thread(writer.close)())
    found = weir.open(table.uri).scan().to_table()["id"].to_pylist()
    assert sorted([*found, *told]) == [0, *rows]


def test_f16_a_put_interrupted_as_it_follows_a_reshard_is_in_or_reported(tables: Tables) -> None:
    """Before the call that follows had the rows, only the error of the shard knew them."""

    def scenario(points: Points) -> None:
        table, writer = left_behind(tables)
        told: list[int] = []
        try:
            with points:
                writer.put([{"id": 1}, {"id": 2}])
        except KeyboardInterrupt:
            pass
        except weir.WeirError as error:
            told += reported(error)
        all_once(table, writer, [1, 2], told)

    at = r"^weir.routing.(writer:(TableWriter\._f|_put)|fan_out:)[^<]*(entry|after)"
    assert interrupt_each(scenario, at) >= 10


def test_f16_a_receipt_interrupted_as_its_rows_are_sent_on_loses_none(tables: Tables) -> None:
    def scenario(points: Points) -> None:
        table, writer = left_behind(tables)
        receipt = writer.put([{"id": 1}, {"id": 2}], wait=False)
        told: list[int] = []
        try:
            with points:
                receipt.wait()
        except KeyboardInterrupt:
            pass
        except weir.WeirError as error:
            told += reported(error)
        all_once(table, writer, [1, 2], told)

    at = r"^weir.(routing.(receipt|fan_out)|shard.ending):|^[^<]*(send_on|OpenWriters._move)"
    assert interrupt_each(scenario, at) >= 10


class Struck(dict[str, Any]):
    """A row whose conversion is interrupted."""

    def get(self, *_: Any) -> Any:
        raise KeyboardInterrupt


def test_f16_an_interrupt_while_rows_are_read_takes_no_more_of_their_source(
    tables: Tables,
) -> None:
    batch = pa.RecordBatch.from_pylist([{"id": 2, "v": "b"}], schema=SCHEMA)
    source = iter([Struck(id=1, v="a"), batch, batch, batch])
    table = tables.make()
    with table.writer() as writer:
        writer.put([{"id": 0, "v": "a"}])  # the next one takes the short way
        with pytest.raises(KeyboardInterrupt):
            writer.put(source)
        assert list(source) == [batch, batch]
        writer.flush_wal()  # nothing was left behind
    assert table.scan().to_table()["id"].to_pylist() == [0]
