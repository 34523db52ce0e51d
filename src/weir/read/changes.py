"""The log of all shards as a change feed that can be resumed.

Keeps
  F-12 fences are skipped
  K-8  a following feed survives an error of the store: it logs, counts and polls again
  G-7c a bookmark below the WAL floor raises an error that says so, never a silent skip
  P-3  each entry once and in order within a shard, and all of a routing's shards before those of
       the next: the changes of one key come in the order in which they were made durable; a load,
       of which no entry tells, stops the feed
Between shards of one routing there is no order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Final, Literal, Protocol
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa

from weir.errors import (
    InvalidInput,
    SnapshotExpired,
    StoreDenied,
    StoreError,
    WalStoreMismatch,
)
from weir.format.schema import TOMBSTONE, TableSchema, align_batch
from weir.format.wal_entry import WalEntry
from weir.log.shard_log import ShardLog
from weir.log.tailer import WalTailer
from weir.merge.levels import level_schema, shaped
from weir.read.expiries import Expiries
from weir.read.loads import require_same_load
from weir.records import codec
from weir.routing.core import Core
from weir.routing.order import OrderedShards
from weir.store.api import RootMissing
from weir.types import Position

logger = logging.getLogger("weir.table")

_BEGIN_AGAIN: Final = (
    "Begin again with an empty copy: table.follow() (weir tail --rows) hands out the rows of now,"
    ' then the changes; or go on from now: table.changes(since="now") (weir tail --new). If the'
    " copy has those rows by other means, go on from the place of before:"
    " table.changes(since=bookmark.past_loads())"
)
_BEGIN_NAMED: Final = (
    "Begin again: table.drop_consumer({name}) (weir consumer drop), then, with an empty copy,"
    " table.follow({name}) (weir tail --rows --consumer {plain}), which hands out the rows of now,"
    ' then the changes; or table.changes(since="now", consumer={name}). If the copy has those rows'
    " by other means, move the consumer on: table.changes(since=feed.bookmark.past_loads(),"
    " consumer={name}) with feed = table.changes(consumer={name})"
)

LONG_VISIT: Final = 1_000
"""Entries of one shard after which a feed looks where to leave it for the next."""

Kind = Literal["put", "delete", "expire"]


class Bookmark(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How far a consumer has read: the last position per shard. Small, serializable, comparable."""

    positions: Mapping[UUID, int] = msgspec.field(default_factory=dict)
    expired_through: float | None = None
    """For a feed that reports expired rows: it has reported those whose time is at or before this,
    in seconds since 1970."""
    within: Mapping[UUID, int] = msgspec.field(default_factory=dict)
    """For a shard whose next entry was handed out in part: how many parts of it were. Each run of
    puts or deletes counts as two: its rows, then those of them that had already expired."""
    snapshot: UUID | None = None
    """For a feed that begins with the rows of a moment (`Table.follow`) and has not handed out all
    of them: the checkpoint that holds them. They are handed out again, from the first."""
    load: int | None = None
    """The number of the table's last load before this place, 0 if there was none: a feed stops when
    the table has another one. None: not known, and the feed begins with the table's."""

    def past_loads(self) -> Bookmark:
        """The same place, for a consumer that a load has stopped and that took its rows in by other
        means: a feed from here goes on with the changes before and after the load."""
        return msgspec.structs.replace(self, load=None)

    def to_json(self) -> str:
        """The bookmark as JSON text."""
        return codec.dumps(self).decode()

    @staticmethod
    def from_json(text: str) -> Bookmark:
        """Parse the text made by `to_json`; `InvalidInput` for anything else."""
        try:
            return codec.decode(text, Bookmark)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"not a bookmark: {error}") from error


@dataclass(frozen=True)
class Change:
    """Rows that became durable together, all puts or all deletes; or that have expired."""

    shard: UUID
    position: int
    """Position of the entry; for expired rows, the last position reported for this shard."""
    epoch: int
    """Epoch of the entry; 0 for expired rows and those of a snapshot, which no writer wrote."""
    kind: Kind
    batch: pa.RecordBatch
    """Put: whole rows in the table's schema. Delete and expire: the key columns, or whole rows if
    the table has no key."""
    bookmark: Bookmark = field(repr=False)
    """Where to resume after this change. A consumer that saves it in one transaction with the rows
    gets every change once. Rows that one look found expired count together: only the bookmark of
    the last change with them is past them."""
    of_snapshot: bool = False
    """True for rows that were there when the feed began (`Table.follow`); their kind is "put"."""


class Hold(Protocol):
    """What is kept for a named consumer (`weir.upkeep.consumers`)."""

    @property
    def name(self) -> str:
        """The consumer's name."""
        ...

    def passed(self, place: Bookmark) -> None:
        """The consumer is done with everything up to `place`; saves it now and then."""
        ...

    def save(self, place: Bookmark) -> None:
        """The same, saved at once."""
        ...

    def is_held(self, shard: UUID, position: int) -> bool:
        """True when that entry is kept for it, whatever the floor says."""
        ...


class FirstRows(Protocol):
    """The rows with which a feed begins."""

    def parts(self) -> Iterator[tuple[UUID, pa.RecordBatch]]:
        """All of them, with the shard that takes such rows."""
        ...

    def release(self) -> None:
        """They were handed out: nothing needs to keep them any more."""
        ...


@dataclass(frozen=True)
class Start:
    """Where a feed begins."""

    place: Bookmark = field(default_factory=Bookmark)
    resumes: bool = False
    """True when entries after `place` that are gone are an error."""
    hold: Hold | None = None
    rows: FirstRows | None = None
    """Given when `place` is within a snapshot."""


class Changes:
    """An iterator of `Change`; `bookmark` is where to resume after the changes handed out.

    A feed may be left, by `break` or by an error, and taken up again: it continues after the last
    change handed out; but after an error among the rows of a snapshot, these begin again. Not safe
    to share between threads. A feed that does not follow, and has come to its end, stays ended: for
    what came since, ask for the changes after its `bookmark`.

    With a consumer, whoever asks for the next change is done with those before it. Their place is
    saved on the store when the feed ends, and otherwise every few seconds; `commit` saves it at
    once. After a crash the changes since the saved place come again, so each comes at least once.
    """

    def __init__(
        self,
        core: Core,
        since: Bookmark | str | None = None,
        *,
        follow: bool = False,
        poll: float = 0.1,
        stop: Callable[[], bool] = lambda: False,
        expired: bool = False,
        begin: Callable[[], Start] | None = None,
    ) -> None:
        """Use `Table.changes`. `begin`, if given, finds out where it begins; until then its
        bookmark is `since`."""
        place = bookmark_of(since)
        self._core = core
        self._follow = follow
        self._poll = poll
        self._stop = stop
        self._has_ended = False
        self.failed_polls = 0
        """Rounds of a following feed that failed with a store error and were repeated (K-8)."""
        self._before = self._after = place or Bookmark()
        """Where to resume before the change in hand, and after it."""
        self._expired = expired
        self._begin = begin or (lambda: Start(place or Bookmark(), resumes=place is not None))
        self._begun: tuple[_Reader, Start] | None = None
        self._rounds: Iterator[Change | Bookmark] = iter(())
        self._is_fetched = False
        """True from the moment a change is read until the consumer has it."""
        self._is_within_round = False

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError(
            f"{self._core.uri}: a change feed cannot be pickled; pass the table and the bookmark,"
            " and call table.changes(since=bookmark) where they arrive"
        )

    @property
    def bookmark(self) -> Bookmark:
        """Everything handed out before the current change; `Change.bookmark` is after it."""
        return self._before

    def __iter__(self) -> Iterator[Change]:
        return self

    def __next__(self) -> Change:
        while not self._has_ended:
            change = self.hand_over(self.fetch())
            if change is not None:
                return change
            pause = self.pause
            if pause is None:
                self.settle(self.handed_out)
                self._has_ended = True
            else:
                self._core.env.clock.sleep(pause)
        raise StopIteration

    @property
    def pause(self) -> float | None:
        """How long to wait, in seconds, where there is no change now; None: the feed ends here."""
        return self._poll if self._follow and not self._stop() else None

    def begin(self) -> None:
        """Find out where the feed begins, with the requests that takes; for callers to whom it
        matters when. The first change does it otherwise."""
        self._reader()

    def commit(self) -> Bookmark:
        """Save on the store that the consumer is done with every change handed out so far, the
        current one included; returns that place. `InvalidInput` for a feed without a consumer;
        `SnapshotExpired` when the consumer was dropped or has expired. Three requests."""
        return self.commit_at(self.handed_out)

    @property
    def handed_out(self) -> Bookmark | None:
        """Everything handed out so far, the current change included; None before it begins."""
        return None if self._begun is None else self._after

    def commit_at(self, place: Bookmark | None) -> Bookmark:
        """`commit` of what was `handed_out` then: more may be, before a thread comes to it."""
        _, start = self._reader()
        if start.hold is None:
            raise InvalidInput(
                f"{self._core.uri}: this feed has no consumer whose place could be saved; name one,"
                " as in table.changes(consumer='mirror'), or keep change.bookmark yourself"
            )
        place = start.place if place is None else place
        start.hold.save(place)
        return place

    def settle(self, place: Bookmark | None) -> None:
        """Save the place of a consumer that has asked for more and got nothing."""
        _, start = self._reader()
        place = start.place if place is None else place
        if start.hold is not None:
            start.hold.save(place)
        self._release_rows(place)

    def _release_rows(self, place: Bookmark) -> None:
        """Once the consumer has all rows of a snapshot, and its record says so."""
        reader, start = self._reader()
        if start.rows is not None and place.snapshot is None:
            start.rows.release()
            self._begun = (reader, replace(start, rows=None))

    def _reader(self) -> tuple[_Reader, Start]:
        if self._begun is None:
            start = self._begin()
            reader = _Reader(self._core, self._stop, start, expired=self._expired)
            self._before = self._after = start.place
            self._rounds = reader.go_back(start.place)
            self._begun = (reader, start)
        return self._begun

    @property
    def rounds_to_poll(self) -> int:
        """How often `poll` goes over all shards: a round that an earlier call left has passed
        shards that may have more by now."""
        return 2 if self._is_within_round else 1

    def poll(self) -> Iterator[Change]:
        """The changes available now, without waiting for more; call it repeatedly."""
        rounds = self.rounds_to_poll
        while rounds:
            change = self.hand_over(self.fetch())
            if change is None:
                rounds -= 1
            else:
                yield change
        self.settle(self.handed_out)

    def fetch(self) -> Change | Bookmark:
        """Read the next change; at the end of a round, where it ended. For `hand_over`.

        What was fetched and not handed over, because of an error or an interrupt, is read again.
        """
        reader, start = self._reader()
        self._before = self._after
        if self._is_fetched:
            self._rounds = reader.go_back(self._after)
        self._is_fetched = True
        try:
            if start.hold is not None:
                start.hold.passed(self._after)
            self._release_rows(self._after)
            return next(self._rounds)
        except StoreDenied:
            raise
        except StoreError as error:  # guard: K-8
            if not self._follow or self._after.snapshot is not None:
                raise
            self.failed_polls += 1
            logger.warning("changes.poll.failed table=%s reason=%s", self._core.uri, error)
            self._rounds = reader.go_back(self._after)
            return self._after

    def hand_over(self, found: Change | Bookmark) -> Change | None:
        """The consumer has what was fetched: a feed that continues does so after it."""
        if isinstance(found, Change):
            self._after = found.bookmark
        else:
            self._before = self._after = found
        self._is_fetched = False
        self._is_within_round = isinstance(found, Change)
        return found if isinstance(found, Change) else None


class _Reader:
    """Reads the logs of all shards, round after round, and knows how far it is."""

    _schema: TableSchema
    """The columns of the changes; each round begins with those of then."""

    def __init__(
        self, core: Core, stop: Callable[[], bool], start: Start, *, expired: bool
    ) -> None:
        self._core = core
        self._stop = stop
        self._has_begun = start.resumes
        """True when it resumes, or has handed out a change or a whole round: what was collected and
        not read is an error (G-7c), also in a shard that appeared since."""
        self._hold = start.hold
        self._first_rows = start.rows
        self._snapshot: UUID | None = None
        self._load: int | None = None
        self._shards = OrderedShards(core)
        self._positions: dict[UUID, int] = {}
        self._within: dict[UUID, int] = {}
        self._expired_through: float | None = None
        self._expiries = Expiries(core) if expired else None
        self._tailers: dict[UUID, WalTailer] = {}
        self._begun: set[UUID] = set()
        """Shards of which an entry was read."""

    def go_back(self, place: Bookmark) -> Iterator[Change | Bookmark]:
        """The changes after `place`, round after round; each round ends with a bookmark."""
        self._positions = dict(place.positions)
        self._within = dict(place.within)
        self._snapshot = place.snapshot
        self._load = place.load
        self._tailers.clear()
        self._has_begun = self._has_begun or bool(place.positions)
        self._expired_through = place.expired_through
        if self._expiries is not None:
            self._expiries.go_back(place.expired_through)
        return self._rounds()

    def _rounds(self) -> Iterator[Change | Bookmark]:
        if self._snapshot is not None:
            yield from self._snapshot_rows()
        while True:
            yield from self._round()
            yield self._bookmark()

    def _bookmark(self) -> Bookmark:
        expiries = self._expiries
        through = self._expired_through if expiries is None else expiries.through
        at, within = dict(self._positions), dict(self._within)
        return Bookmark(at, through, within, self._snapshot, self._load)

    def _snapshot_rows(self) -> Iterator[Change]:
        """The rows that were there at the place where the changes begin."""
        assert self._first_rows is not None, "a place within a snapshot comes with its rows"
        found = self._first_rows.parts()
        following = next(found, None)
        while following is not None:
            (shard, rows), following = following, next(found, None)
            if following is None:
                self._snapshot = None  # the bookmark of the last one is past them
            at = self._positions.get(shard, 0)
            yield Change(shard, at, 0, "put", rows, self._bookmark(), of_snapshot=True)
        self._snapshot = None

    def _round(self) -> Iterator[Change]:
        """Read every shard up to the current end of its log."""
        self._core.record_number()  # C-16: of this table, not of one made here since
        base = self._core.base()
        self._require_same_load(base.load_number)
        self._schema = base.schema
        if self._expiries is not None:
            self._expiries.begin()
        shards = list(self._shards.now())
        if not self._has_begun:
            # Before the first change: its bookmark says where the feed begins in every shard.
            for shard in shards:
                if shard not in self._positions:
                    self._positions[shard] = int(self._core.log(shard).floors().wal)
        for shard in shards:
            yield from self._read_all(shard)
            if self._stop():
                return
        self._has_begun = True
        if self._expiries is not None:
            yield from self._expired(self._expiries)

    def _require_same_load(self, found: int) -> None:
        """`SnapshotExpired` when the table was loaded since this feed's place (P-3).

        Asked once a round, of the base that the round opens for its schema: it costs no request. A
        load during the round is found by the next one, as the bookmarks keep the number of before.
        """
        again = _BEGIN_AGAIN
        if self._hold is not None:
            name = self._hold.name
            again = _BEGIN_NAMED.format(name=repr(name), plain=name)
        require_same_load(self._core, self._load, found, again)
        self._load = found

    def _expired(self, expiries: Expiries) -> Iterator[Change]:
        found = expiries.since()
        following = next(found, None)
        while following is not None:
            # After the last of them, `since` moves the time through which rows were reported.
            (shard, gone), following = following, next(found, None)
            at = self._positions.get(shard, 0)
            yield Change(shard, at, 0, "expire", gone, self._bookmark())

    def _read_all(self, shard: UUID) -> Iterator[Change]:
        while True:
            try:
                if shard not in self._tailers:
                    self._tailers[shard] = self._start(shard)
                yield from self._read(shard, self._tailers[shard])
                return
            except (WalStoreMismatch, RootMissing) as lost:
                if not self._pass_lost(shard, lost):
                    return

    def _pass_lost(self, shard: UUID, lost: WalStoreMismatch | RootMissing) -> bool:
        """S-7: continue after a lost log whose rows are all in the table, if that is allowed.

        False if nothing was written after the lost log yet. A lost log is treated like a collected
        one: a feed that had begun before it raises, and a new feed starts after it.
        """
        shard_log = self._core.log(shard)
        at = self._positions[shard]
        through = shard_log.lost_through(at + 1)
        if through is None:
            raise lost
        if at >= through:
            return False
        # guard: S-7 test_lost_log_feeds
        if self._has_begun or shard in self._begun:
            raise SnapshotExpired(
                f"{shard_log}: this feed is at position {at}, but the log up to {through} was lost"
                f" ({lost}). The table still has every row: begin again with"
                " table.follow(), which hands out its rows, then the changes"
            ) from lost
        logger.warning(
            "changes.lost %s positions=%d-%d", self._core.table_site(shard).label, at + 1, through
        )
        self._positions[shard] = through
        del self._tailers[shard]
        return True

    def _start(self, shard: UUID) -> WalTailer:
        shard_log = self._core.log(shard)
        floor = shard_log.floors().wal
        known = self._positions.get(shard)
        if known is None and self._hold is not None:
            known = 0  # made after the consumer began: all of it is kept
        if known is None and floor and self._has_begun:
            raise SnapshotExpired(
                f"{shard_log}: this feed has not read this shard yet, and its log was collected up"
                f" to position {floor}; begin again with table.follow(),"
                " which hands out the rows of now, then the changes"
            )
        is_held = partial(self._is_held, shard)
        if known is not None and known < floor and not is_held(known + 1):
            raise SnapshotExpired(
                f"{shard_log}: the bookmark is at position {known}, but the log was collected up to"
                f" {floor}; begin again with table.follow(),"
                " which hands out the rows of now, then the changes"
            )
        start = (floor if known is None else known) + 1
        self._positions.setdefault(shard, start - 1)
        return WalTailer(shard_log, start, is_held=is_held)

    def _is_held(self, shard: UUID, position: int) -> bool:
        return self._hold is not None and self._hold.is_held(shard, position)

    def _read(self, shard: UUID, tailer: WalTailer) -> Iterator[Change]:
        """Up to the end of the log, or to where it ended during the visit: a log may grow as fast
        as it is read. One that was sealed before the round is read to its end either way (P-3)."""
        end: Position | None = None
        for number, entry in enumerate(tailer, 1):
            self._positions[shard] = int(entry.position) - 1  # past fences (F-12)
            self._begun.add(shard)
            yield from self._changes_of(shard, entry, self._schema_for(entry))
            if number == LONG_VISIT:
                end = tailer.tip()
            if end is not None and entry.position >= end:
                break
        self._positions[shard] = max(self._positions[shard], int(tailer.position) - 1)

    def _schema_for(self, entry: WalEntry) -> TableSchema:
        """The columns as of the round's begin, or of now if the entry has later ones: a round may
        be long, and their values would be left out (P-3)."""
        # guard: P-3 test_changes
        if any(self._schema.is_older_than(batch.schema) for batch in entry.batches):
            self._schema = self._core.schema()
        return self._schema

    def _changes_of(self, shard: UUID, entry: WalEntry, schema: TableSchema) -> Iterator[Change]:
        """The parts of an entry that were not read yet."""
        at, done = int(entry.position), self._within.get(shard, 0)
        parts = enumerate(self._parts(entry, schema), 1)
        left = [(number, part) for number, part in parts if part is not None and number > done]
        for number, (kind, epoch, batch) in left:
            self._within[shard] = number
            if number == left[-1][0]:
                self._pass(shard, at)
            yield Change(shard, at, epoch, kind, batch, self._bookmark())
        self._pass(shard, at)

    def _pass(self, shard: UUID, position: int) -> None:
        self._positions[shard] = position
        self._within.pop(shard, None)

    def _parts(
        self, entry: WalEntry, schema: TableSchema
    ) -> Iterator[tuple[Kind, int, pa.RecordBatch] | None]:
        """Two for each run: its rows, and those of them that had already expired, if any."""
        for kind, batch in _runs(entry, schema):
            yield kind, int(entry.epoch), batch
            late = None
            if self._expiries is not None and kind == "put":
                late = self._expiries.late(batch, schema)
            yield None if late is None else ("expire", 0, late)


def bookmark_of(since: Bookmark | str | None) -> Bookmark | None:
    """The bookmark that a caller gave, as it is or as text."""
    if isinstance(since, str):
        since = Bookmark.from_json(since)
    if since is not None and not isinstance(since, Bookmark):
        raise InvalidInput(f"since must be a Bookmark or its text, got {since!r}")
    return since


def entry_rows(entry: WalEntry, schema: TableSchema) -> Iterator[pa.RecordBatch]:
    """What every feed makes of an entry: its rows in the table's columns, with `_tombstone`; none
    of a fence (F-12)."""
    for stored in () if entry.is_fence else entry.batches:
        yield shaped(align_batch(stored, schema.wal), level_schema(schema))


def range_rows(
    log: ShardLog, after: int, last: int, schema: TableSchema, *, pinned: bool
) -> Iterator[tuple[WalEntry, pa.RecordBatch]]:
    """The rows of the entries `(after, last]`, each with its entry; for feeds whose batches have an
    end. `pinned`: the entries are kept, whatever the floor says."""
    for entry in WalTailer(log).read_range(after, last, pinned=pinned):
        for rows in entry_rows(entry, schema):
            yield entry, rows


def _runs(
    entry: WalEntry, schema: TableSchema
) -> Iterator[tuple[Literal["put", "delete"], pa.RecordBatch]]:
    """The rows of an entry as runs of one kind, in order."""
    key = schema.key_schema
    for batch in entry_rows(entry, schema):
        marks = batch.column(TOMBSTONE).to_numpy(zero_copy_only=False)
        edges = [0, *(np.flatnonzero(marks[1:] != marks[:-1]) + 1).tolist(), len(marks)]
        for start, end in pairwise(edges):
            rows = batch.slice(start, end - start)
            if marks[start]:
                yield "delete", shaped(rows, key)
            else:
                yield "put", shaped(rows, schema.plain)
