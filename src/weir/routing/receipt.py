"""The receipt of a put through a table's writer: one ack for each shard concerned."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial
from uuid import UUID

import pyarrow as pa

from weir.errors import FencedError, PartialWrite, UnknownOutcome, WeirError
from weir.shard.ack import Ack, finish_all
from weir.types import Position

Failures = dict[UUID, tuple[WeirError, list[pa.RecordBatch]]]
"""By shard: why its part failed, and the rows of that part."""


class Receipt:
    """One put on its way to the logs of its shards: `done`, `wait()`, and then its `positions`.

    Made by `TableWriter.put`. Safe to use from any thread.
    """

    __slots__ = ("_acks", "_uri")

    def __init__(self, uri: str, acks: Sequence[tuple[UUID, Ack]]) -> None:
        self._uri = uri
        self._acks = acks

    @property
    def rows(self) -> int:
        """Rows of the put."""
        return sum(ack.rows for _, ack in self._acks)

    @property
    def done(self) -> bool:
        """True once each shard's part is durable, or never will be (then `wait` raises)."""
        return all(ack.done for _, ack in self._acks)

    @property
    def positions(self) -> dict[UUID, Position]:
        """The log position of each shard's part, for the parts that are durable."""
        held = ((shard, ack.position) for shard, ack in self._acks)
        return {shard: position for shard, position in held if position is not None}

    def wait(self, timeout: float | None = None) -> dict[UUID, Position]:
        """Return the positions when every part is durable.

        Raises the shard's own error when the rows went to one shard, else `PartialWrite`; or
        `TimeoutError` when `timeout` seconds passed at a shard: the put then continues, and can
        be waited for again.
        """
        failures: Failures = {}
        for shard, ack in self._acks:
            try:
                ack.wait(timeout)
            except WeirError as error:
                failures[shard] = (error, error.unacknowledged)
        report(self._uri, failures, parts=len(self._acks))
        return self.positions

    async def settle(self) -> dict[UUID, WeirError]:
        """Return the errors by shard when it is done, without blocking the event loop."""
        loop = asyncio.get_running_loop()
        for _, ack in self._acks:
            ack.claimed = True
        try:
            for _, ack in self._acks:
                done: asyncio.Future[None] = loop.create_future()
                ack.add_done_callback(partial(_wake, done))
                await done
        except BaseException:
            for _, ack in self._acks:
                ack.claimed = False  # cancelled: closing the writer reports the rows
            raise
        errors = ((shard, ack.error) for shard, ack in self._acks)
        return {shard: error for shard, error in errors if isinstance(error, WeirError)}

    def __repr__(self) -> str:
        state = "done" if self.done else "waiting"
        return f"Receipt({state}, rows={self.rows}, shards={len(self._acks)})"


def _wake(done: asyncio.Future[None], _: Ack) -> None:
    with contextlib.suppress(RuntimeError):  # the loop was closed: no task is left to wake
        done.get_loop().call_soon_threadsafe(finish_all, [done])


def report(uri: str, failures: Failures, *, parts: int) -> None:
    """Raise an error for the failures among `parts` shards; return if there are none."""
    if not failures:
        return
    if parts == 1:
        raise next(iter(failures.values()))[0]
    rest = "" if len(failures) == parts else ", the others are done"
    raise PartialWrite(
        f"{uri}: {len(failures)} of {parts} shards failed{rest}: "
        + "; ".join(f"shard {shard}: {error}" for shard, (error, _) in failures.items()),
        failures={shard: error for shard, (error, _) in failures.items()},
    )


def settled(error: WeirError, rows: list[pa.RecordBatch]) -> WeirError:
    """The error with the call's rows; `UnknownOutcome` when the shard we lost may hold some.

    Those must not go to its heirs as well: each batch takes effect once.
    """
    if not error.unacknowledged:
        error.not_written = rows  # it failed before a writer had the rows: no shard was open yet
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
