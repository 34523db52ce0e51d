"""The gauges of a keeper: what its last looks found, over all of its tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from weir.env import Env
from weir.keep.status import JobStatus
from weir.meters import (
    DEBT_BYTES,
    DEBT_ENTRIES,
    DEBT_GENERATIONS,
    DEBT_UNREAD,
    DUE_SECONDS,
    HELD,
    HELD_OBJECTS,
    KEEP_DAMAGED,
    KEEP_FAILING,
    KEEP_LEFT,
    KEEP_SILENT,
    KEEP_TABLES,
    Labels,
)
from weir.upkeep.due import Upkeep
from weir.upkeep.gc.report import GcReport


class Kept(Protocol):
    """A table, as its last look left it."""

    found: Upkeep | None
    collected: GcReport | None


def watch(
    tables: Callable[[], Sequence[Kept]], statuses: Callable[[], Sequence[JobStatus]], env: Env
) -> None:
    """Let the gauges of this process show the keeper of those tables and jobs."""
    meters = env.meters

    def total(read: str) -> Mapping[Labels, float]:
        found = [kept.found for kept in tables() if kept.found is not None]
        return {(): sum(getattr(each.debt, read) for each in found)}

    def those(status: str) -> list[JobStatus]:
        return [job for job in statuses() if job.status == status]

    def counted(status: str) -> Mapping[Labels, float]:
        kinds = Counter(job.job.partition(" ")[0] for job in those(status))
        return {(kind,): n for kind, n in kinds.items()}

    def due() -> Mapping[Labels, float]:
        longest: dict[Labels, float] = {}
        for job in (job for job in statuses() if job.due_since):
            kind = (job.job.partition(" ")[0],)
            # Not the store's clock, which is read by writing: nothing is decided by it.
            waited = env.clock.wall() - (job.due_since or 0)
            longest[kind] = max(waited, longest.get(kind, 0))
        return longest

    def held() -> Mapping[Labels, float]:
        found: Counter[str] = Counter()
        for kept in tables():
            for kind in () if kept.collected is None else kept.collected.kinds.values():
                found += kind.kept
        return {(reason,): found[reason] for reason in HELD}

    meters.watch(KEEP_TABLES, lambda: {(): len(tables())})
    meters.watch(KEEP_DAMAGED, lambda: {(): len({job.uri for job in those("damaged")})})
    meters.watch(KEEP_LEFT, lambda: {(): len(those("left"))})
    meters.watch(KEEP_SILENT, lambda: counted("silent"))
    meters.watch(KEEP_FAILING, lambda: counted("failed"))
    meters.watch(DEBT_ENTRIES, lambda: total("entries"))
    meters.watch(DEBT_GENERATIONS, lambda: total("generations"))
    meters.watch(DEBT_BYTES, lambda: total("nbytes"))
    meters.watch(DEBT_UNREAD, lambda: total("unread"))
    meters.watch(DUE_SECONDS, due)
    meters.watch(HELD_OBJECTS, held)
