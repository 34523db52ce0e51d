"""Appends entries to one shard's log: one put in flight, no overwrites, a fence is final.

Keeps
  F-5  on this path a collision always ends the appender
  F-9  a lost answer is settled by the entry's own bytes, which carry a random id
  F-10 the next entry is not attempted before the one before it is known to be durable
  F-11 what stays unknown is `UnknownOutcome`, not a conflict and not success
  F-13 a fenced appender acknowledges nothing, then or later, and makes no further request
  F-14 tags never fall and never jump
  F-16 an interrupted entry is written again, the same bytes to the same place, before any other
  G-7b success also needs a proof of ownership younger than `fence_ttl`
  S-7  the manifest says that the owner has left only after its last entry is durable
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from copy import copy
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
from weir.format.wal_entry import EntryEncoder, Fill
from weir.log.entry import Entry, Token
from weir.log.fence import claim_shard
from weir.log.intake import Intake, fill_of
from weir.log.manifests import Manifests
from weir.log.ownership import Claim, Ownership
from weir.log.site import ShardSite
from weir.log.tags import Bounds, GenerationTags, LogEnds, follow_log
from weir.store.api import LostAnswer, Meta, ObjectExists, ObjectMissing
from weir.types import Epoch, Generation, Position

logger = logging.getLogger("weir.log")


class OpenShard(Protocol):
    """What `open` needs of a shard; `weir.Shard` implements it."""

    @property
    def writer_defaults(self) -> WriterConfig:
        """The table's; they bound what any writer puts into a generation (F-15)."""

    def schema_for_writing(self) -> TableSchema:
        """The table's schema with its field ids; raises when a writer may not open the shard."""

    def site_for_writing(self, schema: TableSchema) -> ShardSite:
        """Where the shard is, its log moved to where the table wants it (S-8)."""


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
        ends: LogEnds | None = None,
    ) -> None:
        """`ends` of a log with live entries; None: it has none."""
        self.site = site
        self.manifests = manifests
        self.claim = claim
        """The claim this appender writes under."""
        first = Generation(claim.manifest.current_generation)
        ends = ends or LogEnds(first, Fill(), claim.manifest.replay_after)
        self.tags = GenerationTags(ends, bounds or Bounds.of(WriterConfig()))
        """The only place that checks the tags of entries (F-14)."""
        self.ownership = Ownership(manifests, claim)
        self.bytes_written = 0
        self._encoder = EntryEncoder(schema, max_bytes=site.env.limits.entry_bytes)
        self._intake = Intake(schema)
        self._next = Position(claim.fence + 1)
        self._lock = site.env.threads.lock()
        self._fork_guard = ForkGuard(site.env)
        self._ended: WeirError | None = None
        """Why the appender takes no more entries."""
        self._appending: Entry | None = None
        """The entry of an `append` that was interrupted: it may or may not be at `_next`. Whoever
        calls `write` remembers its entry itself."""
        self._folder = paths.wal_dir(site.shard)

    @classmethod
    def open(cls, shard: OpenShard, *, fence_ttl: Duration | None = None) -> WalAppender:
        """Claim the shard and fence every older writer; a write. Raises what `claim_shard` does.

        Rows that older writers left stay in the log, unread. `fence_ttl`: at most the table's own.
        """
        schema = shard.schema_for_writing()
        site = shard.site_for_writing(schema)
        manifests = Manifests(site)
        claim = claim_shard(site, manifests, fence_ttl=fence_ttl, wal_only=True)
        followed = follow_log(manifests, claim, keyed=bool(schema.primary_key))
        if followed is None:
            raise CommitConflict(
                f"{site}: the log holds entries of another program, so"
                " the generation of the next entry is not known. Open a writer of the shard"
                " and close it, which flushes them, then append"
            )
        claim, ends = followed
        bounds = Bounds.of(shard.writer_defaults)
        return cls(site, schema, claim, manifests=manifests, bounds=bounds, ends=ends)

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
        return isinstance(self._ended, FencedError)

    def append(
        self,
        batches: Sequence[pa.RecordBatch],
        *,
        generation: Generation | None = None,
        tokens: Sequence[Token] = (),
    ) -> Position:
        """Make the rows of `batches` durable as one entry and return its position.

        The batches have the table's columns; a boolean `_tombstone` marks deletes. `generation` is
        that of the previous entry or the next one; None: it rises as full MemTables would.
        On return the rows survive the loss of this process. Raises `FencedError` when a newer
        writer owns the shard (keep `.unacknowledged`), `StoreError` when the entry was certainly
        not written (appending again is safe), `UnknownOutcome` when that cannot be known (this
        appender is then finished). One put, plus three reads once per `fence_ttl`.
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
        with self._lock:  # guard: F-10
            self._check(batches)
            if self._appending is not None:  # guard: F-16 test_outcomes
                # A read would not be enough: its request may still be in flight, and land where
                # the next entry should go.
                self._append(self._appending)
            more = fill_of(batches)
            tag = self.tags.following(more)[0] if generation is None else generation
            return self._append(self._encoded(batches, tag, tokens, more, is_staged=is_staged))

    def _encoded(
        self,
        batches: Sequence[pa.RecordBatch],
        generation: Generation,
        tokens: Sequence[Token],
        more: Fill,
        *,
        is_staged: bool = False,
    ) -> Entry:
        filled = self.tags.filled_with(generation, more)
        data = self._encoder.encode(
            batches,
            epoch=self.epoch,
            generation=generation,
            entry_id=self.site.env.new_hex(),
            tokens=tokens,
            filled=None if is_staged else filled,
            is_staged=is_staged,
            batches_max=self.tags.bounds.batches,
        )
        return Entry(batches, generation, data, filled, is_staged)

    def _append(self, entry: Entry) -> Position:
        self._appending = entry
        try:
            position = self._write(entry)
        except Exception:
            if not entry.sent:
                self._appending = None
            raise
        self._appending = None
        return position

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
            return self._encoded(batches, generation, tokens, more)

    def write(self, entry: Entry) -> Position:
        """Make the entry durable and return its position; raises as `append` does.

        After an interrupt (any `BaseException`) the same call settles the outcome, and no other
        entry may be written before that: callers that wait for the entry's rows do not see the
        interrupt.
        """
        with self._lock:
            if entry.position is None:
                self._check(entry.batches)
            return self._write(entry)

    def _write(self, entry: Entry) -> Position:
        position = self._next if entry.position is None else entry.position
        try:
            if entry.position is None:
                if not entry.is_staged:
                    self._require_tag(entry)
                self._send(position, entry)
            self._landed(entry, position)
        except Exception as error:
            if isinstance(error, WeirError) or not entry.sent:
                raise
            # An untranslated error proves nothing: the entry may be in the log (F-11).
            raise self._finish_unknown(position, entry, error) from error
        return position

    def _landed(self, entry: Entry, position: Position) -> None:
        """Safe to interrupt and call again: the entry's position is set first."""
        entry.position = position
        if not entry.is_staged:
            self.tags.landed(entry.generation, entry.filled, position)
        following, nbytes = Position(position + 1), len(entry.data)
        if self._next == position:
            self._next = following
            self.bytes_written += nbytes

    def _require_tag(self, entry: Entry) -> None:
        try:
            self.tags.require(entry.generation, self.site, self._next)
        except InvalidInput as refused:
            refused.not_written = list(entry.batches)
            raise

    def _send(self, position: Position, entry: Entry) -> None:
        """Return when the entry is at its position and counts."""
        sent_before, entry.sent = entry.sent, True
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
            self.ownership.require(stored)
        except FencedError as fenced:
            # The entry is there. It counts if it precedes the new owner's fence, but not in a
            # collected place (G-7b); only the new owner's log can tell which.
            raise self._finish_fenced(fenced, entry) from None
        except WeirError as error:
            # The entry was written, but it may not count (F-11).
            raise self._finish_unknown(position, entry, error) from error

    def leave(self) -> None:
        """Say in the manifest that no entry of ours will follow, and take no more rows.

        Called on close, after the last entry is durable. A failing store, or a takeover, is not an
        error: every row is durable, and the log is only folded later. One commit.
        """
        left = WriterClosed(f"{self.site}: this appender has left the shard; open another one")
        with self._lock:
            self._ended = self._ended or left  # guard: S-7 test_missing_log
        try:
            self.manifests.leave(self.epoch, self.tags.last)
        except (StoreError, FencedError, CommitConflict, UnknownOutcome) as error:
            logger.info("wal.leave.skipped %s reason=%s", self.site.label, error)

    def _find_ours(self, position: Position, entry: Entry) -> Meta | None:
        """Our entry, if it is the one there: a proxy repeated our request and answered for the
        repetition, or the request was interrupted after it was applied."""
        try:
            found = self.site.wal.get(paths.wal_path(self.site.shard, position))
        except ObjectMissing:
            raise self._collected(position, entry) from None
        except WeirError as error:
            raise self._finish_unknown(position, entry, error) from error
        # guard: F-11 always simulator
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
        self._ended = WriterClosed(text)
        return CommitConflict(text, not_written=entry.batches)

    def _finish_fenced(self, fenced: FencedError, entry: Entry) -> WeirError:
        label, by, at = self.site.label, fenced.fenced_by, self._next
        logger.warning("wal.fenced %s epoch=%d by=%d at=%d", label, self.epoch, by, at)
        self._ended = FencedError(str(fenced), epoch=self.epoch, fenced_by=by).at(at)
        error = self._refusal(entry.batches)
        if entry.sent:
            error.not_written, error.perhaps_written = [], error.not_written
        return error

    def _finish_unknown(self, position: Position, entry: Entry, cause: Exception) -> UnknownOutcome:
        text = (
            f"{self.site}: it is not known whether the entry at position {position} is durable"
            f" ({cause}); nothing was deleted. Open the shard again: its replay decides."
        )
        unknown = UnknownOutcome(text, perhaps_written=entry.batches)
        ended = WriterClosed(f"this call wrote nothing, the appender failed earlier: {text}")
        ended.__cause__ = unknown
        self._ended = ended
        return unknown

    def _check(self, batches: Sequence[pa.RecordBatch]) -> None:
        if self._ended is not None:
            raise self._refusal(batches)

    def _refusal(self, batches: Sequence[pa.RecordBatch]) -> WeirError:
        """The error of the end, for rows that were never sent: each caller gets its own."""
        assert self._ended is not None, "only an appender that has ended refuses"
        error = copy(self._ended)
        error.not_written = list(batches)
        return error
