"""The errors of a writer that has ended: each has its caller's rows and true state (F-13, F-16).

A put, or the caller that waits for its receipt, gets its own rows back. Rows that no caller waits
for belong to the handle: the first flush or close that fails hands them back, once.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from weir.env import Env, ForkGuard
from weir.errors import FencedError, SealedShard, UnknownOutcome, WeirError, WriterClosed
from weir.shard.ack import Heirs

if TYPE_CHECKING:
    import pyarrow as pa

    from weir.log.entry import Token
    from weir.shard.ack import Ack


class Ending:
    """Why one writer ended, and which rows it left. Set once; read from any thread after that."""

    def __init__(self, name: str, env: Env) -> None:
        self.failure: WeirError | None = None
        self.home = ForkGuard(env)
        self._name = name
        self.is_told = False
        """True once a caller was told of the failure."""
        self._left: dict[Ack, None] = {}
        """Puts whose rows are not acknowledged, in order."""
        self._reported: set[Ack] = set()
        """Those that a flush or close has listed."""
        self._kept: set[Ack] = set()
        """Those whose rows a caller has, or has seen: it sends them nowhere any more."""
        self._last_report: tuple[BaseException | None, Sequence[Ack]] = (None, ())
        self._threads = env.threads
        self._lock = env.threads.lock()

    @property
    def is_over(self) -> bool:
        """True when nothing more can be done through this handle."""
        return self.failure is not None or self.home.is_forked

    @property
    def has_rows_left(self) -> bool:
        """True when it ended with rows, reported or not."""
        return bool(self._left)

    def begin(self, failure: WeirError, in_flight: Sequence[Ack]) -> None:
        """End the writer; the rows of the puts in flight may be in the log."""
        for ack in in_flight:
            ack.error = self._error_for(failure, perhaps_written=ack.batches)
        self.failure = failure

    def refuse(self, ack: Ack) -> None:
        """The rows of a put are not acknowledged. Unless its caller waits for the outcome, a flush
        or close reports them."""
        ack.is_refused = True
        self.is_told = self.is_told or ack.callers > 0
        with self._lock:
            self._left[ack] = None

    def hand_over(self) -> list[tuple[Ack, WeirError]]:
        """The puts that no caller waits for and that are certainly in no log: another writer takes
        their rows over, and says in `ack.heirs` where they are (C-11). They stay listed until it
        has (`moved`), so that an interrupt loses none."""
        taken: list[tuple[Ack, WeirError]] = []
        with self._lock:
            for ack in self._still_left():
                error = ack.error
                if not isinstance(error, WeirError) or not _may_move(ack, error):
                    continue
                # Before the look at its callers: one is counted first, and looks for heirs then.
                heirs = self._heirs_of(ack)
                if not heirs.is_claimed:
                    if not self._is_free(ack):
                        heirs.moved(None)
                        continue
                    heirs.is_claimed = True
                taken.append((ack, error))
        return taken

    def give(self, ack: Ack) -> bool:
        """The caller that waits for a put leaves its rows to whoever takes them over next, and
        looks at `ack.heirs` then; False when they may not go elsewhere."""
        with self._lock:
            error = ack.error
            if ack not in self._left or not isinstance(error, WeirError):
                return False
            if ack in self._kept or ack in self._reported or not _may_move(ack, error):
                return False
            self._heirs_of(ack).is_claimed = True
            return True

    def hand_back(self, ack: Ack) -> bool:
        """The caller that waits for a put gets its rows; False when they went elsewhere, or are
        about to."""
        with self._lock:
            if _moves(ack):
                return False
            self._kept.add(ack)
            return True

    def _is_free(self, ack: Ack) -> bool:
        """True when nobody has the rows of a put that is left, or is about to get them: no caller,
        no report and no heir. Who gets rows is decided here alone (F-16); lock held."""
        return not (ack.callers or ack in self._reported or _moves(ack))

    def _still_left(self) -> list[Ack]:
        """The puts that are left, without those of a move that was interrupted as it ended; lock
        held."""
        for ack in list(self._left):
            if ack.heirs is not None and ack.heirs.known is not None:
                ack.heirs.moved(ack.heirs.known)
                del self._left[ack]
        return list(self._left)

    def _heirs_of(self, ack: Ack) -> Heirs:
        """Where it is going to be said where the rows went; lock held."""
        if ack.heirs is None or ack.heirs.is_told:
            ack.heirs = Heirs(self._threads)
        return ack.heirs

    def forget(self, batch: Token) -> None:
        """That batch was sent again and is in: no rows of an earlier try are left (P-2)."""
        with self._lock:
            for ack in [ack for ack in self._left if batch in ack.tokens]:
                del self._left[ack]

    def moved(self, ack: Ack) -> None:
        """All parts of a put that was handed over are on their way at its heirs."""
        assert ack.heirs is not None, "C-11: set when it was handed over"
        ack.heirs.moved(list(ack.heirs.parts_taken.items()))
        with self._lock:
            self._left.pop(ack, None)

    def stay(self) -> None:
        """Whoever moved rows was interrupted: those of which no part has moved stay here."""
        for ack in list(self._left):
            heirs = ack.heirs
            if heirs is not None and heirs.begun is None and not heirs.is_told:
                heirs.moved(None)

    def keep(self, ack: Ack, error: WeirError) -> None:
        """List rows of this writer that did not reach their heir: a flush or close reports them."""
        ack.error = error
        with self._lock:
            self._left[ack] = None

    def take_back(self, ack: Ack, error: WeirError) -> None:
        """List a put again that was handed over and went nowhere."""
        self.keep(ack, error)
        if ack.heirs is not None:
            ack.heirs.moved(None)

    def refused(self, batches: Sequence[pa.RecordBatch] = ()) -> WeirError:
        """The error for a later call: its own rows were not written; it reports no other rows."""
        self.is_told = True
        if self.home.is_forked:
            return forked(self._name, batches)
        if self.failure is None:
            return closed(self._name, batches)
        return self._error_for(self.failure, not_written=batches)

    def is_owed_nothing(self, error: BaseException, *, was_told: bool) -> bool:
        """True when `error`, of a close, need not be raised: no caller lost rows by it, and the
        shard is another writer's now, or a caller was told before that this one ended."""
        if not isinstance(error, WeirError) or error.not_written or error.perhaps_written:
            return False
        return was_told or isinstance(error, FencedError | SealedShard)

    def require_all_reported(self) -> None:
        """Raise `error` when rows are left that no caller waits for or was told of: those of a put
        that was interrupted after another thread had closed the writer."""
        with self._lock:
            is_free = any(map(self._is_free, self._still_left()))
        if is_free:
            raise self.error()

    def error(self) -> WeirError:
        """The error for a flush or close: all rows left that nobody else has or gets."""
        self.is_told = True
        error: WeirError | None = None
        try:
            with self._lock:
                free = [ack for ack in self._still_left() if self._is_free(ack)]
                error = self._report_of(free)
                self._last_report = (error, free)
                self._reported.update(free)
            return error
        except BaseException:
            if error is not None:
                self.unreport(error)  # guard: F-16 test_outcomes
            raise

    def _report_of(self, acks: Sequence[Ack]) -> WeirError:
        """The error that ended the writer, with the rows of those puts."""
        unsent: list[pa.RecordBatch] = []
        sent: list[pa.RecordBatch] = []
        for ack in acks:
            if isinstance(ack.error, WeirError):
                unsent += ack.error.not_written
                sent += ack.error.perhaps_written
        if self.failure is None:
            return self.refused(unsent)
        return self._error_for(self.failure, not_written=unsent, perhaps_written=sent)

    def unreport(self, error: BaseException) -> None:
        """That error reaches nobody, because its call was interrupted: the next flush or close
        reports its rows (F-16)."""
        with self._lock:
            if error is self._last_report[0]:
                self._reported.difference_update(self._last_report[1])

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
                position=failure.position,  # guard: F-13 test_opening_a_shard
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


def _moves(ack: Ack) -> bool:
    """True when its rows are with an heir, or on their way there."""
    heirs = ack.heirs
    return heirs is not None and heirs.is_claimed and not heirs.is_back


def _may_move(ack: Ack, error: WeirError) -> bool:
    """True for rows that are certainly in no log, and that any writer may put.

    What a decision made stays: it rests on rows that only this writer knew (O-4). So does a part of
    a batch that counts once: at an heir its token would say that all is in, also what other shards
    had of the batch (P-6). Sent again, the batch finds out what is missing.
    """
    if ack.tokens:  # guard: P-6 test_once_and_reshards
        return False
    return ack.decision is None and not error.perhaps_written


E = TypeVar("E", bound=Exception)


def with_rows(error: E, given: Sequence[pa.RecordBatch], *, sent: bool | None = None) -> E:
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


def closed(name: str, batches: Sequence[pa.RecordBatch] = ()) -> WriterClosed:
    """The error of a call on a writer that was closed."""
    return WriterClosed(f"{name}: the writer is closed; open a new one", not_written=batches)


def internal(error: BaseException) -> WeirError:
    """Wrap an error of another library, or a bug, in one of ours."""
    wrapped = WeirError(f"unexpected {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
