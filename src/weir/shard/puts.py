"""Puts from threads and tasks, from the rows of a caller to its receipt."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from weir.errors import WeirError
from weir.log.intake import Intake
from weir.log.small_put import SmallPut, as_small_put
from weir.shard.ack import Ack, Taken
from weir.shard.commit import Committer
from weir.shard.state import WriterState
from weir.types import Rows

T = TypeVar("T")

Given = SmallPut | list[pa.RecordBatch]
"""Rows as they were read: few enough to be shaped together with those of other puts, or shaped."""


async def off_the_loop(convert: Callable[[Any], T], data: Any) -> T:
    """Convert rows in a thread: a loop that converts thousands of rows serves nobody else."""
    return await asyncio.get_running_loop().run_in_executor(None, convert, data)


class Puts:
    """The path into one writer. The committing thread shapes the rows of small puts that wait."""

    def __init__(self, state: WriterState, intake: Intake, committer: Committer) -> None:
        self._state = state
        self._intake = intake
        self._committer = committer

    def read(self, data: Rows, *, wait: bool) -> Given:
        """The rows in any form, for `put`. An interrupt in here leaves nothing behind: a generator
        or a stream that has begun cannot be read again."""
        # Shaping the rows of several puts together is worth it from two puts on.
        small = None if not wait or self._state.crowd.is_idle else as_small_put(data)
        return self._intake.rows(data) if small is None else small

    def put(
        self, given: Given, *, wait: bool, timeout: float | None, taken: Taken | None = None
    ) -> Ack:
        """Put rows that `read` has returned for the same `wait`."""
        if not isinstance(given, SmallPut):
            return self.put_shaped(given, wait=wait, timeout=timeout, taken=taken)
        ack = self._unshaped_ack(given, taken)
        self._committer.put(ack, wait=True, timeout=timeout)
        return ack

    def rows_of(self, given: Given) -> list[pa.RecordBatch]:
        """What was read, shaped."""
        return self._intake.rows(given.data) if isinstance(given, SmallPut) else given

    def put_shaped(
        self,
        batches: Sequence[pa.RecordBatch],
        *,
        wait: bool,
        timeout: float | None,
        taken: Taken | None = None,
        noted: Callable[[Ack], None] | None = None,
    ) -> Ack:
        """Put rows that an `Intake` of the same schema has shaped. `noted` is called with the ack
        before they are accepted."""
        ack = self._ack(batches, taken)
        if not ack.done:
            if noted is not None:
                noted(ack)
            self._committer.put(ack, wait=wait, timeout=timeout)
        return ack

    async def aput(self, data: Rows) -> Ack:
        """`put` for a task, which waits without blocking its loop."""
        put = as_small_put(data)
        if put is not None:
            return await self.asee_through(self.small_ack(put))
        return await self.aput_shaped(await off_the_loop(self._intake.rows, data))

    def small_ack(self, put: SmallPut) -> Ack:
        """The ack of rows that are few, which a task is about to put with `asee_through`."""
        if put.kind is None:
            return self._unshaped_ack(put)
        # Copied now: another task may write to its memory before a thread shapes it (M-9).
        return self._ack(self._intake.rows(put.data))

    def aput_shaped(
        self, batches: Sequence[pa.RecordBatch], taken: Taken | None = None
    ) -> Awaitable[Ack]:
        """`put_shaped` for a task."""
        return self.asee_through(self._ack(batches, taken))

    async def asee_through(self, ack: Ack) -> Ack:
        """Put the rows of an ack, as a task; return it when they are durable."""
        if ack.done:
            return ack
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ack.futures = [done]
        ack.callers += 1
        try:
            self._committer.offer(ack)
            await done
        except WeirError:
            raise
        except BaseException as cancelled:
            ack.callers -= 1
            self._committer.interrupted(ack, cancelled)
            raise
        error = ack.error
        if error is not None:
            raise error
        return ack

    @property
    def _is_over(self) -> bool:
        return self._state.closing or self._state.ending.is_over

    def _unshaped_ack(self, put: SmallPut, taken: Taken | None = None) -> Ack:
        """The ack of a small put, whose rows the committing thread shapes."""
        if self._is_over:
            raise self._state.ending.refused(self._intake.rows(put.data))
        # As if they were a batch of their own; less once they are shaped with others.
        nbytes = put.nbytes + self._intake.bytes_of_columns
        ack = Ack(self._committer, (), rows=put.rows, nbytes=nbytes)
        ack.unshaped = put
        if taken is not None:
            taken.append(ack)
        return ack

    def _ack(self, batches: Sequence[pa.RecordBatch], taken: Taken | None = None) -> Ack:
        state = self._state
        if self._is_over:
            raise state.ending.refused(batches)
        rows = sum([batch.num_rows for batch in batches])
        if not rows:
            return Ack(None, (), rows=0, nbytes=0)
        nbytes = self._intake.fit(batches, state.env.limits)
        ack = Ack(self._committer, batches, rows=rows, nbytes=nbytes)
        if taken is not None:
            taken.append(ack)
        return ack
