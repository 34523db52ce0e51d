"""Appends entries to one shard's log: one put in flight, no overwrites, a fence is final.

Keeps
  F-5  on this path a collision always ends the appender
  F-9  a lost answer is settled by the entry's own bytes, which carry a random id
  F-10 the next entry is not attempted before the one before it is known to be durable
  F-11 what stays unknown is `UnknownOutcome`, not a conflict and not success
  F-13 a fenced appender acknowledges nothing, then or later, and makes no further request
  F-14 tags never fall and never jump; where folds rely on it, a rise is announced before its use
  F-16 an interrupted entry is written again, the same bytes to the same place, before any other
  G-7b success also needs a proof of ownership younger than `fence_ttl`
  S-7  a log on a store of its own is marked open beside the data before its first entry is
       written, and shut when the last one is covered and none is in flight; moving R in between
       does not make it look empty
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import pyarrow as pa

from weir.config import WriterConfig
from weir.durations import Duration
from weir.env import ForkGuard
from weir.errors import (
    CommitConflict,
    FencedError,
    InvalidInput,
    StoreError,
    UnknownOutcome,
    WeirError,
    WriterClosed,
)
from weir.format import paths
from weir.format.schema import TableSchema
from weir.format.wal_entry import Fill
from weir.log.entry import Entry, EntryMaker, Token
from weir.log.fence import Claim, claim_shard
from weir.log.intake import Intake
from weir.log.manifests import Manifests
from weir.log.ownership import Ownership
from weir.log.site import HasSite, ShardSite
from weir.log.stamp import MountCheck, check_identity
from weir.log.tagging import Tagging
from weir.log.tags import Bounds
from weir.store.api import LostAnswer, Meta, ObjectExists, ObjectMissing, is_local
from weir.types import Epoch, Generation, Position

logger = logging.getLogger("weir.log")


class OpenShard(HasSite, Protocol):
    """What `open` needs of a shard; `weir.Shard` implements it."""

    def schema_for_writing(self) -> TableSchema:
        """The table's schema with its field ids; raises when a writer may not open the shard."""


class WalAppender:
    """The low-level writer of one shard's log. Thread-safe; writes one entry at a time."""

    def __init__(
        self,
        site: ShardSite,
        schema: TableSchema,
        claim: Claim,
        *,
        manifests: Manifests,
        bounds: Bounds | None = None,
    ) -> None:
        self.site = site
        self.manifests = manifests
        self.tagging = Tagging(manifests, claim, bounds or Bounds.of(WriterConfig()))
        self.ownership = Ownership(manifests, claim)
        self.bytes_written = 0
        self._entries = EntryMaker(site, schema, self.tagging)
        self._intake = Intake(schema)
        self._next = Position(claim.fence + 1)
        self._lock = site.env.threads.lock()
        self._fork_guard = ForkGuard(site.env)
        self._end: Callable[[Sequence[pa.RecordBatch]], WeirError] | None = None
        """Makes the error for a later call, from rows that were never sent."""
        self._interrupted: Entry | None = None
        """An entry whose write was interrupted: it may or may not be at `_next`."""
        self._folder = paths.wal_dir(site.shard)
        self._is_apart = site.wal is not site.store
        is_mounted = self._is_apart and site.wal_id is not None and is_local(site.wal)
        self._presence = MountCheck(site) if is_mounted else None
        self._marks = site.env.threads.lock()
        """Guards the fields below: decisions to open and to shut the log do not overlap."""
        self._opened_at: Position | None = None
        """The open mark that covers our entries (S-7); None: shut, the next entry opens it."""
        self._in_flight = False
        self._shut_at: Position | None = None
        """The shut mark not yet written: kept, so a store failure does not undo the decision."""

    @classmethod
    def open(cls, shard: OpenShard, *, fence_ttl: Duration | None = None) -> WalAppender:
        """Claim the shard and fence every older writer; a write. Raises what `claim_shard` does.

        Rows that older writers left stay in the log, unread. `fence_ttl`: at most the table's own.
        """
        schema, manifests = shard.schema_for_writing(), Manifests(shard.site)
        claim = claim_shard(shard.site, manifests, fence_ttl=fence_ttl, announces=True)
        appender = cls(shard.site, schema, claim, manifests=manifests)
        if not appender.tagging.follow_log(keyed=bool(schema.primary_key)):
            raise CommitConflict(
                f"{shard.site}: the log holds entries of another program or an older release, so"
                " the generation of the next entry is not known (F-14). Open a writer of the shard"
                " and close it, which flushes them, then append"
            )
        return appender

    @property
    def claim(self) -> Claim:
        """The claim this appender writes under."""
        return self.tagging.claim

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
        return self._end is not None and isinstance(self._end(()), FencedError)

    def append(
        self,
        batches: Sequence[pa.RecordBatch],
        *,
        generation: Generation | None = None,
        tokens: Sequence[Token] = (),
    ) -> Position:
        """Make the rows of `batches` durable as one entry and return its position.

        The batches have the table's columns; a boolean `_tombstone` marks deletes. `generation` is
        that of the previous entry or the next one (F-14); None: it rises as full MemTables would.
        On return the rows survive the loss of this process. Raises `FencedError` when a newer
        writer owns the shard (keep `.unacknowledged`), `StoreError` when the entry was certainly
        not written (appending again is safe), `UnknownOutcome` when that cannot be known (this
        appender is then finished). One put, plus two reads once per `fence_ttl`.
        """
        shaped = [rows for batch in batches for rows in self._intake.rows(batch)]
        return self.append_shaped(shaped, generation=generation, tokens=tokens)

    def append_shaped(
        self,
        batches: Sequence[pa.RecordBatch],
        *,
        generation: Generation | None = None,
        tokens: Sequence[Token] = (),
        is_staged: bool = False,
    ) -> Position:
        """`append` for rows that an `Intake` has shaped already.

        Staged rows do not count before a manifest publishes them; their tag is below the current
        generation, so native writers skip them too (`weir.shard.large_batch`).
        """
        if self._fork_guard.is_forked:
            raise WriterClosed(
                f"{self.site}: this appender belongs to the parent process and cannot be used in a"
                " forked child; open one in the process that writes",
                not_written=batches,
            )
        with self._lock:
            self._check(batches)
            self._finish_interrupted()
            tag = self.tagging.choose(batches) if generation is None else generation
            entry = self._entries.make(batches, tag, tokens, after=None, is_staged=is_staged)
            return self._write(entry)

    def prepare(
        self,
        batches: Sequence[pa.RecordBatch],
        *,
        generation: Generation,
        tokens: Sequence[Token],
        more: Fill,
    ) -> Entry:
        """Encode an entry for `write`, without a request; `more`: what the batches hold."""
        with self._lock:
            self._check(batches)
            after = self._interrupted
            return self._entries.make(batches, generation, tokens, after=after, more=more)

    def write(self, entry: Entry) -> Position:
        """Make the entry durable and return its position; raises as `append` does.

        After an interrupt (any `BaseException`) the same call settles the outcome: callers that
        wait for the entry's rows do not see the interrupt (F-16).
        """
        with self._lock:
            if entry.position is None:
                self._check(entry.batches)
            self._finish_interrupted()
            return self._write(entry) if entry.position is None else entry.position

    def _finish_interrupted(self) -> None:
        """Finish an interrupted write. A read would not be enough: the request may still be in
        flight, and land where the next entry should go."""
        entry = self._interrupted
        if entry is None:
            return
        if entry.position is None:
            self._write(entry)
        else:
            self._landed(entry, entry.position)

    def _write(self, entry: Entry) -> Position:
        position = self._next
        if self._is_apart:
            with self._marks:
                self._in_flight = True
        try:
            if not entry.is_staged:
                self._require_tag(entry)
            if self._is_apart and self._opened_at is None:
                self._open_log(position, entry)
            self._send(position, entry)
            self._landed(entry, position)
        except Exception as error:
            self._interrupted = entry if entry.sent else None
            if isinstance(error, WeirError) or not entry.sent:
                raise
            # An untranslated error proves nothing: the entry may be in the log (F-11).
            raise self._finish_unknown(position, entry, error) from error
        finally:
            self._in_flight = False
        return position

    def _landed(self, entry: Entry, position: Position) -> None:
        """Safe to interrupt and call again: the entry's position is set first."""
        entry.position = position
        self._next = Position(position + 1)
        if not entry.is_staged:
            self.tagging.landed(entry.generation, entry.filled, position)
        self.bytes_written += len(entry.data)
        self._interrupted = None

    def _require_tag(self, entry: Entry) -> None:
        try:
            self.tagging.require(entry.generation, self._next)
        except FencedError as fenced:
            raise self._finish_fenced(fenced, entry) from None
        except InvalidInput as refused:
            refused.not_written = list(entry.batches)
            raise

    def _send(self, position: Position, entry: Entry) -> None:
        """Return when the entry is at its position and counts."""
        sent_before, entry.sent, self._interrupted = entry.sent, True, entry
        try:
            path = f"{self._folder}/{paths.wal_name(position)}"
            stored = self.site.wal.put_if_absent(path, entry.data)
        except ObjectExists:
            ours = self._find_ours(position, entry)
            if ours is None:
                raise self._collided(position, entry) from None
            stored = ours.last_modified
        except LostAnswer as lost:
            raise self._finish_unknown(position, entry, lost) from lost
        except WeirError:
            entry.sent = sent_before  # this attempt certainly did nothing
            raise
        try:
            if self._presence is not None:
                self._presence.check()
            self.ownership.require(stored)
        except FencedError as fenced:
            # The entry is there. It counts if it precedes the new owner's fence, but not in a
            # collected place (G-7b); only the new owner's log can tell which.
            raise self._finish_fenced(fenced, entry) from None
        except WeirError as error:
            # The entry was written, but it may not count (F-11), or it went into the empty folder
            # where a disk was mounted before (S-7).
            raise self._finish_unknown(position, entry, error) from error

    def shut(self, reached: Position | None = None) -> None:
        """S-7: mark that nothing follows our last entry unless a higher open mark comes first.

        Called with R before a manifest with that R is committed; shuts nothing while entries above
        R exist or are in flight. Called without R after the last entry; a failing store is then no
        error, since every row is durable. One put, and only when the log is on a store of its own
        and was opened since.
        """
        with self._marks:
            last = Position(self._next - 1)
            ongoing = self._in_flight or (reached is not None and last > reached)
            ongoing = ongoing or self._interrupted is not None
            # The outcome of an entry is unknown, or nothing was written since the open mark.
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
            logger.info("wal.shut.skipped shard=%s reason=%s", self.site.shard, error)

    def _open_log(self, position: Position, entry: Entry) -> None:
        """S-7: mark the log open in the table's store before its first entry since it was shut.

        Ownership is proved after the mark is written: a takeover of a lost log claims first and
        reads the mark second. One put and two reads for each time the log is shut.
        """
        check_identity(self.site)
        self.manifests.floors.raise_to("open", position)
        try:
            self.ownership.prove()
        except FencedError as fenced:
            raise self._finish_fenced(fenced, entry) from None
        with self._marks:
            self._opened_at = position

    def _find_ours(self, position: Position, entry: Entry) -> Meta | None:
        """Our entry, if it is the one there: a proxy repeated our request and answered for the
        repetition, or the request was interrupted after it was applied."""
        try:
            found = self.site.wal.get(paths.wal_path(self.site.shard, position))
        except ObjectMissing:
            raise self._collected(position, entry) from None
        except WeirError as error:
            raise self._finish_unknown(position, entry, error) from error
        return found.meta if found.data == bytes(entry.data) else None

    def _collected(self, position: Position, entry: Entry) -> WeirError:
        """The entry found there is gone, so whether it was ours cannot be known (F-11)."""
        gone: WeirError = StoreError(
            "an entry existed there, but was collected before it could be compared with ours"
        )
        try:
            self.ownership.prove()
        except FencedError as fenced:
            return self._finish_fenced(fenced, entry)
        except WeirError as error:
            gone = error
        return self._finish_unknown(position, entry, gone)

    def _collided(self, position: Position, entry: Entry) -> WeirError:
        """F-5: our position was taken; either we are fenced or something writes without a claim."""
        entry.sent = False  # another entry has its place, and it was sent nowhere else
        try:
            self.ownership.prove()
        except FencedError as fenced:
            return self._finish_fenced(fenced, entry)
        text = (
            f"{self.site}: position {position} was taken although epoch {self.epoch} is still"
            " current; something writes to this log without claiming it. Open the shard again."
        )
        self._end = lambda rows: WriterClosed(text, not_written=rows)
        return CommitConflict(text, not_written=entry.batches)

    def _finish_fenced(self, fenced: FencedError, entry: Entry) -> WeirError:
        shard, epoch, by, at = self.site.shard, self.epoch, fenced.fenced_by, self._next

        def ended(rows: Sequence[pa.RecordBatch], sent: Sequence[pa.RecordBatch] = ()) -> WeirError:
            error = FencedError(str(fenced), epoch=epoch, fenced_by=by)
            error.not_written, error.perhaps_written = list(rows), list(sent)
            return error.at(at)

        self._end = ended
        logger.warning("wal.fenced shard=%s epoch=%d by=%d at=%d", shard, epoch, by, at)
        return ended((), entry.batches) if entry.sent else ended(entry.batches)

    def _finish_unknown(self, position: Position, entry: Entry, cause: Exception) -> UnknownOutcome:
        text = (
            f"{self.site}: it is not known whether the entry at position {position} is durable"
            f" ({cause}); nothing was deleted. Open the shard again: its replay decides."
        )
        unknown = UnknownOutcome(text, perhaps_written=entry.batches)

        def ended(rows: Sequence[pa.RecordBatch]) -> WeirError:
            closed = WriterClosed(
                f"this call wrote nothing, the appender failed earlier: {text}", not_written=rows
            )
            closed.__cause__ = unknown
            return closed

        self._end = ended
        return unknown

    def _check(self, batches: Sequence[pa.RecordBatch]) -> None:
        if self._end is not None:
            raise self._end(batches)
