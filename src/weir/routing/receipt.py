"""The receipt of a put through a table's writer: one ack for each shard concerned."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from uuid import UUID

from weir.durations import deadline_after
from weir.errors import WeirError
from weir.routing.core import Core
from weir.routing.fan_out import Outcomes
from weir.routing.unheard import Unheard
from weir.shard.ack import Ack, finish_all
from weir.types import Position


class Receipt:
    """One put on its way to the logs of its shards: `done`, `wait()`, and then its `positions`.

    Made by `TableWriter.put`. Safe to use from any thread. A part that a reshard sent on is told of
    at the shards that took it.
    """

    __slots__ = ("_acks", "_core", "_unheard")

    def __init__(self, core: Core, unheard: Unheard, acks: Sequence[tuple[UUID, Ack]]) -> None:
        self._core = core
        self._unheard = unheard
        self._acks = acks

    @property
    def rows(self) -> int:
        """Rows of the put."""
        return sum(ack.rows for _, ack in self._acks)

    @property
    def done(self) -> bool:
        """True once each shard's part is durable, or never will be (then `wait` raises)."""
        return all(ack.done for _, ack in _at_last(self._acks))

    @property
    def positions(self) -> dict[UUID, Position]:
        """The log position of each shard's part, for the parts that are durable."""
        held = ((shard, ack.position) for shard, ack in _at_last(self._acks))
        return {shard: position for shard, position in held if position is not None}

    def wait(self, timeout: float | None = None) -> dict[UUID, Position]:
        """Return the positions when every part is durable.

        Raises the shard's own error when the rows went to one shard, else `PartialWrite`; or
        `TimeoutError` when `timeout` seconds passed: the put then continues, and can be waited for
        again.
        """
        clock = self._core.env.clock
        until = deadline_after(timeout, clock)
        outcomes: Outcomes[Position | None] = Outcomes(self._core.uri)
        waiting = list(self._acks)
        try:
            while waiting:
                shard, ack = waiting.pop(0)
                left = None if until is None else max(0.0, until - clock.boottime())
                with outcomes.of(shard):
                    heirs = _wait(ack, left)
                    waiting += heirs
                    if not heirs:
                        outcomes.results[shard] = ack.position
            outcomes.report()
        except Exception:
            raise
        except BaseException:
            outcomes.keep_failures(self._unheard)
            raise
        return self.positions

    async def settle(self) -> None:
        """Return when it is done, without blocking the event loop; `wait` tells the outcome."""
        loop = asyncio.get_running_loop()
        for _, ack in self._acks:
            ack.attended = True
        try:
            for _, ack in self._acks:
                done: asyncio.Future[None] = loop.create_future()
                ack.add_done_callback(partial(_wake, done))
                await done
                if ack.heirs is not None:
                    moved = await loop.run_in_executor(None, ack.heirs.parts)
                    await Receipt(self._core, self._unheard, moved or ()).settle()
        except BaseException:
            for _, ack in self._acks:
                ack.attended = False  # cancelled: closing the writer reports the rows
            raise

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError(
            f"{self._core.uri}: a receipt cannot be pickled, because it waits for its writer; pass"
            " its positions"
        )

    def __repr__(self) -> str:
        state = "done" if self.done else "waiting"
        return f"Receipt({state}, rows={self.rows}, shards={len(self._acks)})"


def _wait(ack: Ack, timeout: float | None) -> Sequence[tuple[UUID, Ack]]:
    """Wait for the ack; returns the acks at the heirs if its rows were sent there."""
    try:
        ack.wait(timeout)
    except WeirError:
        moved = None if ack.heirs is None else ack.heirs.parts(timeout)
        if moved is None:
            ack.attended = True  # whoever took the rows over may have given them back
            raise
        return moved
    return ()


def _at_last(acks: Sequence[tuple[UUID, Ack]]) -> Iterator[tuple[UUID, Ack]]:
    """The acks, those that moved replaced by the ones at their heirs."""
    for shard, ack in acks:
        moved = None if ack.heirs is None else ack.heirs.known
        if moved is None:
            yield shard, ack
        else:
            yield from _at_last(moved)


def _wake(done: asyncio.Future[None], _: Ack) -> None:
    with contextlib.suppress(RuntimeError):  # the loop was closed: no task is left to wake
        done.get_loop().call_soon_threadsafe(finish_all, [done])
