"""`Survey`: every shard and the base at one moment, read once and used by a whole job.

Keeps
  K-6  shard manifests first, then the ends of the logs, the base last
  C-11 the table's record did not change while the shards were read: no heir was written to before
       its sealed predecessor was read
  S-5  a log that cannot be reached is an error only for those who need it
The requests for all shards are sent together, so the number of rounds does not grow with the number
of shards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from uuid import UUID

from weir.errors import CommitConflict, CorruptEntry, MissingEntry, SnapshotExpired, WeirError
from weir.format import paths
from weir.format.manifest import ShardManifest, SsTable, Status
from weir.format.wal_entry import WalEntry
from weir.lake.api import Base
from weir.log.floors import FloorValues, load_all
from weir.log.manifests import latest_of
from weir.log.site import ShardSite
from weir.log.tags import is_live
from weir.log.tip import AHEAD, offset_of_tip
from weir.read.cache import ReadCache
from weir.records.table import TableRecords
from weir.routing.core import CONCURRENCY, Core
from weir.routing.guard import find_rivals
from weir.store.api import Store
from weir.types import Generation, Position


@dataclass(frozen=True, slots=True)
class LastEntry:
    """The last entry of a log that has rows."""

    position: Position
    generation: Generation | None
    rows: int
    size: int
    """Bytes in memory."""
    is_live: bool
    """False when its rows are in an SSTable although R has not passed it (F-14)."""


@dataclass(frozen=True, slots=True)
class LogSurvey:
    """A log that may hold entries above R."""

    site: ShardSite
    through: Position
    """The last position used."""
    last: LastEntry | None
    """None: no entry above R has rows."""


@dataclass(frozen=True, slots=True)
class ShardSurvey:
    """One shard."""

    manifest: ShardManifest
    floors: FloorValues
    """Read right after the manifest."""
    found: LogSurvey | WeirError | None = None
    """What the look at the log found; None: not looked at, or nothing can be above R."""

    @property
    def id(self) -> UUID:
        """The shard's id."""
        return self.manifest.shard_id

    @property
    def is_sealed(self) -> bool:
        """True when it takes no more rows; all of them are in SSTables or in the base (C-11)."""
        return self.manifest.status is Status.SEALED

    @property
    def is_closed(self) -> bool:
        """True when no row can be in its log above R: nobody owns it, and R is at its end."""
        return self.floors.is_closed(self.manifest)

    @property
    def log(self) -> LogSurvey | None:
        """The log above R, None when it is empty; raises why it could not be read."""
        if isinstance(self.found, WeirError):
            raise self.found
        return self.found

    @property
    def lag(self) -> int:
        """Positions of the log above R that are used; 0 also for a log that was not reached."""
        log = self.found
        return log.through - self.manifest.replay_after if isinstance(log, LogSurvey) else 0

    @property
    def live(self) -> LastEntry | None:
        """The last entry whose rows are only in the log; None: there is none that is known.

        For a log that was not reached, too: its readers get the error (S-5).
        """
        last = self.found.last if isinstance(self.found, LogSurvey) else None
        return last if last is not None and last.is_live else None

    def at(self, manifest: ShardManifest) -> ShardSurvey:
        """The shard after that manifest brought entries of its log into SSTables."""
        last = self.found.last if isinstance(self.found, LogSurvey) else None
        is_left = last is not None and last.position > manifest.replay_after
        return replace(self, manifest=manifest, found=self.found if is_left else None)

    def waiting(self, base: Base) -> tuple[SsTable, ...]:
        """Its SSTables that are not in that base."""
        folded = base.compacted.get(self.id, 0)
        return tuple(table for table in self.manifest.sstables if table.generation > folded)


@dataclass(frozen=True)
class Survey:
    """All shards and the base. Immutable: a step that changes a shard makes another one."""

    number: int
    """Of the table's record, while the shards were read."""
    shards: Mapping[UUID, ShardSurvey]
    rivals: frozenset[UUID]
    """Shards that another program writes beside the routing, and those they rival (X-3)."""
    base: Base
    """Opened after everything else."""

    def __iter__(self) -> Iterator[ShardSurvey]:
        return iter(self.shards.values())

    def having(self, shards: Sequence[ShardSurvey], base: Base) -> Survey:
        """The survey with those shards looked at again, and a base opened after that."""
        return replace(self, shards={**self.shards, **{one.id: one for one in shards}}, base=base)


def last_written(core: Core, shards: Sequence[ShardSurvey]) -> dict[UUID, float]:
    """When the last entry or fence of each log was written, by the clock of the store that holds it
    (F-18). One round for all logs in one store; a few requests more for each that is empty above R.

    Left out: logs that cannot be reached, and may grow where they are, and those collected since.
    """

    def end_of(one: ShardSurvey) -> tuple[ShardSite, Position] | None:
        if isinstance(one.found, LogSurvey):
            return one.found.site, one.found.through
        with suppress(WeirError):
            return core.log(one.id).end(one.manifest, one.floors)
        return None

    asked: dict[Store, list[tuple[UUID, str]]] = {}
    for end in core.env.threads.map(end_of, list(shards), workers=core.workers):
        if end is not None:
            site, tip = end
            path = paths.wal_path(site.shard, tip)
            asked.setdefault(site.wal, []).append((site.shard, path))
    found: dict[UUID, float] = {}
    for store, places in asked.items():
        with suppress(WeirError):
            metas = store.head_many([path for _, path in places])
            pairs = zip(places, metas, strict=True)
            found |= {shard: meta.last_modified for (shard, _), meta in pairs if meta is not None}
    return found


def survey(core: Core, *, logs: bool = True) -> Survey:
    """Look at every shard, and then at the base.

    `logs`: also at the end of each log that may hold rows. A shard costs ten requests then; two if
    its manifest says that it is closed, or without `logs`; two more on the first look of a handle.
    Six rounds in all.
    """
    number, shards = survey_shards(core, logs=logs)
    rivals = find_rivals(core, [one.manifest for one in shards])
    return Survey(
        number,
        {one.id: one for one in shards},
        frozenset(shard for rival in rivals for shard in (rival.shard, rival.routed)),
        core.base(),
    )


def survey_shards(core: Core, *, logs: bool = True) -> tuple[int, list[ShardSurvey]]:
    """`survey` without the base: the number of the table's record, and the shards."""
    records, number = TableRecords(core.store), core.record_number()
    for _ in core.env.attempts():
        shards = _with_logs(core, _states(core)) if logs else _states(core)
        latest = records.last_number(number)
        # guard: C-11 always test_compaction_beside_reshard
        if latest == number:
            return number, shards
        number = latest
    raise CommitConflict(
        f"{core.uri}: the table record changed again and again while the shards were"
        " read; wait until no reshard is running, then try again"
    )


def survey_shard(core: Core, shard: UUID) -> ShardSurvey | None:
    """Look at one shard, its log included; None when there is no such shard."""
    found = _with_logs(core, _states(core, [shard]))
    return found[0] if found else None


def _states(core: Core, shards: Sequence[UUID] | None = None) -> list[ShardSurvey]:
    ids = core.shard_ids() if shards is None else shards
    found = latest_of([core.log(shard).manifests for shard in ids])
    return [ShardSurvey(m, floors) for m, floors in found if m is not None and not m.dropped]


def _with_logs(core: Core, shards: list[ShardSurvey]) -> list[ShardSurvey]:
    """The same shards with the ends of their logs."""
    looked = [one for one in shards if not one.is_closed]
    known = _near_tips(core, looked)
    _fetch_last(core, looked, known)
    found = core.env.threads.map(
        lambda one: _settled(core, one, known.get(one.id)), looked, workers=CONCURRENCY
    )
    done = {one.id: one for one in found}
    return [done.get(one.id, one) for one in shards]


def _near_tips(core: Core, shards: Sequence[ShardSurvey]) -> dict[UUID, Position]:
    """The tips of logs beside the data to which little was added since this handle looked.

    One round of probes, one of floors, for all of them; the others are searched one by one.
    """
    asked: list[tuple[ShardSurvey, int]] = []
    for one in shards:
        if one.manifest.log_place or one.floors.place:
            continue
        seen = core.log(one.id).seen
        asked.append((one, max(seen[1] if seen else 0, one.floors.highest_used(one.manifest))))
    if not asked:
        return {}
    probes = [paths.wal_path(one.id, Position(tip + n)) for one, tip in asked for n in AHEAD]
    found = core.store.head_many(probes)
    # G-7c: a collected entry looks like the end; the floor rose before that.
    floors = load_all(core.store, [paths.floors_dir(one.id) for one, _ in asked])
    tips: dict[UUID, Position] = {}
    for index, ((one, tip), after) in enumerate(zip(asked, floors, strict=True)):
        answers = found[index * len(AHEAD) : (index + 1) * len(AHEAD)]
        offset = offset_of_tip([answer is not None for answer in answers])
        if offset is None or after.place or after.wal > one.manifest.replay_after:
            continue
        tips[one.id] = Position(tip + offset)
        core.log(one.id).saw(one.floors, tips[one.id])
    return tips


def _fetch_last(core: Core, shards: Sequence[ShardSurvey], tips: Mapping[UUID, Position]) -> None:
    """Cache the last entries of those logs, where they are small. One round."""
    wanted = [one for one in shards if tips.get(one.id, 0) > one.manifest.replay_after]
    share = max(1, core.env.limits.read_bytes // max(1, len(wanted)))
    cache = core.attached.of(ReadCache)
    entries = [paths.wal_path(one.id, tips[one.id]) for one in wanted]
    for one, data in zip(wanted, core.store.get_many(entries, first=share), strict=True):
        if data is not None and len(data) < share:
            with suppress(CorruptEntry):  # whoever needs it reads it again (S-5)
                cache.keep(core.site(one.manifest, one.floors), tips[one.id], data)


def _settled(core: Core, one: ShardSurvey, tip: Position | None) -> ShardSurvey:
    """Find the end of one log, and its last entry with rows."""
    for _ in core.env.attempts(first_delay=0):
        manifest = one.manifest
        try:
            if tip is None:
                site, tip = core.log(manifest.shard_id).end(manifest, one.floors)
            else:
                site = core.site(manifest, one.floors)
            if tip <= manifest.replay_after:
                return one
            return replace(
                one, found=LogSurvey(site, tip, last_with_rows(core, site, manifest, tip))
            )
        except (SnapshotExpired, MissingEntry) as gone:
            again, floors = core.log(one.id).state()
            if again is None or (again, floors) == (one.manifest, one.floors):
                return replace(one, found=gone)
            one, tip = ShardSurvey(again, floors), None  # flushed, collected or moved since
            if one.is_closed:
                return one
        except WeirError as error:
            return replace(one, found=error)
    return replace(
        one,
        found=SnapshotExpired(f"{core.log(one.id)}: it changed during each look at it; try again"),
    )


def last_with_rows(
    core: Core, site: ShardSite, manifest: ShardManifest, through: Position
) -> LastEntry | None:
    """The last entry with rows above R and up to `through`. A get for each entry looked at, once
    for a handle."""
    cache = core.attached.of(ReadCache)
    for position in range(through, manifest.replay_after, -1):
        try:
            (entry,) = cache.entries(site, position - 1, position, pinned=True)
        except MissingEntry:
            raise SnapshotExpired(
                f"{site}: the entry at position {position} was flushed and collected while the"
                " log was being read; try again"
            ) from None
        last = _last_entry(core, manifest, entry)
        if last is not None:
            return last
    return None


def _last_entry(core: Core, manifest: ShardManifest, entry: WalEntry) -> LastEntry | None:
    if not entry.batches or entry.is_staged:
        return None
    keyed = bool(core.record.primary_key)
    return LastEntry(
        entry.position,
        entry.generation,
        entry.num_rows,
        entry.size,
        is_live(entry, manifest.current_generation, keyed=keyed),
    )
