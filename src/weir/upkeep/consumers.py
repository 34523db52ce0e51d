"""Feeds of the change log that begin at a place on the store: named consumers, "now", a snapshot.

A consumer's record holds the log for it from its place on (`weir.records.consumers`). Collection
raises its floors, then reads the records, then deletes: so a new consumer writes its record first,
and then reads the floors (P-3).

Keeps
  P-3  what a named consumer has not read is kept; one that ended never goes on as if nothing was
       missing
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import pyarrow as pa

from weir.durations import Duration, seconds
from weir.env import Lock
from weir.errors import CheckpointNotFound, InvalidInput, SnapshotExpired
from weir.format import paths
from weir.read.changes import Bookmark, Changes, Start, bookmark_of
from weir.read.loads import load_number
from weir.read.positions import floors, passed_by, positions_at, shown_tips
from weir.read.scan import Scan
from weir.records.checkpoints import Checkpoint
from weir.records.consumers import ON_REQUEST, Consumer, Standing
from weir.records.holds import Holds
from weir.routing.core import Core
from weir.upkeep import checkpoint as checkpoints

SAVE_SECONDS: Final = 5.0
"""How often a feed saves the place of its consumer, at most; a restart repeats that much."""
RENEWALS: Final = 4
"""Parts of its lifetime after which a consumer without changes renews it."""


def open_feed(
    core: Core,
    since: Bookmark | str | None,
    *,
    consumer: str | None,
    ttl: Duration,
    follow: bool,
    poll: float,
    stop: Callable[[], bool],
    expired: bool,
    with_rows: bool = False,
) -> Changes:
    """See `Table.changes`, and `Table.follow`, which begins `with_rows`.

    Wrong arguments are refused here; what takes requests happens in `Changes.begin`.
    """
    if since == "now" and with_rows:
        raise InvalidInput(
            "follow begins with the rows of now; for the changes after now alone, call"
            ' table.changes(since="now", follow=True)'
        )
    begin = _Beginning(core, since, consumer, ttl, with_rows=with_rows)
    place = None if since == "now" else since
    return Changes(core, place, follow=follow, poll=poll, stop=stop, expired=expired, begin=begin)


def drop_consumer(core: Core, name: str) -> None:
    """See `Table.drop_consumer`."""
    core.record_number()  # C-16
    consumer = Consumer(core.store, name, 0.0, core.env)
    standing = consumer.standing()
    if not consumer.forget():
        known = ", ".join(Holds(core.store).consumers()) or "none"
        raise InvalidInput(f"{core.uri} has no consumer {name!r}; it has: {known}")
    if standing is not None and standing.snapshot is not None:
        checkpoints.delete(core, standing.snapshot)


def hold_from(
    core: Core,
    consumer: Consumer,
    wanted: Mapping[UUID, int],
    *,
    is_exact: bool,
    advice: str,
    load: int | None = None,
) -> dict[UUID, int]:
    """Hold the log for a consumer from `wanted` on; returns where it begins, or already stands.

    `load` is the number of the last load before that, where it is known.

    If collection was faster, it begins where the log begins; `SnapshotExpired`, and no consumer,
    if the place was to be exactly that one.
    """
    registered = consumer.register(wanted, load=load)
    standing = registered.held or {}
    if not registered.begins:  # guard: P-3 always
        return standing  # registered before, and its floors were checked
    # Also for an attempt that registered the consumer and failed before this check.
    late = passed_by(core, standing)
    if late and is_exact:  # guard: P-3 simulator:feeds
        consumer.forget()
        raise SnapshotExpired(
            f"{core.uri}: consumer {consumer.name!r} cannot begin where it was told to: logs were"
            f" collected beyond it, up to { {str(shard): p for shard, p in late.items()} }."
            f" {advice}"
        )
    begun = {**standing, **late}
    saved = consumer.save(begun)
    if saved.deleted:
        raise ended(core, consumer.name, saved)
    return begun


class ConsumerHold:
    """What is kept for the consumer of one feed, and how far that is released."""

    def __init__(self, core: Core, consumer: Consumer, saved: Bookmark | None) -> None:
        """`saved` is the place in its record, if the feed begins there."""
        self._core = core
        self._consumer = consumer
        self._saved = saved
        self._clock = core.env.clock
        self._saved_at = self._renewed_at = self._clock.boottime()
        # A task that commits, and the thread of a task that was cancelled, may meet.
        self._lock: Lock = core.env.threads.lock()

    @property
    def name(self) -> str:
        """The consumer's name."""
        return self._consumer.name

    def passed(self, place: Bookmark) -> None:
        """Save the place, unless that was done a moment ago; see `save`."""
        is_soon = self._clock.boottime() - self._saved_at < SAVE_SECONDS
        has_all_rows = self._saved is not None and self._saved.snapshot != place.snapshot
        if not is_soon or has_all_rows:
            self.save(place)

    def save(self, place: Bookmark) -> None:
        """Release everything up to `place`; a place that was saved costs nothing.

        Raises `SnapshotExpired` when the consumer has ended meanwhile.
        """
        with self._lock:
            now = self._clock.boottime()
            self._saved_at = now
            is_due = now - self._renewed_at >= self._consumer.ttl / RENEWALS
            if place == self._saved and not is_due:
                return
            found = self._consumer.save(
                place.positions,
                within=place.within,
                expired_through=place.expired_through,
                snapshot=place.snapshot,
                load=place.load,
            )
            if found.deleted:
                raise ended(self._core, self._consumer.name, found)
            if is_due and place.snapshot is not None:
                checkpoints.refresh(self._core, place.snapshot, self._consumer.ttl)
            self._saved, self._renewed_at = place, now

    def is_held(self, shard: UUID, position: int) -> bool:
        """True while the record says that the entry was not read. One list, one get."""
        held = self._consumer.positions()
        return held is not None and held.get(shard, 0) < position


@dataclass(frozen=True)
class SnapshotRows:
    """The rows of a checkpoint that was made for a feed."""

    core: Core
    pinned: Checkpoint

    def parts(self) -> Iterator[tuple[UUID, pa.RecordBatch]]:
        """All rows, by the shard that takes them now."""
        for batch in Scan(self.core, pinned=self.pinned).to_batches():
            for value, rows in self.core.router.split(batch):
                yield self.core.route(value), rows

    def release(self) -> None:
        """Delete the checkpoint; no error if it is gone."""
        checkpoints.delete(self.core, self.pinned)


class _Beginning:
    """Finds out where a feed begins; called once, by whoever may make requests."""

    def __init__(
        self,
        core: Core,
        since: Bookmark | str | None,
        consumer: str | None,
        ttl: Duration,
        *,
        with_rows: bool,
    ) -> None:
        self._core = core
        self._is_now = since == "now"
        self._since = None if self._is_now else bookmark_of(since)
        if self._since is not None and self._since.snapshot is not None and not with_rows:
            raise InvalidInput(
                "this bookmark is among the rows with which table.follow began; resume it with"
                " table.follow(since=bookmark)"
            )
        self._lifetime = seconds(ttl, name="consumer_ttl")
        if not self._lifetime > 0:
            raise InvalidInput(f"consumer_ttl must be positive, got {ttl!r}")
        self._consumer: Consumer | None = None
        if consumer is not None:
            paths.consumer_chain(consumer)  # refuses a name that cannot be
            self._consumer = Consumer(core.store, consumer, self._lifetime, core.env)
        self._with_rows = with_rows

    def __call__(self) -> Start:
        self._core.record_number()  # C-16
        consumer = self._consumer
        if consumer is None:
            return self._unnamed()
        standing = consumer.standing()
        if standing is not None and standing.deleted:
            if standing.reason != ON_REQUEST and self._since is None:
                raise ended(self._core, consumer.name, standing)
            standing = None
        if standing is None and self._with_rows and self._since is None:
            return self._first_rows(consumer)
        if standing is not None and standing.snapshot is not None:
            return self._resume_rows(consumer, standing)
        if standing is None or standing.begins:
            # Before the positions: a load in between then stops the feed (P-3).
            load = self._load() if standing is None else standing.load
            positions = hold_from(
                self._core,
                consumer,
                self._wanted(),
                is_exact=self._since is not None,
                advice="Begin with the rows of now: table.follow(consumer=...)",
                load=load,
            )
            standing = Standing(positions=positions, load=load)
        return self._start(self._since, consumer, standing)

    def _unnamed(self) -> Start:
        if self._since is not None:
            return self._start(self._since)
        if self._is_now:
            load = self._load()
            return self._start(Bookmark(shown_tips(self._core), load=load))
        return self._start(self._place_at(self._pin())) if self._with_rows else Start()

    def _load(self) -> int | None:
        """The last load before the place where a new feed begins; one listing without `since`."""
        return load_number(self._core) if self._since is None else self._since.load

    def _wanted(self) -> Mapping[UUID, int]:
        """Where a new consumer begins."""
        if self._since is not None:
            return self._since.positions
        return shown_tips(self._core) if self._is_now else floors(self._core)

    def _start(
        self,
        place: Bookmark | None,
        consumer: Consumer | None = None,
        standing: Standing | None = None,
    ) -> Start:
        """At `place`, which may be ahead of the consumer's record, or at its record."""
        saved = None if standing is None else _place_of(standing)
        begins = place or saved or Bookmark()
        rows = None
        if begins.snapshot is not None:
            rows = SnapshotRows(self._core, self._pinned(begins.snapshot))
        hold = None
        if consumer is not None:
            hold = ConsumerHold(self._core, consumer, saved)
        return Start(begins, resumes=True, hold=hold, rows=rows)

    def _pin(self) -> Checkpoint:
        name = None if self._consumer is None else f"feed of {self._consumer.name}"
        return checkpoints.create(self._core, "durable", name, self._lifetime)

    def _place_at(self, pinned: Checkpoint) -> Bookmark:
        positions = positions_at(self._core, pinned.shards, pinned.base_version)
        load = load_number(self._core, pinned.base_version)
        return Bookmark(positions, snapshot=pinned.id, load=load)

    def _pinned(self, snapshot: UUID) -> Checkpoint:
        try:
            return Holds(self._core.store).find(snapshot)
        except CheckpointNotFound as gone:
            how = "empty the copy, and call table.follow() again without a bookmark"
            if self._consumer is not None:
                how = f"empty the copy, table.drop_consumer({self._consumer.name!r}), and follow it"
            raise SnapshotExpired(
                f"{self._core.uri}: the rows with which this feed began were not read to the end,"
                f" and checkpoint {snapshot}, which held them, is gone; {how}"
            ) from gone

    def _first_rows(self, consumer: Consumer) -> Start:
        """Hold the log from a snapshot on, before any row of it is handed out: after a crash the
        same rows come again, and then every change since."""
        for attempt in self._core.env.attempts():
            pinned = self._pin()
            place = self._place_at(pinned)
            consumer.register(place.positions, pinned.id, place.load)
            if attempt > 1:
                self._save(consumer, place, begins=True)
            if not passed_by(self._core, place.positions):  # guard: P-3 always test_consumers
                return self._start(None, consumer, self._save(consumer, place))
            checkpoints.delete(self._core, pinned)
        raise SnapshotExpired(
            f"{self._core.uri}: again and again gc collected entries after the"
            f" snapshot before consumer {consumer.name!r} could hold them; try again"
        )

    def _resume_rows(self, consumer: Consumer, standing: Standing) -> Start:
        if not self._with_rows:
            raise InvalidInput(
                f"{self._core.uri}: consumer {consumer.name!r} began with the rows of a snapshot"
                " and has not got all of them; go on with table.follow(consumer=...)"
            )
        if standing.begins:
            if passed_by(self._core, standing.positions):
                consumer.forget()  # it died before it held the log; no row was handed out
                return self._first_rows(consumer)
            standing = self._save(consumer, _place_of(standing))
        since = self._since
        if since is not None and since.snapshot is not None:
            since = None  # the record knows the same rows
        return self._start(since, consumer, standing)

    def _save(self, consumer: Consumer, place: Bookmark, *, begins: bool = False) -> Standing:
        found = consumer.save(
            place.positions, snapshot=place.snapshot, load=place.load, begins=begins
        )
        if found.deleted:
            raise ended(self._core, consumer.name, found)
        return found


def ended(core: Core, name: str, standing: Standing) -> SnapshotExpired:
    """The error of a consumer for which nothing is held any more."""
    if standing.reason == ON_REQUEST:
        return SnapshotExpired(f"{core.uri}: consumer {name!r} was dropped; nothing is kept for it")
    return SnapshotExpired(
        f"{core.uri}: consumer {name!r} did not move for longer than its lifetime, and entries that"
        " it has not read may be collected. Begin again, with an empty copy:"
        f" table.drop_consumer({name!r}), then table.follow(consumer={name!r}); or resume at your"
        " own bookmark with table.changes(since=bookmark, consumer=...)"
    )


def _place_of(standing: Standing) -> Bookmark:
    return Bookmark(
        dict(standing.positions),
        standing.expired_through,
        dict(standing.within),
        standing.snapshot,
        standing.load,
    )
