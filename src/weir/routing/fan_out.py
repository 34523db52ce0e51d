"""One call over several shards: its attempts, what each shard answered, and its one error.

Every verb of a table's writer goes through it, and whoever waits for a receipt. A shard that fails
hides no other: all answers are collected before anything is raised. Shards that the routing has
left are followed to their heirs.

Keeps
  C-11 rows for a sealed shard go to its heirs; the shard is not claimed back
  F-16 the error of a call holds the rows of that call, and no others
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import get_ident
from typing import Any, Generic, TypeVar
from uuid import UUID

import pyarrow as pa

from weir.durations import check_timeout
from weir.env import Latch
from weir.errors import (
    FencedError,
    Interrupted,
    InvalidInput,
    PartialWrite,
    SchemaMismatch,
    SealedShard,
    UnknownOutcome,
    WeirError,
    WriterClosed,
)
from weir.format.sharding import Value
from weir.log.entry import Token
from weir.records.table import TableRecord
from weir.routing.core import CONCURRENCY
from weir.routing.open_writers import OpenWriters
from weir.routing.reroute import REROUTES, Parts
from weir.routing.unheard import Errors, both, joined, unbegun
from weir.shard.ack import Taken
from weir.shard.ending import internal, with_rows
from weir.shard.writer import ShardWriter

T = TypeVar("T")

Plan = Callable[[TableRecord, list[pa.RecordBatch]], Parts]
"""The shards concerned under a routing, with the part of those rows that each takes."""


@dataclass(eq=False, slots=True)
class Part:
    """What one call does at one shard, and how far it has come."""

    shard: UUID
    value: Value
    rows: list[pa.RecordBatch]
    taken: Taken = field(default_factory=list)
    """The puts that the shard's writer made of the rows."""
    by: int | None = None
    """The thread that makes it; None: it was not begun."""
    answers: list[Any] = field(default_factory=list)
    """What the shard answered, once it has."""
    error: Exception | None = None
    is_stopped: bool = False
    """An interrupt ended it in another thread than the caller's."""
    is_over: bool = False
    settled: Latch | None = None
    """Opened when it has ended, if its caller has gone."""

    @property
    def is_taken(self) -> bool:
        """True when a writer has rows of it, or had: it makes them durable, or reports them."""
        return any(ack.is_taken for ack in self.taken)

    def is_with_another(self, me: int) -> bool:
        """True when another thread than `me` is still making it."""
        return self.by not in (None, me) and not self.is_stopped


Run = Callable[[ShardWriter, Part], T]
"""What the call does at one shard."""
RunTask = Callable[[ShardWriter, Part], Awaitable[T]]


class Outcomes(Generic[T]):
    """What the shards of one call have answered."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self.results: dict[UUID, T] = {}
        self.failures: dict[UUID, WeirError] = {}
        self._late: dict[UUID, TimeoutError] = {}
        self._spared: set[UUID] = set()
        """Shards that failed, but lost no row, because the routing has left them."""

    @contextmanager
    def of(self, shard: UUID, rows: list[pa.RecordBatch] | None = None) -> Iterator[None]:
        """Note what the block raises as the shard's answer; see `fail`."""
        try:
            yield
        except TimeoutError as late:
            self._late[shard] = late
        except Exception as error:  # noqa: BLE001  reported with those of the other shards
            self.fail(shard, error, rows)

    def fail(self, shard: UUID, error: Exception, rows: list[pa.RecordBatch] | None = None) -> None:
        """The shard did not take its part, which are those rows; None: the error has them."""
        ours = error if isinstance(error, WeirError) else internal(error)
        ours = ours if rows is None else _ours(ours, rows)
        # F-16: a writer that was given up may have told of other rows before, or another of its
        # shard.
        self.failures[shard] = both(self.failures.get(shard), ours)

    def report(self, failures: Mapping[UUID, WeirError] | None = None) -> dict[UUID, T]:
        """The results; raises one error for what failed: its own `failures`, or those given."""
        failures, late = self.failures if failures is None else failures, self._late
        parts = len({*self.results, *failures, *late, *self._spared})
        if failures and parts == 1:
            raise next(iter(failures.values()))
        if failures:
            rest = ""
            if late:
                rest = f", {len(late)} still under way (flush_wal() or close() waits for them)"
            elif len(failures) < parts:
                rest = ", the others are done"
            raise PartialWrite(
                f"{self._uri}: {len(failures)} of {parts} shards failed{rest}: "
                + "; ".join(_named(shard, error) for shard, error in failures.items()),
                failures=failures,
                under_way=list(late),
            )
        if late:
            raise next(iter(late.values()))
        return self.results


class FanOut(Outcomes[T]):
    """One call in progress."""

    def __init__(
        self,
        writers: OpenWriters,
        run: Run[T],
        timeout: float | None = None,
        *,
        may_follow: Callable[[], bool] = lambda: True,
        batch: Token | None = None,
    ) -> None:
        """`may_follow`: whether the call may go on at the heirs of a shard that it began at. With
        a `batch` only with all that is missing of it, as one part for each heir (P-6)."""
        super().__init__(writers.core.uri)
        self._writers = writers
        self._core = writers.core
        self._run = run
        self._timeout = check_timeout(timeout)
        self._may_follow = may_follow
        self._batch = batch
        self._lock = writers.core.env.threads.lock()
        self._unplanned: list[pa.RecordBatch] = []
        """The rows of the call until they are parts: finding their shards may make one."""
        self._parts: list[Part] = []
        self.heard: Errors = []
        """What this call raises of what no caller has heard."""
        self._is_left = False
        """The caller was interrupted: it hears of no shard that fails from now on."""

    def over(self, plan: Plan, batches: list[pa.RecordBatch]) -> dict[UUID, T]:
        """Make the call at every shard of the plan; return the answers, or raise one error."""

        def run() -> dict[UUID, T]:
            record, self._unplanned = self._core.record, batches
            self._attempt(plan(record, batches), record)
            return self._follow(plan, record)

        return self._told_if_interrupted(run)

    async def over_tasks(
        self, plan: Plan, batches: list[pa.RecordBatch], run: RunTask[T]
    ) -> dict[UUID, T]:
        """`over` for a task: only opening a shard, and following a reshard, takes a thread."""
        loop, record = asyncio.get_running_loop(), self._core.record
        self._unplanned = batches

        async def attempt(part: Part) -> None:
            part.by = get_ident()
            try:
                writer = self._writers.open.get(part.shard)
                if writer is None:
                    get = self._writers.get
                    writer = await loop.run_in_executor(None, get, part.shard, part.value, record)
                part.answers.append(await run(writer, part))
            except Exception as error:  # noqa: BLE001  reported with those of the other shards
                part.error = error
            self._answered(part)

        try:
            parts = await loop.run_in_executor(None, plan, record, batches)
            await asyncio.gather(*map(attempt, self._plan(parts)))
        except Exception:  # the plan refuses the rows
            raise
        except BaseException as cancelled:  # all parts have ended by now
            self.leave(cancelled)
            raise
        if self.failures:
            follow = partial(self.follow, plan, record)
            await self._writers.unheard.in_thread(follow, must_run=True)
        return self.results

    def over_all(self, *, closes: bool = False) -> None:
        """Make the call, a flush or close, at every open shard; raise one error for what failed,
        for rows of writers that were given up, and for what no caller has heard."""

        def run() -> dict[UUID, T]:
            if not closes:
                self._over_open(retire=False)
            while closes and not self._writers.shut():  # a put under way may have opened another
                self._over_open(retire=True)
            for shard, writer in list(self._writers.given_up.items()):
                with self.of(shard, []):
                    writer.close()
            if closes:
                self._writers.unheard.settle()  # nobody may ask again
            self._writers.unheard.give(self)
            return self.report(joined(self.failures, self.heard))

        self._told_if_interrupted(run)

    def follow(self, plan: Plan, record: TableRecord) -> dict[UUID, T]:
        """Go on after an attempt under that record, until no failed shard has heirs."""
        return self._told_if_interrupted(lambda: self._follow(plan, record))

    def _told_if_interrupted(self, run: Callable[[], dict[UUID, T]]) -> dict[UUID, T]:
        try:
            return run()
        except Exception:
            raise
        except BaseException as interrupt:
            self.leave(interrupt)
            raise

    def _follow(self, plan: Plan, record: TableRecord) -> dict[UUID, T]:
        self._tell_of_reshard()
        for _ in range(REROUTES if self._writers.own is None else 0):
            moved = self._left_behind(record)
            if not moved:
                break
            record = self._core.record
            rows = [row for shard in moved for row in self.failures[shard].not_written]
            try:
                parts = plan(record, rows)
            except WeirError as error:  # F-16: it has no rows, the failures have
                for shard in moved:
                    self.failures[shard] = _homeless(shard, self.failures[shard], error)
                break
            self._attempt(parts, record, moved)
        return self.report()

    def _over_open(self, *, retire: bool) -> None:
        writers = self._writers.all()

        def flush(part: Part) -> T:
            try:
                result = self._run(writers[part.shard], part)
            except Exception:
                if retire:
                    self._writers.retire(part.shard)
                raise
            if retire:
                self._writers.retire(part.shard)
            return result

        self._make({shard: (None, []) for shard in writers}, flush)
        unharmed = {s: error for s, error in self.failures.items() if not error.unacknowledged}
        for shard in self._writers.routed_away(unharmed):
            del self.failures[shard]
            self._spared.add(shard)
        if self._spared and not retire and not self.failures:
            self._core.record_number()  # guard: C-16 test_drop
        self._tell_of_reshard()

    def _tell_of_reshard(self) -> None:
        """Only the owner of a writer with shards of its own can say which of the new shards are its
        own: its rows go to no heir by themselves."""
        own = self._writers.own
        if own is not None and self.failures:
            for shard in self._writers.routed_away(self.failures):
                self.failures[shard] = own.resharded(self.failures[shard])

    # -- the parts -------------------------------------------------------------------------------

    def _attempt(self, parts: Parts, record: TableRecord, moved: Sequence[UUID] = ()) -> None:
        def write(part: Part) -> T:
            return self._run(self._writers.get(part.shard, part.value, record), part)

        self._make(parts, write, moved)

    def _plan(self, parts: Parts, moved: Sequence[UUID] = ()) -> list[Part]:
        """More parts of the call, in place of those of the shards `moved`."""
        planned = [Part(shard, value, rows) for shard, (value, rows) in parts.items()]
        with self._lock:
            failures = {s: error for s, error in self.failures.items() if s not in moved}
            others = [part for part in self._parts if part.shard not in moved]
            self.failures, self._parts, self._unplanned = failures, [*others, *planned], []
        return planned

    def _make(self, parts: Parts, run: Callable[[Part], T], moved: Sequence[UUID] = ()) -> None:
        def attempt(part: Part) -> None:
            with self._lock:
                if self._is_left:
                    return
                part.by = get_ident()
            try:
                # F-16: an interrupt comes before this one call ends, or finds the answer kept.
                part.answers.extend(map(run, (part,)))
            except Exception as error:  # noqa: BLE001  reported with those of the other shards
                part.error = error  # F-16: no call between the error and this
            except BaseException:
                part.is_stopped = True
                raise
            self._answered(part)

        self._core.env.threads.map(attempt, self._plan(parts, moved), workers=CONCURRENCY)

    def _answered(self, part: Part) -> None:
        """Note the answer of a part that has ended; it may be repeated after an interrupt."""
        error, shard = part.error, part.shard
        for answer in part.answers:
            self.results[shard] = answer
        failed: WeirError | None = None
        if isinstance(error, TimeoutError) and (part.taken or not part.rows):
            self._late[shard] = error  # else nothing goes on
        elif error is not None:
            failed = _ours(error, part.rows, is_taken=part.is_taken)
        with self._lock:
            is_left = self._is_left
            if failed is not None and not is_left:
                self.failures[shard] = failed
            part.is_over = True
        if is_left and failed is not None:
            if isinstance(failed, WriterClosed) and failed.__cause__ is None:
                # Closed as the interrupt ended the block.
                failed = unbegun(self._core.uri, shard, part.rows)
            self._writers.unheard.keep(failed, shard, self._batch)
        if part.settled is not None:
            part.settled.open()

    def leave(self, interrupt: BaseException) -> None:
        """The caller is interrupted, and no error will reach it. A flush or close reports the rows
        that no writer has, and those of shards that have failed (F-16). Parts that other threads
        are making go on. Again is harmless."""
        me, unheard = get_ident(), self._writers.unheard
        with self._lock:
            if self._is_left:
                return
            self._is_left = True
            failures = dict(self.failures)
            ended = [part for part in self._parts if not part.is_over]
            for part in [part for part in ended if part.is_with_another(me)]:
                part.settled = Latch(self._core.env.threads)
                unheard.goes_on(part.by, part.settled)
                ended.remove(part)
        lost: list[Part] = []
        for part in ended:
            if part.error is not None:
                self._answered(part)
            elif not part.answers and unheard.left(part.shard, part.rows, part.taken, self._batch):
                lost.append(part)
        for shard, error in failures.items():
            unheard.keep(error, shard, self._batch)
        for kept in self.heard:
            unheard.keep(kept.error, kept.shard, kept.batch)
        if self._unplanned:
            unheard.left(None, self._unplanned, batch=self._batch)
        self._tell(interrupt, lost)

    def _tell(self, interrupt: BaseException, lost: Sequence[Part]) -> None:
        unplanned = sum(batch.num_rows for batch in self._unplanned)
        rows, unwritten = _count(self._parts) + unplanned, _count(lost) + unplanned
        said: list[str] = []
        if unwritten:
            said.append(
                f"{unwritten} of its {rows} rows reached no writer and are not written: the next"
                " flush_wal(), flush() or close() hands them back"
            )
        if rows > unwritten:
            said.append(
                f"{rows - unwritten} of its {rows} rows are written, or go on: close() makes them"
                " durable, or hands them back"
            )
        if lost and not rows:
            said.append(f"{len(lost)} of its {len(self._parts)} shards were not reached")
        if said:
            interrupt.add_note(f"{self._core.uri}: a call was interrupted. {'; '.join(said)}")

    def _left_behind(self, record: TableRecord) -> list[UUID]:
        """The failed shards that the routing has left, once their heirs exist."""
        moved = list(self._writers.routed_away(self.failures))
        if not moved or not self._may_follow():
            return []
        is_whole = len(moved) == len(self.failures) and not self._late
        if self._batch is not None and not is_whole:  # guard: P-6 test_once_and_reshards
            return []
        errors = {shard: self.failures[shard] for shard in moved}
        found = self._writers.await_heirs(record.routing_version, errors, self._timeout)
        return moved if found else []


def _homeless(shard: UUID, failed: WeirError, refused: WeirError) -> WeirError:
    """The error of rows that found no new shards: the routing refuses them, or there is none."""
    if not isinstance(refused, InvalidInput | SchemaMismatch):
        told = with_rows(refused, failed.not_written, sent=False)
        told.perhaps_written = failed.perhaps_written
        return told
    return SealedShard(
        f"shard {shard} is sealed by a reshard, and the new shards do not take these rows as they"
        f" are ({refused}). Open a new writer, and put them through it",
        not_written=failed.not_written,
        perhaps_written=failed.perhaps_written,
    )


def _named(shard: UUID, error: WeirError) -> str:
    """The error with its shard, which most name themselves."""
    return str(error) if str(shard) in str(error) else f"shard {shard}: {error}"


def is_of_interrupts(error: WeirError) -> bool:
    """True when the error holds nothing but rows of calls that were interrupted before a writer had
    them."""
    errors = error.failures.values() if isinstance(error, PartialWrite) else [error]
    return all(isinstance(each, Interrupted) for each in errors)


def _count(parts: Iterable[Part]) -> int:
    return sum(batch.num_rows for part in parts for batch in part.rows)


def _ours(error: Exception, rows: list[pa.RecordBatch], *, is_taken: bool = False) -> WeirError:
    """The error with the call's rows; `UnknownOutcome` when the shard we lost may hold some.

    Those must not go to its heirs as well: each batch takes effect once. `is_taken`: the shard's
    writer had the rows, so an error that tells nothing of them leaves it open what they became.
    """
    error = error if isinstance(error, WeirError) else internal(error)
    if not error.unacknowledged:
        if is_taken:
            error.perhaps_written = rows
        else:
            error.not_written = rows
    if isinstance(error, FencedError) and error.maybe_written:
        unknown = UnknownOutcome(
            f"{error} Rows in `perhaps_written` were in flight and may be in the table: look for"
            " them before you put them again.",
            not_written=error.not_written,
            perhaps_written=error.perhaps_written,
        )
        unknown.__cause__ = error
        return unknown
    return error
