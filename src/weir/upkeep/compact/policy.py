"""`CompactionPolicy`: when a table is due for compaction, and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec import structs

from weir.durations import Duration, check_durations, seconds
from weir.errors import InvalidInput
from weir.format import paths
from weir.read.survey import ShardSurvey, Survey, survey
from weir.records.cut import ShardCut
from weir.routing.core import Core, HasCore
from weir.types import Position
from weir.upkeep.compact.logs import estimate_size
from weir.upkeep.compact.plan import PendingShard, find_open_logs, find_pending

Now = Callable[[], float]
"""The store's time; asked for only where an age decides, since reading it is a write."""


class Reason(NamedTuple):
    """Why a table is due, and since when by the store's clock, if that is known."""

    text: str
    since: float | None = None


@dataclass(frozen=True)
class CompactionPolicy:
    """When a table is due for compaction: whichever bound is reached first."""

    generations: int = 8
    """Waiting SSTables of one shard. Each costs a reader some milliseconds."""
    bytes: int = 256 << 20
    """Waiting bytes of all shards together."""
    age: Duration | None = "1h"
    """How long the oldest waiting SSTable or log entry has waited; None: no limit."""
    entries: int = 2_500
    """Waiting log entries of one shard, where logs are folded. Each costs a reader a request."""

    def __post_init__(self) -> None:
        check_durations(self, optional=["age"])
        for name in ("generations", "bytes", "entries"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise InvalidInput(
                    f"CompactionPolicy.{name}: expected a whole number above 0, got {value!r}"
                )

    def due(self, table: HasCore) -> str | None:
        """The reason to compact now, or None. A survey, and a few requests more for the age."""
        core = table.core
        found = self.reason(core, survey(core), core.store.now)
        return None if found is None else found.text

    def reason(self, core: Core, seen: Survey, now: Now) -> Reason | None:
        """`due` for a table that was looked at."""
        waiting = [*find_pending(core, seen, fold_wal=None), *_waiting_logs(core, seen)]
        if not waiting:
            return None
        most = max(waiting, key=lambda w: len(w.cut.sstables))
        if len(most.cut.sstables) >= self.generations:
            return Reason(f"{len(most.cut.sstables)} generations of shard {most.cut.shard} wait")
        longest = max(waiting, key=lambda w: w.cut.wal_through - w.cut.replay_after)
        entries = longest.cut.wal_through - longest.cut.replay_after
        if entries >= self.entries:
            return Reason(f"{entries} log entries of shard {longest.cut.shard} wait")
        total = sum(w.nbytes for w in waiting)
        if total >= self.bytes:
            return Reason(f"{total} bytes wait")
        if self.age is None:
            return None
        oldest, limit = _oldest(core, waiting), seconds(self.age, name="age")
        if oldest is None:
            return None
        waited = now() - oldest
        if waited < limit:
            return None
        return Reason(f"the oldest SSTable or log entry has waited {waited:.0f} s", oldest + limit)


def _waiting_logs(core: Core, seen: Survey) -> list[PendingShard]:
    """Logs that a compaction would turn into SSTables first, each as a shard without SSTables."""

    def look(one: ShardSurvey) -> PendingShard | None:
        log, manifest = one.log, one.manifest
        if log is None or log.last is None:
            return None
        rows, nbytes = estimate_size(core, log.site, manifest.replay_after, log.last)
        cut = structs.replace(ShardCut.of(manifest, log.through), sstables=())
        return PendingShard(cut, rows, nbytes)

    logs = find_open_logs(core, seen, fold_wal=None)
    found = core.env.threads.map(look, logs, workers=core.workers)
    return [waiting for waiting in found if waiting is not None]


def _oldest(core: Core, waiting: Sequence[PendingShard]) -> float | None:
    """When the oldest waiting SSTable or entry was written, by the store's clock."""
    times: list[float] = []
    for one in waiting:
        cut = one.cut
        if cut.sstables:
            folder = paths.sstable_dir(cut.shard, cut.sstables[0].path)
            times += [meta.last_modified for meta in core.store.list(folder)][:1]
        if cut.wal_through > cut.replay_after:
            first = paths.wal_path(cut.shard, Position(cut.replay_after + 1))
            entry = core.log(cut.shard).segment(cut.replay_after + 1).site.wal.head(first)
            times += [] if entry is None else [entry.last_modified]
    return min(times, default=None)
