"""The errors of a writer that has ended: each has its caller's rows and true state (F-13, F-16).

A put, or the caller that waits for its receipt, gets its own rows back. Rows that no caller waits
for belong to the handle: the first flush or close that fails hands them back, once.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeGuard

from weir.env import Env, ForkGuard
from weir.errors import FencedError, UnknownOutcome, WeirError, WriterClosed

if TYPE_CHECKING:
    import pyarrow as pa

    from weir.shard.ack import Ack


class Ending:
    """Why one writer ended, and which rows it left. Set once; read from any thread after that."""

    def __init__(self, name: str, env: Env) -> None:
        self.failure: WeirError | None = None
        self.home = ForkGuard(env)
        self._name = name
        self._left: list[tuple[Ack, WeirError]] = []
        self._lock = env.threads.lock()

    @property
    def is_over(self) -> bool:
        """True when nothing more can be done through this handle."""
        return self.failure is not None or self.home.is_forked

    def begin(self, failure: WeirError, left: Sequence[Ack], *, sent: int) -> None:
        """End the writer with these puts unacknowledged; the first `sent` may be in the log."""
        self.failure = failure
        for index, ack in enumerate(left):
            error = (
                self._error_for(failure, perhaps_written=ack.batches)
                if index < sent
                else self._error_for(failure, not_written=ack.batches)
            )
            ack.error = error
            self._left.append((ack, error))

    def leave(self, ack: Ack) -> WeirError:
        """The error for a put whose rows were still to be shaped; if its caller no longer waits, a
        flush or close reports the rows."""
        error = self.refused(ack.batches)
        with self._lock:
            self._left.append((ack, error))
        return error

    def refused(self, batches: Sequence[pa.RecordBatch] = ()) -> WeirError:
        """The error for a later call: its own rows were not written; it reports no other rows."""
        if self.home.is_forked:
            return forked(self._name, batches)
        if self.failure is None:
            text = f"{self._name}: the writer is closed; open a new one"
            return WriterClosed(text, not_written=batches)
        return self._error_for(self.failure, not_written=batches)

    def require_all_reported(self) -> None:
        """Raise `error` when rows are left that no caller waits for or was told of: those of a put
        that was interrupted after another thread had closed the writer."""
        with self._lock:
            is_heard = all(ack.claimed for ack, _ in self._left)
        if not is_heard:
            raise self.error()

    def error(self) -> WeirError:
        """The error for a flush or close: all rows left that no caller waits for or was told of."""
        unsent: list[pa.RecordBatch] = []
        sent: list[pa.RecordBatch] = []
        with self._lock:
            for ack, error in self._left:
                if not ack.claimed:
                    ack.claimed = True
                    unsent += error.not_written
                    sent += error.perhaps_written
        if self.failure is None:
            return self.refused(unsent)
        return self._error_for(self.failure, not_written=unsent, perhaps_written=sent)

    def _error_for(
        self,
        failure: WeirError,
        *,
        not_written: Sequence[pa.RecordBatch] = (),
        perhaps_written: Sequence[pa.RecordBatch] = (),
    ) -> WeirError:
        if isinstance(failure, FencedError):
            return FencedError(
                str(failure),
                epoch=failure.epoch,
                fenced_by=failure.fenced_by,
                position=failure.position,
                not_written=not_written,
                perhaps_written=perhaps_written,
            )
        ended: WeirError
        if not perhaps_written:
            ended = WriterClosed(
                f"{self._name}: the writer stopped; open a new one. Cause: {failure}",
                not_written=not_written,
            )
            ended.__cause__ = failure
            return ended
        rows = {"not_written": not_written, "perhaps_written": perhaps_written}
        if isinstance(failure, UnknownOutcome):
            ended = UnknownOutcome(str(failure), **rows)
            ended.__cause__ = failure.__cause__
            return ended
        ended = UnknownOutcome(
            f"{self._name}: the writer stopped while rows were being written, which may or may not"
            f" be durable. Open the shard again and look for them. Cause: {failure}",
            **rows,
        )
        ended.__cause__ = failure
        return ended


def is_writer_end(error: BaseException) -> TypeGuard[WeirError]:
    """True when the error says that the writer has ended, and so rows are left."""
    return isinstance(error, FencedError | WriterClosed | UnknownOutcome)


def with_rows(
    error: Exception, given: Sequence[pa.RecordBatch], *, sent: bool | None = None
) -> Exception:
    """A copy of the error with the caller's own rows as they were given (F-16): in the state that
    the error reports or, if it is known whether they were `sent`, in that one."""
    own = copy.copy(error)
    if isinstance(own, WeirError):
        sent = bool(own.perhaps_written) if sent is None else sent
        own.perhaps_written = list(given) if sent else []
        own.not_written = [] if sent else list(given)
    return own


def forked(name: str, batches: Sequence[pa.RecordBatch] = ()) -> WriterClosed:
    """The error of the parent process's handle in a forked child."""
    return WriterClosed(
        f"{name}: this writer belongs to the parent process and cannot be used in a forked child;"
        " start the child with spawn or forkserver, and open a writer in it",
        not_written=batches,
    )


def internal(error: BaseException) -> WeirError:
    """Wrap an error of another library, or a bug, in one of ours."""
    wrapped = WeirError(f"unexpected {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
