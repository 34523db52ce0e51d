"""The compaction claim: a chain of records that says which job is under way, and its plan.

Keeps
  L-4  the claim is taken before the work; the next compactor finds a dead one's job and finishes it
Each step has one record: claimed, planned, done. The number of a record is its epoch: of two
compactors that claim from the same record, one loses. Compactors coordinate through the chain; the
fence in the base table (`weir.lake.base.fence`) keeps a stalled one from committing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal
from uuid import UUID

from weir.env import Env
from weir.errors import CommitConflict, StoreError
from weir.format import paths
from weir.read.snapshot import Snapshot
from weir.records import codec
from weir.records.chain import RecordChain, RecordCodec
from weir.store.api import ObjectExists, Store
from weir.upkeep.tasks import Progress

# Stored. Never change a value; add one.
FORMAT: Final = 1
PROGRESS: Final = "weir.progress"
"""Property of a fold's commit: what it folded of each shard."""

RENEW: Final = 300.0
"""Seconds after which an active claim is renewed: a third of the lease that others grant it."""

logger = logging.getLogger("weir.compact")

State = Literal["claimed", "planned", "done"]


@dataclass(frozen=True)
class WalFold:
    """Entries `(after, through]` of one shard, folded by a job that planned in `epoch` (L-6)."""

    epoch: int
    after: int
    through: int
    generation: int
    """The tag of the last entry with rows; entries after it carry that tag or a higher one."""
    last: int | None = None
    """Position of that entry; 0: no entry has rows. None: a job of an older release."""


@dataclass(frozen=True)
class Job:
    """What one compaction folds. Small; travels as JSON."""

    id: str
    planned_at: int
    """The base version planned on."""
    snapshot: Snapshot
    """The inputs, as cuts: SSTables not yet in the base, and log entries to be folded."""
    wal: dict[UUID, WalFold] = field(default_factory=dict)
    number: int = 0
    """Higher than that of every earlier fold; noted in the base with its rows. 0: older release."""

    @property
    def folded_generations(self) -> dict[UUID, int]:
        """Per shard the highest generation folded."""
        return {
            cut.shard: max(table.generation for table in cut.sstables)
            for cut in self.snapshot.cuts
            if cut.sstables
        }

    def progress(self) -> str:
        """Progress of all shards, for the properties of the commit."""
        record = {
            "generations": {
                str(shard): number for shard, number in self.folded_generations.items()
            },
            "wal": {str(shard): fold.through for shard, fold in self.wal.items()},
        }
        return codec.dumps(record).decode()

    def to_record(self) -> dict[str, Any]:
        """As JSON-ready values."""
        return {
            "id": self.id,
            "planned_at": self.planned_at,
            "snapshot": self.snapshot.to_json(),
            "wal": {
                str(shard): [f.epoch, f.after, f.through, f.generation, f.last]
                for shard, f in self.wal.items()
            },
            "number": self.number,
        }

    @staticmethod
    def from_record(raw: dict[str, Any]) -> Job:
        """Back from a record."""
        return Job(
            id=str(raw["id"]),
            planned_at=int(raw["planned_at"]),
            snapshot=Snapshot.from_json(raw["snapshot"]),
            wal={UUID(shard): _wal_fold(*fold) for shard, fold in raw["wal"].items()},
            number=int(raw.get("number", 0)),
        )


def _wal_fold(epoch: Any, after: Any, through: Any, generation: Any, last: Any = None) -> WalFold:
    known = None if last is None else int(last)
    return WalFold(int(epoch), int(after), int(through), int(generation), known)


@dataclass(frozen=True, slots=True)
class FoldProgress:
    """How far the base has come with one shard, as the chain remembers it (L-8)."""

    spans: tuple[tuple[int, int], ...] = ()
    """Folded generations as `(first, last)`, ascending. Not every number was ever used: shards of a
    reshard begin above 1, and a restore continues above all earlier numbers."""
    passed: int = 0
    """The number of the last fold after which R passed log entries; 0: none."""

    @staticmethod
    def of(generations: Iterable[int], passed: int = 0) -> FoldProgress:
        """The value for a shard with those generations folded."""
        return FoldProgress(_joined((g, g) for g in generations), passed)

    @property
    def generation(self) -> int:
        """The highest generation folded."""
        return max((last for _, last in self.spans), default=0)

    def above(self, generation: int) -> Iterator[int]:
        """The folded generations above `generation`."""
        for first, last in self.spans:
            yield from range(max(first, generation + 1), last + 1)

    def and_also(self, other: FoldProgress) -> FoldProgress:
        """The combination of both."""
        return FoldProgress(_joined((*self.spans, *other.spans)), max(self.passed, other.passed))


def _joined(spans: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    joined: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return tuple(joined)


@dataclass(frozen=True)
class JobRecord:
    """One record of the chain."""

    seq: int
    state: State
    token: str
    """Identifies the claimant; the fence carries the same token."""
    job: Job | None
    """A job that may be committed but not finished: the claimant's, or a dead compactor's."""
    written: float = 0.0
    """When the store wrote it."""
    reached: Mapping[UUID, FoldProgress] = field(default_factory=dict)
    """What the base must hold: only a restore by weir may take it back, and that empties this."""

    def having(self, more: Mapping[UUID, FoldProgress]) -> JobRecord:
        """The record with `more` added to `reached`."""
        reached = dict(self.reached)
        for shard, new in more.items():
            reached[shard] = reached.get(shard, FoldProgress()).and_also(new)
        return replace(self, reached=reached)

    @property
    def is_open(self) -> bool:
        """True until the claim is done, also if its claimant died."""
        return self.state != "done"


def _encode(record: JobRecord) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "state": record.state,
        "token": record.token,
        "job": None if record.job is None else record.job.to_record(),
        "reached": {str(s): [r.spans, r.passed] for s, r in record.reached.items()},
    }


def _decode(raw: Mapping[str, Any], _path: str) -> JobRecord:
    if raw["format"] != FORMAT or raw["state"] not in ("claimed", "planned", "done"):
        raise ValueError(f"unknown format {raw['format']} or state {raw['state']!r}")
    job = None if raw["job"] is None else Job.from_record(raw["job"])
    told = raw.get("reached", {}).items()  # absent before 0.2
    reached = {
        UUID(shard): FoldProgress(_joined((int(a), int(b)) for a, b in spans), int(passed))
        for shard, (spans, passed) in told
    }
    return JobRecord(0, raw["state"], raw["token"], job, reached=reached)


_RECORD: Final = RecordCodec("compaction record", _encode, _decode)


class Jobs:
    """Reads and extends the chain of one table."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._chain = RecordChain(store, paths.compaction_chain(), _RECORD)

    def latest(self) -> JobRecord | None:
        """The record that counts, or None. One list, one get."""
        found = self._chain.latest()
        return None if found is None else replace(found.value, seq=found.seq, written=found.written)

    def claim(self, token: str, after: JobRecord | None) -> JobRecord:
        """Claim on top of `after`, carrying over its unfinished job; or `CommitConflict`."""
        unfinished = after.job if after is not None and after.is_open else None
        reached = {} if after is None else after.reached
        number = 0 if after is None else after.seq
        return self._append(JobRecord(number, "claimed", token, unfinished, reached=reached))

    def step(self, record: JobRecord, state: State, job: Job | None) -> JobRecord:
        """The next step of our own claim; `CommitConflict` when somebody else took over."""
        return self._append(replace(record, state=state, job=job))

    def _append(self, record: JobRecord) -> JobRecord:
        try:
            return replace(record, seq=self._chain.append(record, record.seq))
        except ObjectExists:
            raise CommitConflict(
                f"{self._store.uri}: another compactor took over; this one stops and leaves its"
                " files to garbage collection"
            ) from None


class Renewal:
    """Renews a claim now and then while its tasks run; called whenever one finishes.

    A compactor that lost the claim learns it from the fence when it commits; here that only ends
    the renewals.
    """

    def __init__(self, jobs: Jobs, record: JobRecord, env: Env) -> None:
        self._jobs = jobs
        self._env = env
        self._lock = env.threads.lock()
        self._renewed_at = env.clock.boottime()
        self._lost = False
        self.record = record
        """The latest record of the claim."""

    def __call__(self) -> None:
        """Renew the claim if it is due."""
        with self._lock:
            now = self._env.clock.boottime()
            if self._lost or now - self._renewed_at < RENEW:
                return
            self._renewed_at = now
            try:
                self.record = self._jobs.step(self.record, self.record.state, self.record.job)
            except CommitConflict:
                self._lost = True
            except StoreError as error:
                logger.warning("compact.renew.failed reason=%s", error)

    def step(self, state: State, job: Job | None) -> JobRecord:
        """The next step of the claim; `CommitConflict` when somebody else took over."""
        with self._lock:
            self.record = self._jobs.step(self.record, state, job)
            self._renewed_at = self._env.clock.boottime()
            return self.record

    def renewing(self, progress: Progress | None) -> Progress:
        """A wrapper of `progress` that also renews the claim."""

        def tell(kind: str, done: int, total: int) -> None:
            self()
            if progress is not None:
                progress(kind, done, total)

        return tell


def keep_base_from(store: Store) -> int | None:
    """The lowest base version whose history an unfinished job needs; None when there is none.

    For the clean-up of base versions: a fold that is not marked yet is found by its commit.
    """
    latest = Jobs(store).latest()
    return latest.job.planned_at if latest and latest.is_open and latest.job else None
