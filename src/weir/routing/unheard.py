"""What calls of a table's writer found out after their callers had gone.

A caller that is interrupted, or whose task is cancelled, hears no error, while threads go on with
its call. What they raise is kept here, with its rows, and the next flush or close of the writer
raises it. Rows are kept by whoever knows that nobody else will report them; this is the one place
where they are.

Keeps
  F-16 rows that no call waits for are handed back once, by the first flush or close that fails
"""

from __future__ import annotations

import asyncio
import contextvars
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from threading import get_ident
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from uuid import UUID

import pyarrow as pa

from weir.env import Latch, Threads
from weir.errors import Interrupted, KeyConflict, PartialWrite, WeirError
from weir.format.sharding import Router
from weir.log.entry import Token
from weir.routing.core import Core
from weir.shard.ack import Ack
from weir.shard.ending import with_rows

T = TypeVar("T")


class Kept(NamedTuple):
    """An error with rows that no caller has heard."""

    shard: UUID
    error: WeirError
    batch: Token | None
    """The batch of `put_once` that its rows are of: once that is in, none of them is left (P-2)."""


Errors = list[Kept]


class Holder(Protocol):
    """Whoever raises the errors that were kept."""

    heard: Errors


class Unheard:
    """The errors of one table's writer that no caller has heard. Safe to share."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._lock = core.env.threads.lock()
        self._errors: Errors = []
        self._under_way: list[tuple[int | None, Latch]] = []
        """Writes that go on though nobody waits for them, by thread; each latch opens when one has
        ended, and what it raised is kept."""
        self._reports: dict[Call[Any], None] = {}
        """Flushes and closes of tasks, until their outcome is heard or kept."""

    # -- errors ----------------------------------------------------------------------------------

    def keep(
        self, error: BaseException, shard: UUID | None = None, batch: Token | None = None
    ) -> None:
        """Let the next flush or close raise the error, if it holds rows; `shard` is where they
        belong, None: the error or the rows tell. `batch`: see `Kept`.

        What a decision refused (`KeyConflict`) is no row that was on its way.
        """
        if not isinstance(error, WeirError) or isinstance(error, KeyConflict):
            return
        found = [(shard, error)] if shard is not None else list(self._by_shard(error))
        kept = [Kept(at, each, batch) for at, each in found if each.unacknowledged]
        with self._lock:
            self._errors += kept

    def left(
        self,
        shard: UUID | None,
        rows: list[pa.RecordBatch],
        taken: Sequence[Ack] = (),
        batch: Token | None = None,
    ) -> bool:
        """The call of those rows was interrupted: keep them, and return True, unless a writer has
        them already, which made those puts of them. Nobody else decides it (F-16)."""
        is_left = not any(ack.is_taken for ack in taken)
        if is_left:
            self.keep(unbegun(self._core.uri, shard, rows), shard, batch)
        return is_left

    def forget(self, batch: Token) -> None:
        """That batch of `put_once` was sent again and is in: none of its rows is left (P-2)."""
        with self._lock:
            self._errors = [kept for kept in self._errors if kept.batch != batch]

    def give(self, holder: Holder) -> None:
        """Give the errors to `holder`, which raises them, or keeps them again."""
        with self._lock:
            # F-16: two fields change, and no interrupt can come between. A result could be lost.
            holder.heard, self._errors = self._errors, []

    def _by_shard(self, error: WeirError) -> Iterator[tuple[UUID, WeirError]]:
        if isinstance(error, PartialWrite):
            for shard, part in error.failures.items():
                if not isinstance(part, KeyConflict):
                    yield shard, part
            return
        unsent, sent = self._split(error.not_written), self._split(error.perhaps_written)
        for shard in {**sent, **unsent}:
            part = copy.copy(error)
            part.not_written = unsent.get(shard, [])
            part.perhaps_written = sent.get(shard, [])
            yield shard, part

    def _split(self, batches: Sequence[pa.RecordBatch]) -> dict[UUID, list[pa.RecordBatch]]:
        record = self._core.record
        router = Router(record.sharding)
        parts: dict[UUID, list[pa.RecordBatch]] = {}
        for batch in batches:
            for value, rows in router.split(batch):
                parts.setdefault(self._core.shard_of(value, record), []).append(rows)
        return parts

    # -- work that goes on -----------------------------------------------------------------------

    def goes_on(self, by: int | None, settled: Latch) -> None:
        """That thread goes on with a write that nobody waits for; `close` waits until the latch
        opens."""
        with self._lock:
            self._under_way = [one for one in self._under_way if not one[1].is_open]
            self._under_way.append((by, settled))

    def settle(self) -> None:
        """Return when the writes that nobody waits for are over, and what they raised is kept."""
        with self._lock:
            under_way = list(self._under_way)
        for by, settled in under_way:
            if by != get_ident():  # else it runs a callback, which closes the writer
                settled.wait()

    # -- tasks -----------------------------------------------------------------------------------

    async def in_thread(
        self, call: Callable[[], T], *, must_run: bool = False, batch: Token | None = None
    ) -> T:
        """Run a call in a thread of the loop's pool: its result, or what it raises. If the task is
        cancelled, a call that has begun, or `must_run`, goes on, and what it raises is kept."""
        threads = self._core.env.threads
        return await self._run(Call(self, threads, call, must_run=must_run, batch=batch))

    async def report(self, call: Callable[[], None], *, closes: bool = False) -> None:
        """Run a flush or close in a thread. It also raises what an earlier one found whose task was
        cancelled; one that `closes` waits for every earlier one, as nobody may ask again."""
        mine = Call(self, self._core.env.threads, call, must_run=True, reports=True)
        with self._lock:
            earlier = list(self._reports)
            self._reports[mine] = None
        own: WeirError | None = None
        try:
            await self._run(mine)
        except WeirError as error:
            own = error
        before = [one for one in earlier if not one.settled.is_open and (one.is_left or closes)]
        if own is not None:
            if not before and not self._errors:
                raise own
            self.keep(own)  # while this task waits: it may be cancelled as well
        if before:
            await asyncio.to_thread(lambda: [one.settled.wait() for one in before])
        self._raise(own)

    def _raise(self, own: WeirError | None) -> None:
        """Raise one error for all that were kept, or `own` if none was."""
        with self._lock:  # in the thread of the loop
            kept, self._errors = self._errors, []
        failures = joined({}, kept)
        if len(failures) > 1:
            texts = "; ".join(map(str, failures.values()))
            count = f"{len(failures)} shards failed"
            raise PartialWrite(f"{self._core.uri}: {count}: {texts}", failures=failures)
        for error in failures.values():
            raise error
        if own is not None:
            raise with_rows(own, [])  # another flush has just reported its rows, if there were any

    async def _run(self, call: Call[T]) -> T:
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(None, partial(context.run, call.run))
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            call.leave()
            raise
        return call.heard()

    def settled(self, call: Call[T]) -> None:
        """The outcome of a call is heard or kept."""
        with self._lock:
            self._reports.pop(call, None)


class Call(Generic[T]):
    """One call of a task, in a thread: its outcome waits here for the task, or is kept."""

    def __init__(
        self,
        unheard: Unheard,
        threads: Threads,
        call: Callable[[], T],
        *,
        must_run: bool,
        reports: bool = False,
        batch: Token | None = None,
    ) -> None:
        self.by: int | None = None
        self.is_left = False
        self.settled = Latch(threads)
        self._unheard = unheard
        self._call = call
        self._must_run = must_run
        self._is_report = reports
        self._batch = batch
        self._lock = threads.lock()
        self._is_over = False
        self._result: list[T] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        """Make the call, in a thread."""
        with self._lock:
            if self.is_left and not self._must_run:
                return
            self.by = get_ident()
        try:
            self._result.append(self._call())
        except BaseException as error:  # noqa: BLE001  raised by `heard`, or kept
            self._error = error
        with self._lock:
            self._is_over = True
            if not self.is_left:
                return
        self._keep()

    def heard(self) -> T:
        """The outcome, for the task."""
        self._settle()
        if self._error is not None:
            raise self._error
        return self._result[0]

    def leave(self) -> None:
        """The task was cancelled."""
        with self._lock:
            self.is_left = True
            is_over, never_runs = self._is_over, self.by is None and not self._must_run
        if is_over:
            self._keep()
        elif never_runs:
            self._settle()
        elif not self._is_report:
            self._unheard.goes_on(self.by, self.settled)

    def _keep(self) -> None:
        if self._error is not None:
            self._unheard.keep(self._error, batch=self._batch)
        self._settle()

    def _settle(self) -> None:
        self._unheard.settled(self)
        self.settled.open()


def unbegun(uri: str, shard: UUID | None, rows: list[pa.RecordBatch]) -> Interrupted:
    """The error of rows that no shard took before their caller was interrupted."""
    taker = "a shard took its rows" if shard is None else f"shard {shard} took its part"
    text = f"{uri}: a call was interrupted before {taker}: they are not written; put them again"
    return Interrupted(text, not_written=rows)


def joined(failures: Mapping[UUID, WeirError], more: Errors) -> dict[UUID, WeirError]:
    """The errors of both, one for each shard."""
    merged = dict(failures)
    for kept in more:
        merged[kept.shard] = both(merged.get(kept.shard), kept.error)
    return merged


def both(error: WeirError | None, other: WeirError) -> WeirError:
    """One error of a shard for two, with the rows of both: the one that knows of rows which may be
    written, as only that one says so."""
    if error is None:
        return other
    first, second = (other, error) if other.maybe_written else (error, other)
    both = copy.copy(first)
    both.not_written = [*error.not_written, *other.not_written]
    both.perhaps_written = [*error.perhaps_written, *other.perhaps_written]
    if str(first) != str(second):
        both.add_note(f"also: {second}")
    return both
