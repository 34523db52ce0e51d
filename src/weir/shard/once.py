"""Puts that take effect once, however often they are tried: the writer's side of P-2."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from weir.errors import StoreError
from weir.format.wal_entry import check_token
from weir.log.appender import WalAppender
from weir.log.entry import Token
from weir.shard.ack import Ack
from weir.shard.tokens import Tokens, tokens_in_log
from weir.types import Position

Enqueue = Callable[[list[pa.RecordBatch], float | None, Sequence[Token]], Ack | None]
"""Accepts rows as one entry with those tokens; returns None if there is nothing to write."""
UnappliedFilter = Callable[[str, int, list[pa.RecordBatch]], list[pa.RecordBatch]]
"""Returns the rows of a batch that no shard of a former routing took under its token."""


class ExactlyOnce:
    """Which batches of which applications are in one writer's shard. Safe to share."""

    def __init__(self, appender: WalAppender, enqueue: Enqueue) -> None:
        self._appender = appender
        self._enqueue = enqueue
        self.unapplied_filter: UnappliedFilter | None = None
        """Set by `weir.routing` where there were former routings; None: there were none."""
        self._tokens = Tokens(appender.site)
        self._lock = appender.site.env.threads.lock()
        self._newest: dict[str, Ack] = {}
        self._notes: dict[str, str] = {}
        """By application, the path of the note that this writer's entries hold its tokens."""
        self._unrecorded: set[str] = set()
        """Applications whose newest token may be in the log only."""
        self._seen: dict[str, int] | None = None
        """Tokens found in the log after R; None until the log was read for them."""

    def replayed(self, tokens: Mapping[str, int]) -> None:
        """Take over the tokens that replay found in the log."""
        self._seen = dict(tokens)

    def put(
        self,
        batches: list[pa.RecordBatch],
        *,
        app: str,
        version: int,
        timeout: float | None,
        enqueue: Enqueue | None = None,
    ) -> bool:
        """Put the rows as one entry; False if batch `version` of `app`, or a later one, is in.

        `enqueue`, if given, accepts what is made of the rows instead.
        """
        check_token(app, version)
        with self._lock:
            # One batch after the other: a batch in flight, of another thread or of a call that
            # timed out, is neither in nor out before its entry is settled.
            before = self._newest.get(app)
            if before is not None:
                self._await_and_record(app, before, timeout)
            if version <= self.last_version(app):
                return False
            if self.unapplied_filter is not None:
                left = self.unapplied_filter(app, version, batches)
                if batches and not left:
                    return False
                batches = left
            if app not in self._notes:
                # P-6: before the entry. If we die before its token is recorded, and a native writer
                # flushes the entry, the next writer reads the log from here.
                after = Position(self._appender.next_position - 1)
                self._notes[app] = self._tokens.begin(app, after, self._appender.epoch)
            ack = (enqueue or self._enqueue)(batches, timeout, ((app, version),))
            if ack is None:  # the decision to write nothing is final
                self._tokens.record(app, version)
                return True
            self._newest[app] = ack
            self._unrecorded.add(app)
            self._await_and_record(app, ack, timeout)
            return True

    def _await_and_record(self, app: str, ack: Ack, timeout: float | None) -> None:
        """Wait for the entry, and record its token beside the log."""
        ack.wait(timeout)
        if app not in self._unrecorded:
            return
        if ack.rows:
            self._tokens.record(app, max(number for name, number in ack.tokens if name == app))
        self._unrecorded.discard(app)

    def close(self) -> None:
        """Delete the notes; called when the writer closes cleanly, and everything is durable."""
        with self._lock:
            known = [path for app, path in self._notes.items() if app not in self._unrecorded]
            self._notes.clear()
        # A note that stays only costs the next writer a read of the log.
        with contextlib.suppress(StoreError):
            self._tokens.end(known)

    def last_version(self, app: str) -> int:
        """The highest batch number of `app` that is in, -1 before the first."""
        claim = self._appender.claim
        if self._seen is None:
            # No replay ran that would have found tokens whose writer died before recording them.
            self._seen = tokens_in_log(
                self._appender.site, claim.manifest.replay_after, claim.fence
            )
        if app not in self._newest:
            # Entries of a writer that died, flushed by one that does not know of tokens (P-6).
            self._tokens.recover(app, epoch=self._appender.epoch, through=claim.fence)
        newest = self._newest.get(app)
        ours = max((v for a, v in newest.tokens if a == app), default=-1) if newest else -1
        recorded = self._tokens.load(app)
        return max(self._seen.get(app, -1), ours, -1 if recorded is None else recorded)
