"""The receipt of a put."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from weir.errors import Backpressure
from weir.types import Position

if TYPE_CHECKING:
    import pyarrow as pa

    from weir.env import Lock
    from weir.errors import WeirError
    from weir.shard.group import GroupCommit
    from weir.types import Generation

log = logging.getLogger("weir.shard")

DoneCallback = Callable[["Ack"], None]


class Ack:
    """One put on its way to the log: `done`, `wait()`, and then its `position`.

    Made by `ShardWriter.put`. Safe to use from any thread.
    """

    __slots__ = (
        "_group",
        "batches",
        "callbacks",
        "claimed",
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
        self.claimed = False
        """True when a caller waits for the outcome or has heard it; a failing close tells of the
        others (F-16)."""
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
        self.claimed = True
        try:
            if not self.done and self._group is not None:
                self._group.wait(self, timeout)
        except BaseException:
            self.claimed = False
            raise
        if self.error is not None:
            raise self.error
        return self.position

    def add_done_callback(self, callback: DoneCallback) -> None:
        """Call `callback(self)` once done, from the thread that finished it; at once if it is
        done."""
        if self._group is None or not self._group.add_callback(self, callback):
            self.callbacks.append(callback)
            run_callbacks([self])

    def __repr__(self) -> str:
        state = "failed" if self.error else ("durable" if self.done else "waiting")
        return f"Ack({state}, rows={self.rows}, position={self.position})"


def run_callbacks(acks: Sequence[Ack]) -> None:
    """Tell those who asked to be told; never called with the lock held.

    A callback that fails is its owner's matter: it stops neither the others, nor the thread that
    runs it, which is somebody else's (F-16).
    """
    interrupt: KeyboardInterrupt | None = None
    for ack in acks:
        while ack.callbacks:
            try:
                ack.callbacks.pop(0)(ack)
            except KeyboardInterrupt as pressed:  # whoever runs in the foreground
                interrupt = pressed
            except BaseException:
                log.exception("ack.callback.failed %r", ack)
    if interrupt is not None:
        raise interrupt


async def put_and_await(put: Callable[[float | None], Ack], nudge: Callable[[], None]) -> Ack:
    """Put, waiting for room at most so long, and return when it is durable; the loop runs on."""
    try:
        ack = put(0.0)
    except Backpressure:
        ack = await asyncio.get_running_loop().run_in_executor(None, put, None)
    try:
        if not ack.done:
            done = awaitable(ack)
            nudge()
            await done
    except BaseException:
        ack.claimed = False  # cancelled: whoever closes the writer is told
        raise
    ack.wait()
    return ack


def awaitable(ack: Ack) -> asyncio.Future[None]:
    """A future of the running loop that is done when `ack` is; the outcome is the ack's."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def finish() -> None:
        if not future.done():
            future.set_result(None)

    def wake(_: Ack) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody is there to be told
            loop.call_soon_threadsafe(finish)

    ack.add_done_callback(wake)
    return future
