"""Accepting rows: they wait for room, are shaped, and get a place in memory and in the queue.

Keeps
  M-6  the rows held are bounded; over the bound, putters wait
  M-7  an error in a put is reported to its putter, and to no other caller
  F-16 an interrupt that leaves rows half accepted ends the writer, and hangs no caller
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from weir.log.intake import Intake
from weir.log.small_put import shape_together
from weir.shard.ack import Ack, run_callbacks
from weir.shard.ending import internal
from weir.shard.flush import Flusher
from weir.shard.state import WriterState


class Acceptor:
    """Admits puts into the state of one writer."""

    def __init__(self, state: WriterState, intake: Intake, flusher: Flusher | None) -> None:
        self._state = state
        self._intake = intake
        self._flusher = flusher
        self._shaping = state.env.threads.lock()
        """Held while rows are shaped, so that they are accepted in arrival order."""

    def accept(self, ack: Ack, timeout: float | None = None) -> None:
        """Wait for room, then accept the rows of `ack`, or queue them to be shaped."""
        state = self._state
        with state.lock:
            state.wait_for_room(ack, timeout, self.make_room)
            failed, broken = self._accept(ack)
        self._finish(ack, failed, broken)

    def accept_decided(
        self, nbytes: int, decided: Callable[[], Sequence[Ack] | None], timeout: float | None
    ) -> bool:
        """Accept the puts that `decided` returns under the lock, once there is room for `nbytes`.

        False, and nothing is accepted, when it returns None (O-2).
        """
        state = self._state
        room = Ack(None, (), rows=0, nbytes=nbytes)
        broken: BaseException | None = None
        with state.lock:
            state.wait_for_room(room, timeout, self.make_room)
            acks = decided()
            if acks is None:
                return False
            try:
                state.accept_each(acks)
                self._wake_flusher()
            except BaseException as error:  # noqa: BLE001  as in `_accept`
                broken = error
                failed = state.end(internal(error), sent=True)
        if broken is not None:
            run_callbacks(failed)
            raise state.ending.refused() if isinstance(broken, Exception) else broken
        self._index(sum(ack.rows for ack in acks))
        return True

    def offer(self, ack: Ack, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None] | None:
        """`accept` for a task. None if there was room; else a future to await before a retry."""
        state = self._state
        with state.lock:
            while state.is_full(ack.nbytes) and not state.closing and state.failure is None:
                if not self.make_room(None):
                    room: asyncio.Future[None] = loop.create_future()
                    state.room_tasks.append(room)
                    return room
            state.require_open(ack)
            failed, broken = self._accept(ack)
        self._finish(ack, failed, broken)
        return None

    def _accept(self, ack: Ack) -> tuple[list[Ack], BaseException | None]:
        """Accept `ack`, lock held. An error ends the writer: return failed acks and the error."""
        try:
            if ack.unshaped is not None:
                self._state.queue_unshaped(ack)
            else:
                self._state.accept([ack], ack.batches, ack.fill)
                self._wake_flusher()
            return [], None
        except BaseException as error:  # noqa: BLE001  raised by `_finish`
            # Half booked: rows in memory that are in no entry, and a flush would wait for their
            # entry for ever (W-4).
            return self._state.end(internal(error), sent=True), error

    def _finish(self, ack: Ack, failed: list[Ack], broken: BaseException | None) -> None:
        if broken is not None:
            self.shape()
            run_callbacks(failed)
            ack.claimed = isinstance(broken, Exception)
            raise self._state.ending.refused(ack.batches) if ack.claimed else broken
        if ack.unshaped is None:
            self._index(ack.rows)

    def shape(self) -> None:
        """Shape all unshaped rows in one conversion, and accept them in order.

        Called by the leader, and by threads that cannot wait for the leader.
        """
        state = self._state
        if not state.unshaped:
            return
        interrupt: BaseException | None = None
        with self._shaping:
            with state.lock:
                acks = list(state.unshaped)
            puts = [ack.unshaped for ack in acks if ack.unshaped is not None]
            shaped = shape_together(self._intake, puts, state.env.limits)
            with state.lock:
                try:
                    finished = state.accept_shaped(acks, shaped)
                    self._wake_flusher()
                except BaseException as error:  # noqa: BLE001  half booked, as in `_accept`
                    finished = state.end(internal(error), sent=True)
                    interrupt = None if isinstance(error, Exception) else error
                    for ack in acks:
                        if not ack.done:
                            state.refuse(ack, state.ending.leave(ack))
                            finished.append(ack)
        self._index(sum(ack.rows for ack in acks))
        run_callbacks(finished)
        if interrupt is not None:
            raise interrupt

    def make_room(self, timeout: float | None) -> bool:
        """Make room for a put: wake the pump and the flusher, or write here if there is no thread
        for it (F-16); True if it wrote here. Lock held, except while it writes."""
        state, flusher = self._state, self._flusher
        if not state.leading:
            state.call_pump()
        if flusher is not None:
            flusher.make_room()
        last = state.last_put
        flushes = flusher is not None and flusher.must_flush_inline
        if not state.has_no_threads or (last is None and not flushes):
            return False
        state.lock.release()
        try:
            if last is not None:
                last.see_through(timeout)
            if flusher is not None:
                flusher.help()
        finally:
            state.lock.acquire()
        return True

    def _wake_flusher(self) -> None:
        memtables = self._state.memtables
        if self._flusher is not None and memtables is not None and memtables.frozen:
            self._flusher.wake()

    def _index(self, rows: int) -> None:
        if self._flusher is not None and rows:
            self._flusher.indexes.rows_added(self._flusher.active.level, rows)
