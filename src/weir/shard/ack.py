"""The receipt of a put."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from weir.errors import WeirError
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
        "_callbacks",
        "_error",
        "_gate",
        "_group",
        "batches",
        "done",
        "enqueued_at",
        "generation",
        "nbytes",
        "position",
        "rows",
        "tokens",
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
        self._gate: Lock | None = None
        self._error: WeirError | None = None
        self._callbacks: list[DoneCallback] = []
        self.batches = batches
        self.rows = rows
        self.nbytes = nbytes
        self.tokens = tuple(tokens)
        self.generation: Generation | None = None
        self.enqueued_at = 0.0
        self.done = group is None
        """True once the rows are durable, or never will be through this writer (then `wait` raises)."""
        self.position: Position | None = None
        """The log position that holds the rows; None until durable, and for a put of no rows."""

    def wait(self, timeout: float | None = None) -> Position | None:
        """Return the position when the rows are durable.

        Raises what ended the writer (`FencedError`, `UnknownOutcome`, ... with these rows as
        `.unacknowledged`), or `TimeoutError` when `timeout` seconds passed; the put then goes on and may be
        waited for again.
        """
        if not self.done and self._group is not None:
            self._group.wait(self, timeout)
        if self._error is not None:
            raise self._error
        return self.position

    def add_done_callback(self, callback: DoneCallback) -> None:
        """Call `callback(self)` once done, from the thread that finished it; at once if it is done."""
        if self._group is None or not self._group.add_callback(self, callback):
            callback(self)

    def __repr__(self) -> str:
        state = "failed" if self._error else ("durable" if self.done else "waiting")
        return f"Ack({state}, rows={self.rows}, position={self.position})"
