"""`due`: which upkeep a table needs, and why. The only place that decides it.

`weir keep`, `weir compact --watch`, Spark's `keep` and a user's own loop all ask here. It looks and
changes nothing; what it decides by the time of earlier work, it takes from the record that keepers
write (`weir.records.keeping`).

Keeps
  L-6  a log whose owner may live is flushed by nobody else, unless the policy says after how long
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple
from uuid import UUID

from weir.durations import Duration, check_durations, seconds
from weir.errors import InvalidInput
from weir.lazy import Lazy
from weir.read.survey import ShardSurvey, Survey, last_written, survey
from weir.records.checkpoints import check_name
from weir.records.holds import Holds
from weir.records.keeping import Keeping, KeepRecords
from weir.routing.core import Core, HasCore
from weir.routing.writer_shard import has_own_writer
from weir.upkeep.compact.logs import becomes_sstables
from weir.upkeep.compact.policy import CompactionPolicy, Now
from weir.upkeep.defaults import FENCE_RETENTION, MIN_AGE
from weir.upkeep.indexes import lacking
from weir.upkeep.silent import find_silent

JobKind = Literal["flush", "compact", "checkpoint", "gc"]


@dataclass(frozen=True)
class CheckpointSchedule:
    """Checkpoints at an interval, each kept for a while: `CheckpointSchedule("hourly", "1h")`."""

    name: str
    """The name they all have."""
    every: Duration = "1d"
    """One is due when the newest of that name is older than this."""
    keep: Duration | None = "7d"
    """How long each is kept; None: until it is deleted."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise InvalidInput(f"CheckpointSchedule.name: expected text, got {self.name!r}")
        check_name(self.name)
        check_durations(self, "every", optional=["keep"])


@dataclass(frozen=True)
class KeepPolicy:
    """When upkeep of a table is due; the defaults suit most tables."""

    compact: CompactionPolicy | None = field(default_factory=CompactionPolicy)
    """When SSTables and logs are folded into the base; None: never."""
    drop_expired: Duration | None = "1d"
    """How often a table whose rows expire is compacted to drop them; None: only with other work."""
    take_over: Duration | None = None
    """Rows of a writer that did not close can be flushed by a new writer only, which fences the
    old one if it lives. After this time without a new entry it is taken for dead, and its log is
    flushed; None: never, such logs are only listed. At least twice the table's `max_memtable_age`
    makes sure that a living writer has flushed its rows before."""
    gc: Duration | None = "1h"
    """How often the table is collected; None: never."""
    min_age: Duration = MIN_AGE
    """`min_age` of a collection."""
    fence_retention: Duration = FENCE_RETENTION
    """`fence_retention` of a collection."""
    checkpoints: Sequence[CheckpointSchedule] = ()
    """Checkpoints to be made."""
    silent_after: Duration = "6h"
    """A job that is due for longer than this is reported as silent."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "checkpoints", tuple(self.checkpoints))
        optional = ["drop_expired", "take_over", "gc"]
        check_durations(self, "min_age", "fence_retention", "silent_after", optional=optional)
        if not isinstance(self.compact, CompactionPolicy | None):
            raise InvalidInput(
                f"KeepPolicy.compact: expected a CompactionPolicy or None, got {self.compact!r}"
            )
        if not all(isinstance(each, CheckpointSchedule) for each in self.checkpoints):
            raise InvalidInput(
                f"KeepPolicy.checkpoints: expected CheckpointSchedules, got {self.checkpoints!r}"
            )
        if seconds(self.fence_retention) < seconds(self.min_age):
            raise InvalidInput("KeepPolicy: fence_retention must be at least min_age")


class IdleLog(NamedTuple):
    """The log of a writer that is taken for dead, as it was seen."""

    shard: UUID
    epoch: int
    through: int
    """Its last position."""


@dataclass(frozen=True)
class DueJob:
    """One job that is due."""

    job: JobKind
    reason: str
    since: float | None = None
    """When it became due, by the store's clock; None: not known."""
    not_before: float | None = None
    """It failed, and is to be tried again at this time; None: now."""
    logs: tuple[IdleLog, ...] = ()
    """What is flushed."""
    schedule: CheckpointSchedule | None = None
    """The checkpoint to be made."""

    @property
    def key(self) -> str:
        """Its name in the record and in messages: the kind, and the name of a checkpoint."""
        return self.job if self.schedule is None else f"{self.job} {self.schedule.name}"


@dataclass(frozen=True)
class Debt:
    """What upkeep has not done yet: readers pay for it at every read."""

    entries: int = 0
    """Log entries after R, of all shards."""
    generations: int = 0
    """SSTables that are not in the base."""
    nbytes: int = 0
    """Bytes in them, estimated where another program did not record it."""
    unread: int = 0
    """Log entries that the slowest named consumer has not read: collection keeps them."""


@dataclass(frozen=True)
class Upkeep:
    """What `weir.due` found. Iterates over the jobs; false when there is none."""

    uri: str
    jobs: tuple[DueJob, ...] = ()
    """What is due, in the order in which it is done best."""
    left: tuple[str, ...] = ()
    """A sentence for each log that is left alone because its writer may live."""
    damaged: str | None = None
    """Why a keeper leaves the table alone; then no job is due."""
    debt: Debt = Debt()
    """How much waits, due or not."""

    def __iter__(self) -> Iterator[DueJob]:
        return iter(self.jobs)

    def __bool__(self) -> bool:
        return bool(self.jobs)

    def find(self, job: JobKind) -> DueJob | None:
        """The first job of that kind, if one is due."""
        return next((each for each in self.jobs if each.job == job), None)


def due(table: HasCore, policy: KeepPolicy | None = None) -> Upkeep:
    """Which upkeep the table needs now, and why, by `policy` (None: the defaults).

    Changes nothing. A survey of the shards, the record of upkeep, the consumers, the checkpoints if
    some are scheduled, the indexes, a listing or two for ages, and a small write to read the
    store's clock.
    Raises what a read raises: `MissingEntry` or `CorruptEntry` for a damaged table, `StoreError`.
    """
    if not isinstance(policy, KeepPolicy | None):
        raise InvalidInput(f"due: expected a weir.KeepPolicy or None, got {policy!r}")
    core = table.core
    return look(core, policy or KeepPolicy(), core.store.now)


def look(core: Core, policy: KeepPolicy, now: Now) -> Upkeep:
    """`due` with another reading of the store's clock."""
    known = KeepRecords(core.store, core.env).latest()
    if known.damaged is not None:
        return Upkeep(core.uri, damaged=known.damaged)
    found = _Look(core, policy, now, known, survey(core))
    jobs = (*found.flush(), *found.compact(), *found.checkpoints(), *found.collect())
    return Upkeep(core.uri, jobs, found.left(), debt=found.debt())


@dataclass
class _Look:
    """One look at one table."""

    core: Core
    policy: KeepPolicy
    clock: Now
    known: Keeping
    seen: Survey

    @Lazy
    def now(self) -> float:
        """The store's time, read once."""
        return self.clock()

    def debt(self) -> Debt:
        waiting = [table for one in self.seen for table in one.waiting(self.seen.base)]
        lag = sum(one.lag for one in self.seen)
        nbytes = sum(table.size[1] for table in waiting)
        ends = {one.id: one.manifest.replay_after + one.lag for one in self.seen}
        unread = [one.behind(ends) for one in Holds(self.core.store).consumers().values()]
        return Debt(lag, len(waiting), nbytes, max(unread, default=0))

    def flush(self) -> Iterator[DueJob]:
        limit = self.policy.take_over
        if limit is None:
            return
        idle = [(one, at) for one, at in self._held if self.now - at >= seconds(limit)]
        if not idle:
            return
        first = min(at for _, at in idle)
        logs = tuple(
            IdleLog(one.id, one.manifest.writer_epoch, one.log.through)
            for one, _ in idle
            if one.log is not None
        )
        named = ", ".join(str(log.shard) for log in logs[:3])
        yield self._job(
            "flush",
            f"the writers of {len(logs)} shards ({named}) wrote nothing for"
            f" {self.now - first:.0f} s and left rows in the log",
            first + seconds(limit),
            logs=logs,
        )

    def left(self) -> tuple[str, ...]:
        limit = self.policy.take_over
        age = self.core.record.writer_defaults.memtable_age_s
        told = []
        for one, at in self._held:
            idle = self.now - at
            is_taken = limit is not None and idle >= seconds(limit)
            if is_taken or age is None or idle < 2 * age:
                continue  # a living writer flushes it itself
            if has_own_writer(self.core, one.manifest):
                continue  # a compaction seals it when its time has come
            told.append(
                f"shard {one.id}: the writer of epoch {one.manifest.writer_epoch} has left rows in"
                f" the log and written nothing for {idle:.0f} s; if it died, open a new writer, or"
                " say in the policy after how long it is taken over (take_over)"
            )
        return tuple(told)

    @Lazy
    def _held(self) -> list[tuple[ShardSurvey, float]]:
        """Shards with rows that only their writer may flush, and when it last wrote an entry."""
        held = [one for one in self.seen if self._is_held(one)]
        written = last_written(self.core, held)
        return [(one, written[one.id]) for one in held if one.id in written]

    def _is_held(self, one: ShardSurvey) -> bool:
        manifest = one.manifest
        if one.live is None or one.is_sealed or manifest.is_left:
            return False
        return not manifest.wal_only or becomes_sstables(self.core, manifest)

    def compact(self) -> Iterator[DueJob]:
        policy = self.policy.compact
        if policy is None:
            return
        found = policy.reason(self.core, self.seen, lambda: self.now)
        silent = [] if found is not None else find_silent(self.core, self.seen, lambda: self.now)
        if found is not None:
            yield self._job("compact", found.text, found.since)
        elif silent:
            text = f"the writers of {len(silent)} shards fell silent; these are sealed and folded"
            yield self._job("compact", text)
        elif lagging := lacking(self.core):
            told = ", ".join(f"{index.name} ({index.rows_not_indexed})" for index in lagging)
            yield self._job("compact", f"indexes lack rows of the base: {told}")
        elif self.seen.base.expire is not None and self.policy.drop_expired is not None:
            at = self._follows("compact", self.policy.drop_expired)
            if at is not None:
                yield self._job("compact", "expired rows are to be dropped", at)

    def collect(self) -> Iterator[DueJob]:
        if self.policy.gc is None:
            return
        at = self._follows("gc", self.policy.gc)
        if at is not None:
            last = self.known.of("gc").succeeded
            ago = f"{self.now - last:.0f} s ago" if last else "never"
            yield self._job("gc", f"the last collection by a keeper was {ago}", at)

    def checkpoints(self) -> Iterator[DueJob]:
        if not self.policy.checkpoints:
            return
        there = Holds(self.core.store).checkpoints()
        for each in self.policy.checkpoints:
            made = [c.created for c in there if c.name == each.name and c.owner is None]
            newest = max(made, default=None)
            if newest is None:
                yield self._job("checkpoint", f"there is none named {each.name!r}", schedule=each)
            elif self.now - newest >= seconds(each.every):
                ago = f"the newest named {each.name!r} is {self.now - newest:.0f} s old"
                at = newest + seconds(each.every)
                yield self._job("checkpoint", ago, at, schedule=each)

    def _follows(self, job: JobKind, every: Duration) -> float | None:
        """Since when the job is due again; None: it is not."""
        last = self.known.of(job).succeeded or self.core.record.created
        at = last + seconds(every)
        return at if self.now >= at else None

    def _job(
        self,
        job: JobKind,
        reason: str,
        since: float | None = None,
        *,
        logs: tuple[IdleLog, ...] = (),
        schedule: CheckpointSchedule | None = None,
    ) -> DueJob:
        made = DueJob(job, reason, since, logs=logs, schedule=schedule)
        last = self.known.of(made.key)
        if last.due_since:
            made = replace(made, since=min(last.due_since, since or last.due_since))
        is_early = last.failures > 0 and last.next_try > self.now
        return replace(made, not_before=last.next_try) if is_early else made
