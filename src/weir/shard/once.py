"""Puts that take effect once, however often they are tried: the writer's side of P-2.

A batch is noted before it is submitted, and stays noted while it may be in or out: an interrupt, a
timeout or an error leaves none that the next call of its application does not know of (F-16). Once
the outcome is certain only the batch's number is kept.

The token is durable with the rows, in their entry. Recording it beside the log as well is for those
who come after the entry is gone, and the note of P-6 stands until it is done: a store that refuses
it makes the batch no less written, so the call does not fail. The next one tries again, then
`close`; a note that is left sends the next writer to the log.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final, Protocol

import pyarrow as pa

from weir.durations import deadline_after, seconds_until
from weir.env import Lock
from weir.errors import Backpressure, StoreError, WeirError
from weir.format.wal_entry import check_token
from weir.log.appender import WalAppender
from weir.shard.ack import Ack, see_through, take_back
from weir.shard.ending import with_rows
from weir.shard.tokens import Tokens
from weir.types import Position

logger = logging.getLogger("weir.shard")

PRUNED_EVERY: Final = 32
"""Records of one application after which older ones are deleted: a listing and a delete for each
batch would cost as much as its entry and its record."""

Noted = Callable[[Ack], None]
"""Gives an ack the token of its batch, and notes that it is on its way. Called before the ack is
submitted: one that is not noted has no token."""
Enqueue = Callable[[list[pa.RecordBatch], float | None, Noted], Ack | None]
"""Accepts rows as one entry with a noted ack; returns None if there is nothing to write."""
Refused = Callable[[Sequence[pa.RecordBatch]], WeirError]
"""The error of a call on a writer that has ended, with the rows of that call."""


class FormerBatches(Protocol):
    """What the shards of former routings took in (P-6)."""

    def unapplied(
        self, app: str, version: int, batches: list[pa.RecordBatch]
    ) -> list[pa.RecordBatch]:
        """The rows of a batch that none of them took under its token."""

    def last_version(self, app: str) -> int:
        """The highest batch number of `app` in any of them; -1 if there is none."""


@dataclass(slots=True, eq=False)
class _App:
    """The batches of one application in one writer's shard."""

    name: str
    lock: Lock
    """Held by a call from its first look to its last: batches come one after the other."""
    before: int | None = None
    """The highest number that was in before this writer's own; None: not looked up yet."""
    own: int = -1
    """The highest number that this writer has put in."""
    on_its_way: Ack | None = None
    """The last batch, from before it is submitted until it is certainly in or out."""
    note: str | None = None
    """The path of the note that this writer's entries hold tokens (P-6)."""
    is_recorded: bool = True
    """False while `own` may be in the log only."""
    records: int = 0
    """How many of its numbers this writer has recorded."""


class ExactlyOnce:
    """Which batches of which applications are in one writer's shard. Safe to share."""

    def __init__(self, appender: WalAppender, refused: Refused) -> None:
        self._appender = appender
        self._refused = refused
        self.former: FormerBatches | None = None
        """Set by `weir.routing` where there were former routings; None: there were none."""
        self._tokens = Tokens(appender.site)
        self._clock = appender.site.env.clock
        self._lock = appender.site.env.threads.lock()
        self._apps: dict[str, _App] = {}
        self._replayed: Mapping[str, int] = {}

    def replayed(self, tokens: Mapping[str, int]) -> None:
        """Take over the tokens that replay found in the log."""
        self._replayed = dict(tokens)

    def put(
        self,
        batches: list[pa.RecordBatch],
        *,
        app: str,
        version: int,
        timeout: float | None,
        enqueue: Enqueue,
    ) -> bool:
        """Put the rows as one entry; False if batch `version` of `app`, or a later one, is in."""
        check_token(app, version)
        own = self._app(app)
        deadline = deadline_after(timeout, self._clock)
        left = seconds_until(deadline, self._clock)
        is_held: list[bool] = []
        try:
            # F-16: an interrupt comes before this one call, or after it with the answer kept.
            is_held.extend(map(own.lock.acquire, (True,), (-1 if left is None else left,)))
            if not is_held[0]:
                raise self._busy(own, batches)
            is_new = self._put(batches, own, version, deadline, enqueue)
            self._record(own)
            return is_new
        finally:
            if is_held and is_held[0]:
                own.lock.release()

    def _app(self, name: str) -> _App:
        with self._lock:
            found = self._apps.get(name)
            if found is None:
                lock = self._appender.site.env.threads.lock()
                self._apps[name] = found = _App(name, lock)
            return found

    def _put(
        self,
        batches: list[pa.RecordBatch],
        app: _App,
        version: int,
        deadline: float | None,
        enqueue: Enqueue,
    ) -> bool:
        self._settle_before(batches, app, deadline)
        left = self._missing(batches, app, version)
        if left is None:
            return False
        try:
            self._put_missing(left, app, version, deadline, enqueue)
        except StoreError as error:  # of a request beside the log: the log's errors have their rows
            raise with_rows(error, left, sent=False) from error.__cause__
        return True

    def _missing(
        self, batches: list[pa.RecordBatch], app: _App, version: int
    ) -> list[pa.RecordBatch] | None:
        """The rows of the batch that are not in; None: all of them are."""
        try:
            if version <= self._own_version(app):  # guard: P-2
                return None
            if self.former is None:
                return batches
            left = self.former.unapplied(app.name, version, batches)
        except WeirError as error:  # F-16: an earlier call may have put them
            raise with_rows(error, batches, sent=True) from error.__cause__
        return None if batches and not left else left

    def _put_missing(
        self,
        batches: list[pa.RecordBatch],
        app: _App,
        version: int,
        deadline: float | None,
        enqueue: Enqueue,
    ) -> None:
        if app.note is None:
            # P-6: before the entry. If we die before its token is recorded, and a native writer
            # flushes the entry, the next writer reads the log from here.
            after = Position(self._appender.next_position - 1)
            app.note = self._tokens.begin(app.name, after, self._appender.epoch)

        def noted(ack: Ack) -> None:
            ack.tokens = ((app.name, version),)
            app.on_its_way = ack  # guard: P-2

        try:
            ack = enqueue(batches, seconds_until(deadline, self._clock), noted)
            if ack is not None:
                ack.wait(seconds_until(deadline, self._clock))
        finally:
            self._look(app)
        if ack is None:  # the decision to write nothing is final, and in no entry
            self._tokens.record(app.name, version)
            app.own, app.is_recorded = version, True

    def _settle_before(
        self, batches: list[pa.RecordBatch], app: _App, deadline: float | None
    ) -> None:
        """Wait for the batch before: of a call that timed out or was interrupted, it may be neither
        in nor out. Its outcome is its caller's; an error here holds our rows (F-16)."""
        self._look(app)
        before = app.on_its_way
        if before is None:
            return
        if not see_through(before, seconds_until(deadline, self._clock)):
            raise self._busy(app, batches)
        self._look(app)
        if app.on_its_way is not None:  # the writer has ended
            raise self._refused(batches)

    def _look(self, app: _App) -> None:
        """Forget the batch on its way, except its number, if it is certainly in or out. Its call is
        over, or this one; may be repeated."""
        ack = app.on_its_way
        if ack is None:
            return
        # guard: F-16 test_put_once_sent_again
        if not take_back(ack):  # it was accepted
            if not ack.done or ack.is_refused:
                return
            if ack.position is not None:  # guard: P-2
                app.own, app.is_recorded = max(app.own, ack.tokens[0][1]), False
        app.on_its_way = None

    def _record(self, app: _App) -> bool:
        """Record the newest token beside the log; False if that failed. Its rows are durable, and
        no error may call them anything else (F-16)."""
        if not app.is_recorded:
            try:
                self._tokens.record(app.name, app.own, prune=not app.records % PRUNED_EVERY)
            except Exception as error:  # noqa: BLE001  see above, whatever it is
                site, facts = self._appender.site.label, (app.name, app.own, error)
                logger.warning("token.unrecorded %s app=%s version=%d reason=%s", site, *facts)
                return False
            app.is_recorded = True
            app.records += 1
        return True

    def _busy(self, app: _App, batches: list[pa.RecordBatch]) -> Backpressure:
        return Backpressure(
            f"{self._appender.site}: the batch before of {app.name!r} was not durable in time;"
            " nothing of this batch was accepted, try again",
            not_written=batches,
        )

    def close(self) -> None:
        """Record what is left and delete the notes; called when the writer closes cleanly, and
        everything is durable. May be repeated."""
        with self._lock:
            apps = list(self._apps.values())
        over = [app for app in apps if app.note is not None and self._is_over(app)]
        recorded = [app for app in over if app.is_recorded]
        # Up to the first failure: a store that is down is not asked for each of a thousand.
        recorded += takewhile(self._record, [app for app in over if not app.is_recorded])
        # A note that stays only costs the next writer a read of the log.
        with contextlib.suppress(StoreError):
            self._tokens.end([app.note for app in recorded if app.note is not None])
        for app in recorded:
            app.note = None

    def _is_over(self, app: _App) -> bool:
        """True when no call is under way, and no batch. One may be below us in this very thread, if
        a signal's handler closes: so it is not waited for, and its note stays."""
        is_held: list[bool] = []
        try:
            is_held.extend(map(app.lock.acquire, (False,)))
            if not is_held[0]:
                return False
            self._look(app)
            return app.on_its_way is None
        finally:
            if is_held and is_held[0]:
                app.lock.release()

    def last_version(self, app: str) -> int:
        """The highest batch number of `app` that is in, here or in a shard of a former routing; -1
        before the first. `put` may skip rows of any batch up to that one."""
        own = self._own_version(self._app(app))
        return own if self.former is None else max(own, self.former.last_version(app))

    def _own_version(self, app: _App) -> int:
        """The highest batch number of `app` in this shard. No request after the first: whoever
        writes another claims the shard first, and this writer is fenced."""
        if app.before is None:
            claim = self._appender.claim
            recorded = self._tokens.recovered(
                app.name, epoch=self._appender.epoch, through=claim.fence
            )
            replayed = self._replayed.get(app.name, -1)
            app.before = replayed if recorded is None else max(replayed, recorded)
        ack = app.on_its_way  # `last_version` holds no lock
        is_in = ack is not None and ack.done and ack.position is not None
        return max(app.before, app.own, ack.tokens[0][1] if ack is not None and is_in else -1)
