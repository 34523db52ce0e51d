"""Appends entries to one shard's log: one put in flight, nothing overwritten, fenced for good when
fenced.

Keeps
  F-5  on this path a collision always ends the appender
  F-9  a lost answer is settled by the entry's own bytes, which carry a random id
  F-10 the next entry is not attempted before the one before it is known to be durable
  F-11 what stays unknown is `UnknownOutcome`, not a conflict and not success
  F-13 a fenced appender acknowledges nothing, then or later, and asks the store nothing more
  G-7b success also needs a proof of ownership younger than `fence_ttl`
  S-7  a log on a store of its own is opened beside the data before its first entry is written, and
       shut when the last one is covered and none is under way; whoever moves R in between, it is
       not taken for empty
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import pyarrow as pa

from weir.errors import (
    CommitConflict,
    FencedError,
    StoreError,
    UnknownOutcome,
    WalStoreMismatch,
    WeirError,
    WriterClosed,
)
from weir.format import paths
from weir.format.schema import TableSchema
from weir.format.wal_entry import EntryEncoder
from weir.log.fence import Claim, claim_shard
from weir.log.intake import Intake
from weir.log.manifests import Manifests
from weir.log.ownership import Ownership
from weir.log.site import HasSite, ShardSite
from weir.log.wal_store import check_identity, check_presence
from weir.store.api import LostAnswer, ObjectExists, ObjectMissing, is_local
from weir.types import Epoch, Generation, Position

log = logging.getLogger("weir.log")

DEFAULT_FENCE_TTL = 60.0

Token = tuple[str, int]
"""An exactly-once token: application and its batch number (P-2)."""


class OpenShard(HasSite, Protocol):
    """What `open` needs to know of a shard: `weir.Shard` has it."""

    @property
    def table_schema(self) -> TableSchema:
        """The table's schema with its field ids."""


class WalAppender:
    """The low-level writer of one shard's log. Safe to share between threads; entries go one at a
    time."""

    def __init__(
        self,
        site: ShardSite,
        schema: TableSchema,
        claim: Claim,
        *,
        manifests: Manifests,
        fence_ttl: float = DEFAULT_FENCE_TTL,
    ) -> None:
        self.site = site
        self.manifests = manifests
        self.claim = claim
        self.ownership = Ownership(
            manifests, claim.epoch, proof_began=claim.proof_began, fence_ttl=fence_ttl
        )
        self.bytes_written = 0
        self._encoder = EntryEncoder(schema, max_bytes=site.env.limits.entry_bytes)
        self._intake = Intake(schema)
        self._next = Position(claim.fence + 1)
        self._generation = Generation(claim.manifest.current_generation)
        self._lock = site.env.threads.lock()
        self._end: Callable[[], WeirError] | None = None
        self._is_apart = site.wal is not site.store
        self._is_mounted = self._is_apart and site.wal_id is not None and is_local(site.wal)
        self._marks = site.env.threads.lock()
        """Guards the two below: opening and shutting are decided one after the other."""
        self._opened_at: Position | None = None
        """The open mark that our entries stand behind (S-7); None: shut, the next one opens."""
        self._in_flight = False
        self._shut_at: Position | None = None
        """The shut mark we owe: what was decided is carried out even if the store fails once."""

    @classmethod
    def open(cls, shard: OpenShard, *, fence_ttl: float = DEFAULT_FENCE_TTL) -> WalAppender:
        """Claim the shard and fence every older writer; a write. See `claim_shard` for what it
        raises.

        Rows that older writers left in the log stay there; this appender does not read them.
        """
        manifests = Manifests(shard.site)
        claim = claim_shard(shard.site, manifests)
        return cls(shard.site, shard.table_schema, claim, manifests=manifests, fence_ttl=fence_ttl)

    @property
    def epoch(self) -> Epoch:
        """The epoch this appender writes in."""
        return self.claim.epoch

    @property
    def next_position(self) -> Position:
        """Where the next entry will go."""
        return self._next

    @property
    def fenced(self) -> bool:
        """True once a newer writer was met."""
        return self._end is not None and isinstance(self._end(), FencedError)

    def append(
        self,
        batches: Sequence[pa.RecordBatch],
        *,
        generation: Generation | None = None,
        tokens: Sequence[Token] = (),
    ) -> Position:
        """Make the rows of `batches` durable as one entry and return its position.

        The batches have the table's columns; a boolean `_tombstone` marks deletes. On return the
        rows survive the loss of this process. Raises `FencedError` when a newer writer owns the
        shard (keep `.unacknowledged`), `StoreError` when the entry was certainly not written
        (append again is safe), `UnknownOutcome` when nobody can tell (this appender is then
        finished). One put, plus two reads once per `fence_ttl`.
        """
        shaped = [rows for batch in batches for rows in self._intake.rows(batch)]
        return self.append_shaped(shaped, generation=generation, tokens=tokens)

    def append_shaped(
        self,
        batches: Sequence[pa.RecordBatch],
        *,
        generation: Generation | None = None,
        tokens: Sequence[Token] = (),
    ) -> Position:
        """`append` for rows that an `Intake` has shaped already."""
        with self._lock:
            if self._end is not None:
                raise self._ended(batches)
            with self._marks:
                self._in_flight = True
            try:
                tag = self._generation if generation is None else generation
                return self._append(batches, tag, tokens)
            except (FencedError, UnknownOutcome, CommitConflict) as error:
                error.unacknowledged = list(batches)  # type: ignore[union-attr]
                raise
            finally:
                self._in_flight = False

    def _append(
        self, batches: Sequence[pa.RecordBatch], generation: Generation, tokens: Sequence[Token]
    ) -> Position:
        position = self._next
        if self._is_apart and self._opened_at is None:
            self._open_log(position)
        entry = self._encoder.encode(
            batches,
            epoch=self.epoch,
            generation=generation,
            entry_id=self.site.env.new_id().hex,
            tokens=tokens,
        )
        try:
            self.site.wal.put_if_absent(paths.wal_path(self.site.shard, position), entry)
        except ObjectExists:
            if not self._is_ours(position, entry):
                raise self._collided(position) from None
        except LostAnswer as lost:
            raise self._finish_unknown(position, lost) from lost
        try:
            if self._is_mounted:
                check_presence(self.site)
            self.ownership.require()
        except FencedError as fenced:
            # The entry is there. Before the new owner's fence it counts, in a collected place it
            # does not (G-7b), and nobody can tell which without the new owner's log.
            told = self._finish_fenced(fenced)
            told.maybe_written = True
            raise told from None
        except (StoreError, WalStoreMismatch) as error:
            # The entry is there, but whether it counts is not known (F-11), or it went into the
            # empty folder where a disk was mounted before (S-7).
            raise self._finish_unknown(position, error) from error
        self._next = Position(position + 1)
        self._generation = max(generation, self._generation)
        self.bytes_written += len(entry)
        return position

    def shut(self, reached: Position | None = None) -> None:
        """S-7: nothing is or will be after our last entry, unless an open mark says so first.

        Called with R before a manifest with that R is committed, which shuts nothing while entries
        above it are there or under way; without it when the last entry was written, and then a
        store that fails is no error: every row is durable. One put, and only when the log is on a
        store of its own and was opened since.
        """
        with self._marks:
            last = Position(self._next - 1)
            ongoing = self._in_flight or (reached is not None and last > reached)
            # The outcome of an entry is unknown, or nothing was written since the mark was put up.
            unsure = self._end is not None or self._opened_at is None or last < self._opened_at
            if not ongoing and not unsure:
                self._opened_at, self._shut_at = None, last
            owed = self._shut_at
        if owed is None or self._end is not None:
            return
        try:
            self.manifests.floors.raise_to("shut", owed)
            self._shut_at = None
        except StoreError as error:
            if reached is not None:
                raise
            log.info("wal.shut.skipped shard=%s reason=%s", self.site.shard, error)

    def _open_log(self, position: Position) -> None:
        """S-7: the first entry after the log was shut is told to the table before it is written.

        Owning the shard is proved after the mark is up: who takes a lost log over claims first and
        reads the mark second. One put and two reads for each time the log is shut.
        """
        check_identity(self.site)
        self.manifests.floors.raise_to("open", position)
        try:
            self.ownership.prove()
        except FencedError as fenced:
            raise self._finish_fenced(fenced) from None
        with self._marks:
            self._opened_at = position

    def _is_ours(self, position: Position, entry: memoryview) -> bool:
        """True when a proxy repeated our request and the answer is about the repetition."""
        try:
            data = self.site.wal.get(paths.wal_path(self.site.shard, position)).data
        except ObjectMissing:
            raise self._collected(position) from None
        except StoreError as error:
            raise self._finish_unknown(position, error) from error
        return data == bytes(entry)

    def _collected(self, position: Position) -> WeirError:
        """What was there is gone: ours or not, nobody can tell any more (F-11)."""
        try:
            self.ownership.prove()
        except FencedError as fenced:
            told = self._finish_fenced(fenced)
            told.maybe_written = True
            return told
        gone = StoreError("an entry was there, and was collected before it could be compared")
        return self._finish_unknown(position, gone)

    def _collided(self, position: Position) -> WeirError:
        """F-5: somebody wrote where we were to write; either we are fenced or the log is not ours
        alone."""
        try:
            self.ownership.prove()
        except FencedError as fenced:
            return self._finish_fenced(fenced)
        text = (
            f"{self.site}: position {position} was taken although epoch {self.epoch} is still "
            "current; "
            "something writes to this log without claiming it. Open the shard again."
        )
        self._end = lambda: WriterClosed(text)
        return CommitConflict(text)

    def _finish_fenced(self, fenced: FencedError) -> FencedError:
        text, by = str(fenced), fenced.fenced_by
        self._end = lambda: FencedError(text, epoch=self.epoch, fenced_by=by)
        log.warning("wal.fenced shard=%s epoch=%d by=%d", self.site.shard, self.epoch, by)
        return FencedError(text, epoch=self.epoch, fenced_by=by)

    def _finish_unknown(self, position: Position, cause: WeirError) -> UnknownOutcome:
        text = (
            f"{self.site}: it is not known whether the entry at position {position} is durable "
            f"({cause}); "
            "nothing was deleted. Open the shard again: its replay decides."
        )
        self._end = lambda: UnknownOutcome(text)
        return UnknownOutcome(text)

    def _ended(self, batches: Sequence[pa.RecordBatch]) -> WeirError:
        assert self._end is not None, "F-13: asked why it ended before it ended"
        error = self._end()
        error.unacknowledged = list(batches)  # type: ignore[attr-defined]
        return error
