"""The compaction claim: a chain of records that says which job is under way, and its plan.

Keeps
  L-4  the claim is taken before the work; the next compactor finds a dead one's job and finishes it
Each step has one record: claimed, planned, done, or left when it fails. The number of a record is
its epoch: of two compactors that claim from the same record, one loses. Compactors coordinate
through the chain; the fence in the base table (`weir.lake.base.fence`) keeps a stalled one from
committing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import ClassVar, Final, Literal
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from weir.env import Env
from weir.format import paths
from weir.read.snapshot import Snapshot
from weir.records import codec
from weir.records.chain import RecordChain
from weir.records.codec import Record
from weir.store.api import Store

# Stored. Never change a value; add one.
FORMAT: Final = 1
PROGRESS: Final = "weir.progress"
"""Property of a fold's commit: what it folded of each shard."""

State = Literal["claimed", "planned", "left", "done"]
"""`left`: its owner failed, and does no more; the next one need not wait, but completes the job."""


class WalFold(Struct, frozen=True, array_like=True):
    """Entries `(after, through]` of one shard, folded by a job that planned in `epoch` (L-6)."""

    epoch: int
    after: int
    through: int
    generation: int
    """The tag of the first entry after them, or that it will get (F-14)."""


class Job(Struct, frozen=True, forbid_unknown_fields=True):
    """What one compaction folds. Small; travels as JSON."""

    id: str
    planned_at: int
    """The base version planned on."""
    snapshot: Snapshot
    """The inputs, as cuts: SSTables not yet in the base, and log entries to be folded."""
    wal: Mapping[UUID, WalFold] = {}
    number: int = 0
    """Higher than that of every earlier fold; noted in the base with its rows."""

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


class FoldProgress(Struct, frozen=True, array_like=True):
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

    def and_also(self, other: FoldProgress | None) -> FoldProgress:
        """The combination of both."""
        if other is None:
            return self
        return FoldProgress(_joined((*self.spans, *other.spans)), max(self.passed, other.passed))


def _joined(spans: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    joined: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return tuple(joined)


class JobRecord(Record, frozen=True, tag_field="format", tag=FORMAT):
    """One record of the chain."""

    KIND: ClassVar[str] = "compaction record"
    state: State
    token: str
    """Identifies the claimant; the fence carries the same token."""
    job: Job | None
    """A job that may be committed but not finished: the claimant's, or a dead compactor's."""
    reached: Mapping[UUID, FoldProgress] = {}
    """What the base must hold: only a restore by weir may take it back, and that empties this."""

    def having(self, more: Mapping[UUID, FoldProgress]) -> JobRecord:
        """The record with `more` added to `reached`."""
        reached = dict(self.reached)
        for shard, new in more.items():
            reached[shard] = new.and_also(reached.get(shard))
        return replace(self, reached=reached)

    @property
    def is_open(self) -> bool:
        """True until the claim is done, also if its claimant died."""
        return self.state != "done"


class Jobs:
    """Reads and extends the chain of one table."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._chain = RecordChain(store, paths.compaction_chain(), JobRecord)

    def latest(self) -> JobRecord | None:
        """The record that counts, or None. One list, one get."""
        return self._chain.latest()

    def claim(self, token: str, after: JobRecord | None) -> JobRecord:
        """Claim on top of `after`, carrying over its unfinished job; or `CommitConflict`."""
        unfinished = after.job if after is not None and after.is_open else None
        reached = {} if after is None else after.reached
        number = 0 if after is None else after.seq
        return self.append(JobRecord("claimed", token, unfinished, reached, seq=number))

    def bury(self, env: Env, ask: Callable[[], object]) -> None:
        """End the chain of a table whose drop is under way, which `ask` raises unless (C-16).

        The next table's goes on from that record: no compaction of this one can append any more.
        """

        def end(found: JobRecord | None) -> JobRecord | None:
            if found is None:
                return None
            ask()  # after the read: what was read is this table's, and is appended to or lost
            return replace(found, state="done", token=str(env.new_id()), job=None, reached={})

        self._chain.update(end, env, "compactions claimed the table again and again; drop again")

    def append(self, record: JobRecord) -> JobRecord:
        """The next step of our own claim; `CommitConflict` when somebody else took over."""
        return self._chain.follow(
            record,
            "another compactor took over; this one stops and leaves its files to garbage"
            " collection",
        )


def keep_base_from(store: Store) -> int | None:
    """The lowest base version whose history an unfinished job needs; None when there is none.

    For the clean-up of base versions: a fold that is not marked yet is found by its commit.
    """
    latest = Jobs(store).latest()
    return latest.job.planned_at if latest and latest.is_open and latest.job else None
