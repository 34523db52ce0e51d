"""Puts from threads and tasks, from the rows of a caller to its receipt."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pyarrow as pa

from weir.errors import Backpressure, WeirError
from weir.log.entry import Token
from weir.log.intake import Intake
from weir.log.small_put import as_small_put
from weir.shard.accept import Acceptor
from weir.shard.ack import Ack
from weir.shard.group import GroupCommit
from weir.shard.state import WriterState
from weir.types import Rows


class Puts:
    """The path into one writer. The leader shapes the rows of small puts that wait."""

    def __init__(
        self, state: WriterState, intake: Intake, acceptor: Acceptor, group: GroupCommit
    ) -> None:
        self._state = state
        self._intake = intake
        self._acceptor = acceptor
        self._group = group

    def put(self, data: Rows, *, wait: bool, timeout: float | None) -> Ack:
        """Put rows in any form."""
        state = self._state
        # Shaping the rows of several puts together is worth it from two puts on.
        is_lone = state.was_single_put and not (state.leading or state.queue or state.unshaped)
        ack = self._unshaped_ack(data) if wait and not is_lone else None
        if ack is None:
            return self.put_shaped(self._intake.rows(data), wait=wait, timeout=timeout)
        try:
            self._acceptor.accept(ack, timeout)
        except WeirError as refused:
            raise self._with_rows(refused, data) from None
        ack.wait(timeout)
        return ack

    def put_shaped(
        self, batches: Sequence[pa.RecordBatch], *, wait: bool, timeout: float | None
    ) -> Ack:
        """Put rows that an `Intake` of the same schema has shaped."""
        ack = self.accept(batches, timeout, claimed=wait)
        if wait:
            ack.wait(timeout)
        elif not ack.done:
            self._group.nudge()
        return ack

    def accept(
        self,
        batches: Sequence[pa.RecordBatch],
        timeout: float | None = None,
        tokens: Sequence[Token] = (),
        *,
        claimed: bool = False,
    ) -> Ack:
        """Return when the rows are accepted; the caller has to wait for them or nudge the pump."""
        ack = self._ack(batches, tokens)
        ack.claimed = claimed
        if not ack.done:
            self._acceptor.accept(ack, timeout)
        return ack

    def settle(self) -> None:
        """Accept, or refuse, the rows that wait to be shaped."""
        self._acceptor.shape()

    async def aput(self, data: Rows) -> Ack:
        """`put` for a task, which waits without blocking its loop."""
        ack = self._unshaped_ack(data)
        if ack is None:
            ack = self._ack(self._intake.rows(data))
            if ack.done:
                return ack
        loop = asyncio.get_running_loop()
        ack.claimed = True
        done = ack.future = loop.create_future()
        try:
            while (room := self._acceptor.offer(ack, loop)) is not None:
                await room
        except WeirError as refused:
            rows = None if ack.unshaped is None else ack.unshaped.data
            raise self._with_rows(refused, rows) from None
        try:
            if not self._group.is_attended:
                self._group.nudge()
            await done
        except BaseException:
            # Cancelled: the put goes on, with the rows as they are now; close reports a failure.
            self._acceptor.shape()
            ack.claimed = False
            raise
        if ack.error is not None:
            raise ack.error
        return ack

    def _with_rows(self, refused: WeirError, data: Rows | None) -> WeirError:
        """The error of a writer that has ended, with the rows that were not shaped yet."""
        if data is None or isinstance(refused, Backpressure):
            return refused
        return self._state.ending.refused(self._intake.rows(data))

    def _unshaped_ack(self, data: Rows) -> Ack | None:
        """The ack of a small put to an open writer, with its rows unshaped; else None."""
        if self._state.closing or self._state.ending.is_over:
            return None
        put = as_small_put(data)
        if put is None:
            return None
        ack = Ack.waiting(self._group, put)
        ack.claimed = True
        return ack

    def _ack(self, batches: Sequence[pa.RecordBatch], tokens: Sequence[Token] = ()) -> Ack:
        state = self._state
        if state.closing or state.ending.is_over:
            raise state.ending.refused(batches)
        rows = sum([batch.num_rows for batch in batches])
        if not rows:
            return Ack(None, (), rows=0, nbytes=0)
        nbytes = self._intake.fit(batches, state.env.limits)
        return Ack(self._group, batches, rows=rows, nbytes=nbytes, tokens=tokens)
