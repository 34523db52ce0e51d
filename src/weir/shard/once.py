"""Puts that take effect once, however often they are tried: the writer's side of P-2."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from weir.format.wal_entry import check_token
from weir.log.appender import Token, WalAppender
from weir.shard.ack import Ack
from weir.shard.tokens import Tokens, tokens_in_log

Enqueue = Callable[[list[pa.RecordBatch], float | None, Sequence[Token]], Ack]


class Once:
    """Which batches of which applications are in one writer's shard. Safe to share."""

    def __init__(self, appender: WalAppender, enqueue: Enqueue) -> None:
        self._appender = appender
        self._enqueue = enqueue
        self._tokens = Tokens(appender.site)
        self._lock = appender.site.env.threads.lock()
        self._newest: dict[str, Ack] = {}
        self._seen: dict[str, int] | None = None
        """Tokens met in the log since R; None until it was read for them."""

    def replayed(self, tokens: Mapping[str, int]) -> None:
        """Replay read the log and met these."""
        self._seen = dict(tokens)

    def put(
        self, batches: list[pa.RecordBatch], *, app: str, version: int, timeout: float | None
    ) -> bool:
        """Put them as one entry; False when batch `version` of `app`, or a later one, is in."""
        check_token(app, version)
        with self._lock:
            # One at a time: a batch on its way, of another thread or of a call that timed out, is
            # neither in nor out before its entry is settled.
            before = self._newest.get(app)
            if before is not None:
                before.wait(timeout)
            if version <= self.last_version(app):
                return False
            ack = self._enqueue(batches, timeout, ((app, version),))
            self._newest[app] = ack
            ack.wait(timeout)
            if ack.rows:
                # Recorded beside the log as well: a native writer may flush the entry without
                # knowing of it.
                self._tokens.record(app, version)
            return True

    def last_version(self, app: str) -> int:
        """The highest batch number of `app` that is in, -1 before the first."""
        if self._seen is None:
            # Replay would have met them: tokens whose writer died before it recorded them.
            claim = self._appender.claim
            self._seen = tokens_in_log(
                self._appender.site, claim.manifest.replay_after, claim.fence
            )
        newest = self._newest.get(app)
        ours = max((v for a, v in newest.tokens if a == app), default=-1) if newest else -1
        recorded = self._tokens.load(app)
        return max(self._seen.get(app, -1), ours, -1 if recorded is None else recorded)
