"""One trial: interrupt one call at one point, then see what the writer does for other threads.

The log is the truth: every row put has a value of its own, and the change feed tells how often the
log has it. A trial's outcome is "ok" or the first of these that happened:
  ended    a call of another thread failed: the writer had ended
  error    a call of another thread failed in another way
  lost     a row that the writer had acknowledged, accepted or shown is in no log and no error
  doubled  a row is in the log twice, or two errors hand it back
  untrue   a row that an error calls "not written" is in the log
  torn     a shard has a part of what it must have whole or not at all
  thread   a thread of the closed writer still runs
  swallowed  the interrupted call returned, and its thread never learns of the interrupt
A hang is none of these: the watchdog ends the process (`__main__`).
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

import weir
from tests.interrupts.cases import OLD, QUEUED, Batch, Case, Row
from tests.interrupts.points import Points, strikes_generator
from tests.interrupts.strikes import Cancels, TimedThreads, Timeouts
from weir import aio
from weir.env import SYSTEM, Env
from weir.errors import (
    Backpressure,
    FencedError,
    Interrupted,
    PartialWrite,
    UnknownOutcome,
    WeirError,
    WriterClosed,
)
from weir.read.changes import Bookmark

KEY = pa.schema([pa.field("id", pa.int64(), nullable=False)])
LATER = range(300, 306)
ENDED = (WriterClosed, UnknownOutcome, FencedError)
PUTTERS = 2
TASKS = 4
PUTS_AFTERWARDS = 2


AnyPoints = Points | Cancels | Timeouts


def points_of(case: Case, point: str, tell: Callable[[str], None]) -> tuple[AnyPoints, Env]:
    """Where the case is struck, and the environment that its table needs for that."""
    if case.verb.strike == "cancel":
        return Cancels(point, tell), SYSTEM
    if case.verb.strike == "interrupt":
        return Points(point, tell), SYSTEM
    threads = TimedThreads()
    threads.timeouts = Timeouts(point, tell)
    return threads.timeouts, Env(threads=threads)


class WrongError(Exception):
    """What went wrong: an outcome and its details."""

    def __init__(self, outcome: str, detail: str) -> None:
        super().__init__(f"{outcome}: {detail}")
        self.outcome = outcome
        self.detail = detail


@dataclass
class Ledger:
    """What callers were told about rows, by the rows' values."""

    acknowledged: set[str] = field(default_factory=set)
    accepted: set[str] = field(default_factory=set)
    """Put without waiting, or shown by a read: durable after a close, or handed back."""
    not_written: Counter[str] = field(default_factory=Counter)
    perhaps: Counter[str] = field(default_factory=Counter)
    failures: list[BaseException] = field(default_factory=list)
    closes: bool = False
    """The interrupted call closes the writer: puts are refused."""

    def failed(self, error: BaseException, *, is_right: bool = False) -> None:
        if not is_right:
            self.failures.append(error)
        if isinstance(error, WeirError):
            self.not_written.update(_values(error.not_written))
            self.perhaps.update(_values(error.perhaps_written))

    def put(self, writer: Any, rows: list[Row]) -> bool:
        try:
            writer.put(rows, wait=True)
        except Exception as error:
            self.failed(error, is_right=self.closes and isinstance(_root(error), WriterClosed))
            return False
        self.acknowledged.update(row["v"] for row in rows)
        return True

    def send_again(self, send: Callable[[], object], values: list[str]) -> None:
        """Send a batch again that takes effect once: whatever was told of it, it is in then."""
        try:
            send()
        except Exception as error:
            self.failed(error)
            return
        self.acknowledged.update(values)
        for value in values:
            del self.not_written[value]

    def call(self, call: Any) -> Any:
        try:
            return call()
        except Exception as error:
            # Right: what the interrupted call gave to no writer, which it could not say itself.
            self.failed(error, is_right=all(isinstance(e, Interrupted) for e in _parts_of(error)))
            return None


def _parts_of(error: BaseException) -> list[BaseException]:
    """The errors of the shards, which a table's writer reports in one."""
    return list(error.failures.values()) if isinstance(error, PartialWrite) else [error]


def _root(error: BaseException) -> BaseException:
    """The error of a shard, which a table's writer reports for all."""
    return _parts_of(error)[0]


def _values(batches: list[Any]) -> list[str]:
    """The values of rows; a delete has none, and is told by its key."""
    rows = [row for batch in batches for row in batch.to_pylist()]
    return [row["v"] or f"delete {row['id']}" for row in rows]


class Log:
    """What was logged since a bookmark."""

    def __init__(self, table: weir.Table, since: Bookmark) -> None:
        self.puts: Counter[str] = Counter()
        """How often each value is there."""
        self.deletes: Counter[int] = Counter()
        """How often each key was deleted."""
        for change in table.changes(since):
            if change.kind == "delete":
                self.deletes.update(change.batch.column("id").to_pylist())
            else:
                self.puts.update(change.batch.column("v").to_pylist())

    def judge(self, ledger: Ledger) -> None:
        """Raise what is wrong with what callers were told."""
        if twice := sorted(v for v, times in self.puts.items() if times > 1):
            raise WrongError("doubled", f"in the log twice: {twice}")
        if keys := sorted(i for i, times in self.deletes.items() if times > 1):
            raise WrongError("doubled", f"deletes in the log twice: {keys}")
        told = ledger.not_written + ledger.perhaps
        if twice := sorted(v for v, times in told.items() if times > 1):
            raise WrongError("doubled", f"handed back twice: {twice}")
        if false := sorted(v for v in ledger.not_written if v in self.puts):
            raise WrongError("untrue", f"handed back as not written, in the log: {false}")
        if lost := sorted(v for v in ledger.acknowledged if v not in self.puts):
            raise WrongError("lost", f"acknowledged: {lost}")
        if lost := sorted(v for v in ledger.accepted if v not in self.puts and v not in told):
            raise WrongError("lost", f"accepted: {lost}")
        for error in ledger.failures:
            kind = "ended" if isinstance(_root(error), ENDED) else "error"
            raise WrongError(kind, f"{type(error).__name__}: {error}")


def judge_log(table: weir.Table, since: Bookmark, ledger: Ledger) -> tuple[str, str]:
    """The outcome and its details."""
    try:
        Log(table, since).judge(ledger)
    except WrongError as wrong:
        return wrong.outcome, wrong.detail
    return "ok", ""


class Putter(threading.Thread):
    """A thread that puts rows of its own until it is stopped, and then a few more."""

    def __init__(self, writer: Any, number: int, batch: Batch, ledger: Ledger) -> None:
        super().__init__(name=f"putter-{number}", daemon=True)
        self._writer, self._number, self._batch, self._ledger = writer, number, batch, ledger
        self.stopping = threading.Event()
        self.began = threading.Event()

    def run(self) -> None:
        puts = left = 0
        while left < PUTS_AFTERWARDS:
            left += self.stopping.is_set()
            first = 10_000 * self._number + 3 * puts
            rows = self._batch.rows(range(first, first + 3), "putter")
            went_on = self._ledger.put(self._writer, rows)
            self.began.set()
            if not went_on:
                return
            puts += 1


class Trial:
    """One table and writer, one call, one point."""

    def __init__(self, case: Case, table: weir.Table, number: int) -> None:
        self._case = case
        self._table = table
        self._ledger = Ledger(closes=case.verb.ends)
        self._is_swallowed = False
        self._batch = Batch(f"t{number}", number * 100_000)

    def run(self, points: AnyPoints) -> tuple[str, str]:
        """Interrupt the call at the point; the outcome and its details."""
        before = self._table.changes()
        for _ in before:
            pass
        threads = set(threading.enumerate())
        with self._table.writer() as writer:
            writer.put(self._batch.rows(OLD, "old"))
        writer = self._case.writer(self._table)
        self._put_before(writer)
        try:
            self._interrupt(writer, points)
            self._go_on(writer)
            self._judge(before.bookmark, threads)
        except WrongError as wrong:
            return wrong.outcome, wrong.detail
        if self._is_swallowed:
            return "swallowed", "the call returned as if there had been no interrupt"
        return "ok", ""

    def _put_before(self, writer: Any) -> None:
        if self._case.verb.unopened:
            return
        queued = self._batch.rows(QUEUED, "queued")
        if self._case.sharded:  # opens the shards
            writer.put(self._batch.rows(range(50, 60), "opened"))
            writer.flush_wal()
        writer.put(queued, wait=False)
        self._ledger.accepted.update(row["v"] for row in queued)
        if not (self._case.beside or self._case.verb.buffered):
            writer.flush_wal()  # whether the call meets its entry would be chance

    def _interrupt(self, writer: Any, points: AnyPoints) -> None:
        putters = [
            Putter(writer, number, self._batch, self._ledger)
            for number in range(1, 1 + PUTTERS * self._case.beside)
        ]
        for putter in putters:
            putter.start()
            if not self._case.verb.unopened:
                putter.began.wait()
        try:
            self._call(writer, points)
            is_ignored = isinstance(points, Points) and strikes_generator(points)
            is_kept = not isinstance(points, Timeouts) and not is_ignored
            self._is_swallowed = points.raised and is_kept
        except (KeyboardInterrupt, asyncio.CancelledError):
            pass
        except TimeoutError:
            self._is_late(points)
        except Exception as error:
            is_refused = isinstance(_root(error), Backpressure)
            self._ledger.failed(error, is_right=points.raised and is_refused)
            if isinstance(error, Backpressure) and not error.not_written:
                self._ledger.not_written.update(self._call_values())
        finally:
            for putter in putters:
                putter.stopping.set()
        for putter in putters:
            putter.join()

    def _call(self, writer: Any, points: AnyPoints) -> None:
        call, batch = self._case.verb.call, self._batch
        if not isinstance(points, Cancels):
            with points:
                call(writer, batch)
            return

        async def run() -> None:
            tasks = aio.TableWriter(lambda: writer, waits=not self._case.verb.buffered)
            await tasks.__aenter__()
            others = [asyncio.create_task(self._put_beside(tasks, n)) for n in range(TASKS)]
            try:
                await points.run(call(tasks, batch))
            finally:
                await asyncio.gather(*others)

        asyncio.run(run())  # waits for the threads of calls that were cancelled

    async def _put_beside(self, writer: aio.TableWriter, number: int) -> None:
        """Another task of the same loop, whose puts share entries with the call."""
        for put in range(3 * self._case.beside):
            first = 1_000 + 100 * number + 10 * put
            rows = self._batch.rows(range(first, first + 6), "task")
            try:
                await writer.put(rows, wait=True)
            except Exception as error:
                is_closed = isinstance(_root(error), WriterClosed)
                self._ledger.failed(error, is_right=self._ledger.closes and is_closed)
                return
            self._ledger.acknowledged.update(row["v"] for row in rows)

    def _is_late(self, points: AnyPoints) -> None:
        """The call was told that its rows are still being written."""
        if not points.raised:
            raise WrongError("error", "a timeout that did not strike")
        self._ledger.accepted.update(self._call_values())

    def _call_values(self) -> list[str]:
        verb = self._case.verb
        return [] if verb.deletes else [row["v"] for row in self._batch.rows(verb.writes)]

    def _go_on(self, writer: Any) -> None:
        """What another thread meets afterwards."""
        thread = threading.Thread(target=lambda: self._use(writer), name="another", daemon=True)
        thread.start()
        thread.join()

    def _use(self, writer: Any) -> None:
        ledger = self._ledger
        rows = self._batch.rows(LATER, "later")
        if self._case.verb.once:
            call = self._case.verb.call
            ledger.send_again(lambda: call(writer, self._batch), self._call_values())
        ledger.put(writer, rows[:3])
        if self._case.memtable and not self._case.verb.ends:
            if not self._case.of_table:
                ids = self._batch.ids({*OLD, *QUEUED, *self._case.verb.writes})
                seen = ledger.call(lambda: writer.get(ids))
                ledger.accepted.update([] if seen is None else seen.column("v").to_pylist())
            new = self._batch.rows([400], "inserted")
            if ledger.call(lambda: writer.insert(new)):
                ledger.accepted.update(row["v"] for row in new)
        if not self._case.verb.ends:
            ledger.call(writer.flush_wal)
            if self._case.memtable:
                ledger.call(writer.flush)
        ledger.put(writer, rows[3:])
        ledger.call(writer.close)
        ledger.call(writer.close)

    # -- the judgement ---------------------------------------------------------------------------

    def _judge(self, since: Bookmark, threads: set[threading.Thread]) -> None:
        log = Log(self._table, since)
        log.judge(self._ledger)
        self._judge_call(log)
        self._judge_threads(threads)
        with self._table.writer() as writer:  # the shard can be opened and written by the next
            writer.put(self._batch.rows([500], "next"))

    def _judge_call(self, log: Log) -> None:
        verb = self._case.verb
        rows = {row["id"]: row["v"] for row in self._batch.rows(verb.writes)}
        found = {i for i, v in rows.items() if (log.deletes[i] if verb.deletes else log.puts[v])}
        told = self._ledger.not_written + self._ledger.perhaps
        back = {i for i, v in rows.items() if (f"delete {i}" if verb.deletes else v) in told}
        if verb.atomic and found and (lost := set(rows) - found - back):
            raise WrongError("lost", f"of a call that is in at other shards: {sorted(lost)}")
        for ids in self._parts(set(rows)) if verb.atomic else []:
            if found & ids and not ids <= found:
                raise WrongError("torn", f"of {sorted(ids)} only {sorted(found & ids)} are in")

    def _parts(self, ids: set[int]) -> list[set[int]]:
        """The keys of each shard."""
        batch = pa.RecordBatch.from_pylist([{"id": i} for i in sorted(ids)], KEY)
        parts = self._table.core.router.split(batch)
        return [set(part.column("id").to_pylist()) for _, part in parts]

    def _judge_threads(self, before: set[threading.Thread]) -> None:
        for thread in set(threading.enumerate()) - before:
            if thread.ident is None:
                continue  # interrupted while it was started: the library never forgets it
            if thread.name.startswith("weir-") and not thread.name.startswith("weir-map"):
                thread.join(5)
                if thread.is_alive():
                    raise WrongError("thread", f"{thread.name} still runs")
