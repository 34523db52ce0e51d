"""Every error a caller of weir can meet.

    WeirError
    |-- FencedError          fenced       a newer writer owns the shard: keep the rows
    |-- WriterClosed         closed       this handle is finished: open a new one
    |-- UnknownOutcome       unavailable  perhaps written, perhaps not: reopening decides (F-11)
    |-- PartialWrite         of its parts some shards of a call failed, each with its error
    |-- StoreError           unavailable  the store failed, after retries
    |   |-- StoreDenied      invalid      credentials missing, wrong or expired
    |   `-- StoreUnsuitable  invalid      the store does not keep put-if-absent
    |-- Backpressure         unavailable  the memory bound was reached and the timeout passed
    |-- Interrupted          unavailable  an interrupted call never gave these rows to a writer
    |-- CommitConflict       conflict     somebody else committed first: read again, then retry
    |-- SnapshotExpired      conflict     files the read planned on were collected: read again
    |-- KeyConflict          conflict     keys exist that must not, or are missing: read, then retry
    |-- SealedShard          invalid      the shard takes no more writes
    |-- NotOwner             invalid      a row of a shard that the writer was not opened for
    |-- InvalidInput         invalid      correct the call
    |   `-- SchemaMismatch   invalid      the data does not fit the table's schema
    |-- WalOnlyMode          invalid      a MemTable call on a WAL-only writer
    |-- WalStoreMismatch     invalid      the WAL store is not the one recorded for the shard
    |-- NotAWeirTable        invalid      no table there that weir made or adopted
    |-- CheckpointNotFound   invalid      the checkpoint is gone or never was: list what exists
    |-- CorruptEntry         data         an object holds other bytes than it should
    `-- MissingEntry         data         an object that must exist does not

The kind (second column, `error.kind`) alone says what to do: reopen (fenced, closed), retry the
same call (unavailable), read again and retry (conflict), correct the call (invalid), stop and
investigate (data). A missing object is `data`, never `unavailable`: a retry loop must not spin on a
404.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, get_args
from uuid import UUID

if TYPE_CHECKING:
    import pyarrow as pa

Kind = Literal["internal", "data", "invalid", "fenced", "closed", "conflict", "unavailable"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
"""From those that forbid another try to those that a retry of the same call may mend."""


class WeirError(Exception):
    """Base of all errors of weir; `kind` says what a caller can do about it.

    An error hands back rows of the call that raised it, each batch with its true state.
    Those in `not_written` are certainly in no log and may be put again. Those in `perhaps_written`
    were in flight: before putting them again look for them, or rely on a key or `put_once`. Rows in
    neither are written. `unacknowledged` has both, in the order they were accepted.
    """

    kind: Kind = "internal"

    def __init__(
        self,
        message: str = "",
        *,
        not_written: Sequence[pa.RecordBatch] = (),
        perhaps_written: Sequence[pa.RecordBatch] = (),
    ) -> None:
        super().__init__(message)
        self.not_written = list(not_written)
        self.perhaps_written = list(perhaps_written)

    @property
    def unacknowledged(self) -> list[pa.RecordBatch]:
        """All rows handed back: the entry in flight is older than the rows queued behind it."""
        return [*self.perhaps_written, *self.not_written]

    @property
    def maybe_written(self) -> bool:
        """True when some rows may be in the log: putting them again may duplicate them."""
        return bool(self.perhaps_written)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle and copy all attributes, whatever arguments the constructor takes."""
        # A cause from another library may not pickle; one of weir's says what ended a writer.
        cause = self.__cause__ if isinstance(self.__cause__, WeirError) else None
        return _made_again, (type(self), self.args, cause), self.__dict__


def _made_again(
    kind: type[WeirError], args: tuple[object, ...], cause: WeirError | None
) -> WeirError:
    error = kind.__new__(kind, *args)
    error.__cause__ = cause
    return error


class FencedError(WeirError):
    """A newer writer owns the shard; this handle has written its last row.

    Put the rows in `not_written` through a new writer if this application should take the shard
    back. Never reopen in a bare loop: two writers that do so fence each other for ever. Rows in
    `perhaps_written` were in flight, and the new owner may have them. `position` is where in the
    log this handle was stopped: the first position that is not its own, as far as it knows.
    """

    kind: Kind = "fenced"

    def __init__(
        self,
        message: str,
        *,
        epoch: int,
        fenced_by: int,
        position: int | None = None,
        not_written: Sequence[pa.RecordBatch] = (),
        perhaps_written: Sequence[pa.RecordBatch] = (),
    ) -> None:
        super().__init__(message, not_written=not_written, perhaps_written=perhaps_written)
        self.epoch = epoch
        self.fenced_by = fenced_by
        self.position = position

    def at(self, position: int) -> FencedError:
        """The same error, which also says at which log position the writer was stopped."""
        return FencedError(
            f"{self} The writer was stopped at position {position} of the log.",
            epoch=self.epoch,
            fenced_by=self.fenced_by,
            position=position,
            not_written=self.not_written,
            perhaps_written=self.perhaps_written,
        )


class WriterClosed(WeirError):
    """The handle was closed or stopped by an earlier error (its cause); open a new writer.

    None of the rows it hands back were written.
    """

    kind: Kind = "closed"


class UnknownOutcome(WeirError):
    """The store did not answer, after retries: the rows may or may not be durable.

    Reopening the shard decides: replay shows the rows if they landed. Nothing was deleted.
    """

    kind: Kind = "unavailable"


class PartialWrite(WeirError):
    """A call over several shards failed in some or all of them; the others are done.

    `failures` holds the error of each shard that failed, with the state of its rows, and `by_shard`
    the rows of each. `under_way` names the shards that were not durable within the timeout: their
    rows go on, and `flush_wal` or `close` waits for them. The kind is that of the failures; of
    several kinds, the one that asks for most before the call is made again (`KINDS`).
    """

    kind: Kind = "unavailable"

    def __init__(
        self,
        message: str,
        *,
        failures: Mapping[UUID, WeirError],
        under_way: Sequence[UUID] = (),
    ) -> None:
        super().__init__(
            message,
            not_written=[rows for error in failures.values() for rows in error.not_written],
            perhaps_written=[rows for error in failures.values() for rows in error.perhaps_written],
        )
        self.failures = dict(failures)
        self.under_way = list(under_way)
        kinds = [error.kind for error in failures.values()]
        self.kind = min(kinds, key=KINDS.index, default=self.kind)

    @property
    def by_shard(self) -> dict[UUID, list[pa.RecordBatch]]:
        """The rows of each shard that failed."""
        return {shard: error.unacknowledged for shard, error in self.failures.items()}


class StoreError(WeirError):
    """The store failed and kept failing through the bounded retries; the same call may work
    later."""

    kind: Kind = "unavailable"


class StoreDenied(StoreError):
    """The store refused the credentials; renew or correct them. Never retried."""

    kind: Kind = "invalid"


class StoreUnsuitable(StoreError):
    """The store breaks put-if-absent, so no fence would hold there; use another store."""

    kind: Kind = "invalid"


class Backpressure(WeirError):
    """The writer's memory bound was reached and did not clear within the timeout; nothing was
    accepted."""

    kind: Kind = "unavailable"


class Interrupted(WeirError):
    """A call was interrupted, or its task cancelled, before the writer of a shard had these rows.

    None of them are written. Raised by the next `flush_wal`, `flush` or `close`, since the
    interrupted call could not.
    """

    kind: Kind = "unavailable"


class CommitConflict(WeirError):
    """Somebody else committed first; read the new state and try again."""

    kind: Kind = "conflict"


class SnapshotExpired(CommitConflict):
    """Files this read had planned on were collected since; plan again, or read at a checkpoint."""


class KeyConflict(WeirError):
    """An insert met keys that exist, or an update keys that do not; nothing of it was written.

    `keys` lists them, as values, or as tuples where a key has several columns. In a write to
    several shards, each shard that met no such key has its part written.
    """

    kind: Kind = "conflict"

    def __init__(
        self,
        message: str,
        keys: Sequence[object] = (),
        *,
        not_written: Sequence[pa.RecordBatch] = (),
        perhaps_written: Sequence[pa.RecordBatch] = (),
    ) -> None:
        super().__init__(message, not_written=not_written, perhaps_written=perhaps_written)
        self.keys = list(keys)


class SealedShard(WeirError):
    """The shard takes no more writes (it was resharded away); open the table again to find its
    heirs."""

    kind: Kind = "invalid"


class NotOwner(WeirError):
    """A row belongs to a shard that the writer was not opened for (`table.writer(shards=...)`).

    Nothing of the call was claimed or written, own rows included, and the error hands no rows back:
    send the call to the owner of `shard`, whose bucket or value is `value`. Of several such rows,
    they are those of the first.
    """

    kind: Kind = "invalid"

    def __init__(self, message: str, *, shard: UUID, value: int | str | bool | None) -> None:
        super().__init__(message)
        self.shard = shard
        self.value = value


class InvalidInput(WeirError):
    """An argument cannot be used; the message names it. Nothing was written."""

    kind: Kind = "invalid"


class SchemaMismatch(InvalidInput):
    """Data that does not fit the table's schema without loss; the message names the column. Nothing
    was written."""


class WalOnlyMode(WeirError):
    """A call that needs the MemTable on a writer opened with `enable_memtable=False`."""

    kind: Kind = "invalid"


class WalStoreMismatch(WeirError):
    """The WAL store given is not the one the shard recorded, or has lost rows that exist nowhere
    else."""

    kind: Kind = "invalid"


class NotAWeirTable(WeirError):
    """No weir table at that URI; `weir.create` makes one, `weir.enable` adopts a Lance dataset."""

    kind: Kind = "invalid"


class CheckpointNotFound(WeirError):
    """The checkpoint is gone or never existed; `table.checkpoints()` lists the existing ones."""

    kind: Kind = "invalid"


class CorruptEntry(WeirError):
    """An object's bytes are torn, foreign or too large; the message names the object. Stop and
    investigate."""

    kind: Kind = "data"


class MissingEntry(WeirError):
    """An object that must exist is missing (a hole); the message names it. Stop and
    investigate."""

    kind: Kind = "data"
