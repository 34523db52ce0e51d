"""The receipt of a put through a table's writer: one ack for each shard concerned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from uuid import UUID

from weir.durations import deadline_after, seconds_until
from weir.errors import WeirError
from weir.routing.fan_out import Outcomes
from weir.routing.open_writers import OpenWriters
from weir.shard.ack import Ack, await_done
from weir.types import Position


class Receipt:
    """One put on its way to the logs of its shards: `done`, `wait()`, and then its `positions`.

    Made by `TableWriter.put`. Safe to use from any thread. A part that a reshard sent on is told of
    at the shards that took it.
    """

    __slots__ = ("_acks", "_writers")

    def __init__(self, writers: OpenWriters, acks: Sequence[tuple[UUID, Ack]]) -> None:
        self._writers = writers
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
        """Return the positions when every part is durable; after a reshard, at the new shards.

        Raises the shard's own error when the rows went to one shard, else `PartialWrite`; or
        `TimeoutError` when `timeout` seconds passed: the put then continues, and can be waited for
        again.
        """
        clock = self._writers.core.env.clock
        until = deadline_after(timeout, clock)

        left = partial(seconds_until, until, clock)
        outcomes: Outcomes[Position | None] = Outcomes(self._writers.core.uri)
        acks, heard = list(self._acks), list[Ack]()
        try:
            for shard, ack in acks:
                with outcomes.of(shard):
                    heirs = self._wait(shard, ack, left, heard)
                    acks += heirs
                    if not heirs:
                        outcomes.results[shard] = ack.position
            outcomes.report()
        except Exception:
            raise
        except BaseException:
            for ack in heard:
                ack.callers -= 1  # F-16: closing the writer sends the rows on, or reports them
            raise
        return self.positions

    def _wait(
        self, shard: UUID, ack: Ack, left: Callable[[], float | None], heard: list[Ack]
    ) -> Sequence[tuple[UUID, Ack]]:
        """Wait for the ack; returns the acks at the heirs if its rows were sent there (C-11). An
        ack that failed is added to `heard`."""
        try:
            ack.wait(left())
            return ()
        except WeirError as error:
            failed = error
            heard.append(ack)  # F-16: no call between the error and this
        moved = _heirs(ack, left)
        if moved is None:
            self._writers.send_on(shard, ack, failed, left())
            moved = _heirs(ack, left)
        while moved is None:
            if ack.committer is None or ack.committer.ending.hand_back(ack):
                raise ack.error or failed
            moved = _heirs(ack, left)  # another thread waits too, and sends them on
        return moved

    async def settle(self) -> None:
        """`wait` for a task of a writer that writes its log at once; blocks no event loop."""
        held: list[Ack] = []
        try:
            for _, ack in self._acks:
                ack.callers += 1  # F-16: no call between this and the next line
                held.append(ack)
            for _, ack in self._acks:
                await await_done(ack)
        except BaseException:
            for ack in held:
                ack.callers -= 1  # cancelled: closing the writer reports the rows
            raise
        if any(ack.error is not None for _, ack in self._acks):
            await self._writers.unheard.in_thread(self.wait, must_run=True)

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError(
            f"{self._writers.core.uri}: a receipt cannot be pickled, because it waits for its"
            " writer; pass its positions"
        )

    def __repr__(self) -> str:
        state = "done" if self.done else "waiting"
        return f"Receipt({state}, rows={self.rows}, shards={len(self._acks)})"


def _heirs(ack: Ack, left: Callable[[], float | None]) -> Sequence[tuple[UUID, Ack]] | None:
    """The acks at the heirs, once they are known; None: its rows were not sent on."""
    return None if ack.heirs is None else ack.heirs.parts(left())


def _at_last(acks: Sequence[tuple[UUID, Ack]]) -> Iterator[tuple[UUID, Ack]]:
    """The acks, those that moved replaced by the ones at their heirs."""
    for shard, ack in acks:
        moved = None if ack.heirs is None else ack.heirs.known
        if moved is None:
            yield shard, ack
        else:
            yield from _at_last(moved)
