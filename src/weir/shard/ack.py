"""The receipt of a put."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from weir.errors import FencedError, UnknownOutcome, WeirError, WriterClosed
from weir.types import Position

if TYPE_CHECKING:
    import pyarrow as pa

    from weir.env import Lock
    from weir.shard.group import GroupCommit
    from weir.types import Generation

DoneCallback = Callable[["Ack"], None]


class Ack:
    """One put on its way to the log: `done`, `wait()`, and then its `position`.

    Made by `ShardWriter.put`. Safe to use from any thread.
    """

    __slots__ = (
        "_group",
        "batches",
        "callbacks",
        "done",
        "enqueued_at",
        "error",
        "gate",
        "generation",
        "nbytes",
        "position",
        "rows",
        "tokens",
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
        self.gate: Lock | None = None
        self.woken = False
        self.error: WeirError | None = None
        self.callbacks: list[DoneCallback] = []
        self.batches = batches
        self.rows = rows
        self.nbytes = nbytes
        self.tokens = tuple(tokens)
        self.generation: Generation | None = None
        self.enqueued_at = 0.0
        self.done = group is None
        """True once the rows are durable, or never will be through this writer (then `wait`
        raises)."""
        self.position: Position | None = None
        """The log position that holds the rows; None until durable, and for a put of no rows."""

    def wait(self, timeout: float | None = None) -> Position | None:
        """Return the position when the rows are durable.

        Raises what ended the writer (`FencedError`, `UnknownOutcome`, ... with these rows as
        `.unacknowledged`), or `TimeoutError` when `timeout` seconds passed; the put then goes on
        and may be waited for again.
        """
        if not self.done and self._group is not None:
            self._group.wait(self, timeout)
        if self.error is not None:
            raise self.error
        return self.position

    def add_done_callback(self, callback: DoneCallback) -> None:
        """Call `callback(self)` once done, from the thread that finished it; at once if it is
        done."""
        if self._group is None or not self._group.add_callback(self, callback):
            callback(self)

    def __repr__(self) -> str:
        state = "failed" if self.error else ("durable" if self.done else "waiting")
        return f"Ack({state}, rows={self.rows}, position={self.position})"


def internal(error: BaseException) -> WeirError:
    """An error of another library, or a bug, as one of ours."""
    wrapped = WeirError(f"a background write failed: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


def run_callbacks(ack: Ack) -> None:
    """Tell those who asked to be told; never called with the lock held."""
    for callback in ack.callbacks:
        callback(ack)
    ack.callbacks.clear()


def retold(
    error: WeirError, batches: Sequence[pa.RecordBatch], *, on_the_way: bool = False
) -> WeirError:
    """The error as told to one caller, with that caller's rows."""
    if isinstance(error, FencedError):
        return FencedError(
            str(error),
            epoch=error.epoch,
            fenced_by=error.fenced_by,
            unacknowledged=batches,
            maybe_written=on_the_way,
        )
    if isinstance(error, UnknownOutcome):
        return UnknownOutcome(str(error), unacknowledged=batches)
    closed = WriterClosed(f"the writer stopped: {error}", unacknowledged=batches)
    closed.__cause__ = error
    return closed


def wait_for_last(
    last: Ack | None, ended: Callable[[], WeirError], timeout: float | None = None
) -> None:
    """Return when the last rows handed over are durable; the error tells of all rows that are left,
    not of theirs alone (M-8)."""
    try:
        if last is not None:
            last.wait(timeout)
    except WeirError as error:
        told = ended()
        if isinstance(error, UnknownOutcome):
            left = getattr(told, "unacknowledged", ())
            told = UnknownOutcome(str(error), unacknowledged=left)
        raise told from error.__cause__


def unsettled(name: str, error: WeirError, batches: Sequence[pa.RecordBatch]) -> UnknownOutcome:
    """What rows are told whose entry is on its way when the writer ends, and may still land
    (F-11)."""
    unknown = UnknownOutcome(
        f"{name}: the writer stopped while these rows were being written, and only a replay can "
        f"tell whether they are durable: {error}",
        unacknowledged=batches,
    )
    unknown.__cause__ = error
    return unknown


def awaitable(ack: Ack) -> asyncio.Future[None]:
    """A future of the running loop that is done when `ack` is; the outcome is the ack's."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def finish() -> None:
        if not future.done():
            future.set_result(None)

    def wake(_: Ack) -> None:
        loop.call_soon_threadsafe(finish)

    ack.add_done_callback(wake)
    return future
