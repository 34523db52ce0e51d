"""The receipt of a put, and the future of everything that waits for one.

Keeps
  F-16 an interrupt of one waiting thread leaves nothing behind that another thread waits for
  M-7  threads whose puts share an entry are woken one by one, each by the one before it: woken all
       at once, each would start on a processor only to block on the interpreter lock
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from weir.env import Latch
from weir.format.wal_entry import Fill
from weir.types import Position

if TYPE_CHECKING:
    from uuid import UUID

    import pyarrow as pa

    from weir.env import Env, Lock, Threads
    from weir.log.small_put import Shaped, SmallPut
    from weir.shard.commit import Committer
    from weir.shard.decide import Decision
    from weir.types import Generation

logger = logging.getLogger("weir.shard")

DoneCallback = Callable[["Ack"], None]
Taken = list["Ack"]
"""Where a writer notes each put that it makes of a caller's rows, before it can accept any: so a
caller that was interrupted knows whether the writer has them (`Ack.is_taken`)."""


class Heirs:
    """Where the rows of a put go that was taken over from a sealed shard (C-11), and how far they
    have come: whoever goes on after an interrupt puts no part twice (F-16)."""

    __slots__ = ("_told", "begun", "is_claimed", "known", "parts_taken", "plan")

    def __init__(self, threads: Threads) -> None:
        self._told = Latch(threads)
        self.known: Sequence[tuple[UUID, Ack]] | None = None
        """The parts, as far as they are known."""
        self.is_claimed = False
        """True once it is certain that no caller hands the rows back."""
        self.plan: dict[UUID, tuple[Any, list[pa.RecordBatch]]] | None = None
        """By shard: its value, and its rows."""
        self.begun: UUID | None = None
        """The shard whose part is being put, or was put last."""
        self.parts_taken: dict[UUID, Ack] = {}

    @property
    def is_told(self) -> bool:
        """True once it is known where the rows are."""
        return self._told.is_open

    @property
    def is_back(self) -> bool:
        """True when the rows stayed with their caller after all."""
        return self.is_told and self.known is None

    def moved(self, parts: Sequence[tuple[UUID, Ack]] | None) -> None:
        """The rows are on their way as `parts`, by shard; None: they stayed with their caller."""
        self.known = parts
        self._told.open()

    def parts(self, timeout: float | None = None) -> Sequence[tuple[UUID, Ack]] | None:
        """The parts, once they are known; raises `TimeoutError` when `timeout` seconds passed."""
        if not self._told.wait(timeout):
            raise TimeoutError(f"the rows were not moved to the new shards within {timeout} s")
        return self.known


class Ack:
    """One put on its way to the log: `done`, `wait()`, and then its `position`.

    Made by `ShardWriter.put`. Safe to use from any thread.
    """

    __slots__ = (
        "_batches",
        "_error",
        "callbacks",
        "callers",
        "committer",
        "decision",
        "done",
        "enqueued_at",
        "futures",
        "gate",
        "generation",
        "heirs",
        "is_accepted",
        "is_refused",
        "nbytes",
        "position",
        "rows",
        "shaped",
        "tokens",
        "unshaped",
        "waiters",
        "waits_for_room",
        "wakes",
    )

    def __init__(
        self,
        committer: Committer | None,
        batches: Sequence[pa.RecordBatch],
        *,
        rows: int,
        nbytes: int,
    ) -> None:
        self.committer = committer
        self._batches = batches
        self._error: Exception | None = None
        self.unshaped: SmallPut | None = None
        """The rows as the caller passed them, until the committing thread has shaped them."""
        self.shaped: Shaped | None = None
        """The rows, as a part of a batch shared with other puts."""
        self.decision: Decision | None = None
        """What the committing thread decides; its rows are then those of this put."""
        self.callers = 0
        """Callers that get the outcome, or have got it. Whoever leaves without it is counted no
        more: a flush or close that fails reports the rows of puts without any (F-16)."""
        self.heirs: Heirs | None = None
        """Where the rows went when the routing left the shard; the outcome is theirs."""
        self.gate: Lock | None = None
        """Where threads wait; released when it is done, or accepted if that is waited for."""
        self.waiters = 0
        """Threads that wait at the gate."""
        self.wakes: Lock | None = None
        """What the thread that waits here releases as soon as it runs: the gate of the next one, or
        that of the committing thread."""
        self.callbacks: list[DoneCallback] | None = None
        self.futures: list[asyncio.Future[None]] | None = None
        """Awaited by tasks; they carry no result, the outcome is in the ack."""
        self.rows = rows
        self.nbytes = nbytes
        self.tokens: tuple[tuple[str, int], ...] = ()
        self.generation: Generation | None = None
        """The generation of the rows, once they are booked."""
        self.enqueued_at = 0.0
        self.is_accepted = False
        """True once the rows are in the queue; before, they wait for room."""
        self.waits_for_room = False
        """Its caller waits until it is accepted, and no longer."""
        self.is_refused = False
        """The writer ended before the rows were sent: they are handed back as not written."""
        self.done = committer is None
        """True once the rows are durable, or never will be through this writer (then `wait`
        raises)."""
        self.position: Position | None = None
        """The log position that holds the rows; None until durable, and for a put of no rows."""

    @property
    def batches(self) -> Sequence[pa.RecordBatch]:
        """The rows in WAL shape; none while they are still to be decided, and once durable."""
        if self.shaped is not None:
            return (self.shaped.alone(),)
        if self.unshaped is not None and self.committer is not None:
            return self.committer.intake.rows(self.unshaped.data)
        return self._batches

    def drop_rows(self) -> None:
        """Let go of rows that are durable: a receipt that is kept does not keep them in memory."""
        self._batches, self.shaped, self.decision = (), None, None

    @property
    def is_taken(self) -> bool:
        """True when rows of it are logged, may be, or are on their way, or the writer reports them;
        False when it was not accepted, was withdrawn, or came to write nothing."""
        is_booked = self.generation is not None
        if not self.is_accepted:
            return False
        if self.decision is not None and self.done and not is_booked and not self.is_refused:
            return False  # withdrawn
        return self.rows > 0 or not (self.done or is_booked)

    def take_rows(
        self, batches: Sequence[pa.RecordBatch], shaped: Shaped | None, rows: int
    ) -> None:
        """Take the rows that were decided."""
        self._batches, self.shaped, self.rows = batches, shaped, rows

    @property
    def error(self) -> Exception | None:
        """Why the rows are not durable; None while they may become so."""
        if self._error is None and self.is_refused and self.committer is not None:
            self._error = self.committer.refusal_of(self)
        return self._error

    @error.setter
    def error(self, error: Exception | None) -> None:
        self._error = error

    @property
    def fill(self) -> Fill:
        """What the rows add to a generation when they are in batches of their own."""
        return Fill(self.rows, len(self._batches) if self.shaped is None else 1, self.nbytes)

    def wait(self, timeout: float | None = None) -> Position | None:
        """Return the position when the rows are durable.

        Raises what ended the writer (`FencedError`, `UnknownOutcome`, ... with these rows as
        `.unacknowledged`), or `TimeoutError` when `timeout` seconds passed; the put then goes on
        and may be waited for again.
        """
        if self.committer is not None:
            self.committer.wait(self, timeout)
        elif (error := self.error) is not None:
            self.callers += 1
            raise error
        return self.position

    def pass_gate(self, gate: Lock, timeout: float | None) -> bool:
        """Wait at the gate; False when `timeout` passed. Whoever runs first wakes the next thread,
        whatever ends its wait."""
        try:
            in_time = gate.acquire(True, -1 if timeout is None else max(0.0, timeout))
        finally:
            # F-16: no call of a Python function may stand between the wait and this release.
            wakes = self.wakes
            if wakes is not None:
                # Done, also if this wait ended in another way: `flush_wal` may wait for the same
                # ack as its putter, and nobody else opens the gate any more.
                try:  # noqa: SIM105  `suppress` would be such a call
                    gate.release()  # guard: F-16 test_waiters
                except RuntimeError:  # open already
                    pass
                self.wakes = None
                try:  # noqa: SIM105
                    wakes.release()
                except RuntimeError:  # released already: the committing thread lost patience
                    pass
        if in_time and wakes is None:
            release(gate)  # a turnstile
        return in_time

    def add_done_callback(self, callback: DoneCallback) -> None:
        """Call `callback(self)` once done, from the thread that finished it; immediately if it is
        done already."""
        if self.committer is None or not self.committer.add_callback(self, callback):
            self.call_when_done(callback)
            run_callbacks([self])

    def call_when_done(self, callback: DoneCallback) -> None:
        """Add a callback to those that `run_callbacks` calls."""
        if self.callbacks is None:  # most puts have none, and one list fewer to collect
            self.callbacks = []
        self.callbacks.append(callback)

    def __repr__(self) -> str:
        state = "durable" if self.done else "waiting"
        if self.is_refused or self._error is not None:
            state = "failed"
        return f"Ack({state}, rows={self.rows}, position={self.position})"


def see_through(ack: Ack, timeout: float | None = None) -> bool:
    """Wait up to `timeout` seconds until `ack` is done; another caller gets the outcome."""
    committer = ack.committer
    return ack.done or committer is None or committer.watch(ack, timeout)


async def await_done(ack: Ack) -> None:
    """`see_through` for a task, without a limit; blocks no event loop."""
    if ack.committer is not None and not ack.done:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if ack.committer.add_future(ack, done):
            await done


def take_back(ack: Ack) -> bool:
    """Take back a put whose call is over, wherever it ended; False if it was accepted, and goes on
    or is done."""
    committer = ack.committer
    return committer is not None and committer.take_back(ack)


def closed_gate(env: Env) -> Lock:
    """A gate that nobody passes before it is released."""
    gate = env.threads.lock()
    gate.acquire()
    return gate


def release(gate: Lock) -> None:
    """Open a gate that may be open already."""
    try:  # noqa: SIM105  several times as fast as `suppress`
        gate.release()
    except RuntimeError:
        pass


def run_callbacks(acks: Sequence[Ack]) -> None:
    """Wake the tasks and run the callbacks of those acks; never called with the lock held.

    A callback that fails is logged: it stops neither the other callbacks nor the thread that runs
    it, which belongs to another caller (F-16).
    """
    _wake_tasks(acks)
    interrupt: KeyboardInterrupt | None = None
    for ack in acks:
        callbacks = ack.callbacks
        while callbacks:
            try:
                callback = callbacks.pop(0)
            except IndexError:  # another thread took the last one
                break
            try:
                callback(ack)
            except KeyboardInterrupt as pressed:  # raised again below
                interrupt = pressed
            except BaseException:  # guard: F-16 test_outcomes
                where = "" if ack.committer is None else ack.committer.label
                logger.exception("ack.callback.failed %s %r", where, ack)
    if interrupt is not None:
        raise interrupt


def _wake_tasks(acks: Sequence[Ack]) -> None:
    """Wake the waiting tasks, with one call into each event loop for all of its tasks."""
    loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for ack in acks:
        for future in ack.futures or ():
            loop = future.get_loop()
            futures = loops.get(loop)
            if futures is None:
                loops[loop] = futures = []
            futures.append(future)
    for loop, futures in loops.items():
        # guard: F-16
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits in it
            loop.call_soon_threadsafe(_finish_all, futures)


def _finish_all(futures: Sequence[asyncio.Future[None]]) -> None:
    """Complete the futures; a cancelled one is done already."""
    for future in futures:
        if not future.done():
            future.set_result(None)


def rows_of(group: Sequence[Ack]) -> list[pa.RecordBatch]:
    """The rows of those puts in as few batches as possible: puts shaped together share one."""
    batches: list[pa.RecordBatch] = []
    first: Shaped | None = None
    rows = 0
    for ack in group:
        shaped = ack.shaped
        if (
            first
            and shaped
            and shaped.batch is first.batch
            and shaped.offset == first.offset + rows
        ):
            rows += shaped.rows
            continue
        if first is not None:
            batches.append(first.batch.slice(first.offset, rows))
        first, rows = shaped, shaped.rows if shaped else 0
        if shaped is None:
            batches.extend(ack.batches)
    if first is not None:
        batches.append(first.batch.slice(first.offset, rows))
    return batches
