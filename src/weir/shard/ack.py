"""The receipt of a put."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from weir.format.wal_entry import Fill
from weir.types import Position

if TYPE_CHECKING:
    import pyarrow as pa

    from weir.env import Lock
    from weir.log.small_put import Shaped, SmallPut
    from weir.shard.group import GroupCommit
    from weir.types import Generation

logger = logging.getLogger("weir.shard")

DoneCallback = Callable[["Ack"], None]


class Ack:
    """One put on its way to the log: `done`, `wait()`, and then its `position`.

    Made by `ShardWriter.put`. Safe to use from any thread.
    """

    __slots__ = (
        "_batches",
        "_group",
        "callbacks",
        "claimed",
        "done",
        "enqueued_at",
        "error",
        "future",
        "gate",
        "generation",
        "nbytes",
        "position",
        "rows",
        "shaped",
        "tokens",
        "unshaped",
        "woken",
    )

    def __init__(
        self,
        group: GroupCommit | None,
        batches: Sequence[pa.RecordBatch],
        *,
        rows: int,
        nbytes: int,
        tokens: Sequence[tuple[str, int]] = (),
    ) -> None:
        self._group = group
        self._batches = batches
        self.unshaped: SmallPut | None = None
        """The rows as the caller passed them, until the leader has shaped them."""
        self.shaped: Shaped | None = None
        """The rows, as a part of a batch shared with other puts."""
        self.claimed = False
        """True when a caller waits for the outcome or has got it; a failing close reports the rows
        of unclaimed acks (F-16)."""
        self.gate: Lock | None = None
        self.woken = False
        self.error: Exception | None = None
        self.callbacks: list[DoneCallback] = []
        self.future: asyncio.Future[None] | None = None
        """Awaited by a task; carries no result, the outcome is in the ack."""
        self.rows = rows
        self.nbytes = nbytes
        self.tokens = tuple(tokens) if tokens else ()
        self.generation: Generation | None = None
        self.enqueued_at = 0.0
        self.done = group is None
        """True once the rows are durable, or never will be through this writer (then `wait`
        raises)."""
        self.position: Position | None = None
        """The log position that holds the rows; None until durable, and for a put of no rows."""

    @classmethod
    def waiting(cls, group: GroupCommit, put: SmallPut) -> Ack:
        """A put whose rows are shaped by the leader."""
        ack = cls(group, (), rows=put.rows, nbytes=put.nbytes)
        ack.unshaped = put
        return ack

    @property
    def batches(self) -> Sequence[pa.RecordBatch]:
        """The rows in WAL shape; none before they are shaped."""
        return self._batches if self.shaped is None else (self.shaped.alone(),)

    @property
    def is_settled(self) -> bool:
        """True once it is done and the thread woken for it, if any, has run."""
        return self.done and not self.woken

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
        self.claimed = True
        try:
            if not self.done and self._group is not None:
                self._group.wait(self, timeout)
        except TimeoutError:
            assert self._group is not None, "only a put on its way takes time"
            if self._group.unclaim(self):
                raise
        except BaseException:
            self.claimed = False
            raise
        if self.error is not None:
            raise self.error
        return self.position

    def see_through(self, timeout: float | None) -> None:
        """Wait up to `timeout` until the rows are written; another caller gets the outcome."""
        if not self.done and self._group is not None:
            with contextlib.suppress(TimeoutError):
                self._group.wait(self, timeout)

    def add_done_callback(self, callback: DoneCallback) -> None:
        """Call `callback(self)` once done, from the thread that finished it; immediately if it is
        done already."""
        if self._group is None or not self._group.add_callback(self, callback):
            self.callbacks.append(callback)
            run_callbacks([self])

    def __repr__(self) -> str:
        state = "failed" if self.error else ("durable" if self.done else "waiting")
        return f"Ack({state}, rows={self.rows}, position={self.position})"


def run_callbacks(acks: Sequence[Ack]) -> None:
    """Wake the tasks and run the callbacks of those acks; never called with the lock held.

    A callback that fails is logged: it stops neither the other callbacks nor the thread that runs
    it, which belongs to another caller (F-16).
    """
    _wake_tasks(acks)
    interrupt: KeyboardInterrupt | None = None
    for ack in acks:
        while ack.callbacks:
            try:
                ack.callbacks.pop(0)(ack)
            except KeyboardInterrupt as pressed:  # raised again below
                interrupt = pressed
            except BaseException:
                logger.exception("ack.callback.failed %r", ack)
    if interrupt is not None:
        raise interrupt


def _wake_tasks(acks: Sequence[Ack]) -> None:
    """Wake the waiting tasks, with one call into each event loop for all of its tasks."""
    loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for ack in acks:
        future = ack.future
        if future is not None:
            loop = future.get_loop()
            futures = loops.get(loop)
            if futures is None:
                loops[loop] = futures = []
            futures.append(future)
    for loop, futures in loops.items():
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits in it
            loop.call_soon_threadsafe(finish_all, futures)


def finish_all(futures: Sequence[asyncio.Future[None]]) -> None:
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
