"""The gauges of a keeper: what its last looks found, over all of its tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from weir.keep.status import JobStatus
from weir.meters import (
    DEBT_BYTES,
    DEBT_ENTRIES,
    DEBT_GENERATIONS,
    DEBT_UNREAD,
    KEEP_DAMAGED,
    KEEP_FAILING,
    KEEP_LEFT,
    KEEP_SILENT,
    KEEP_TABLES,
    Labels,
    Meters,
)
from weir.upkeep.due import Upkeep


class Kept(Protocol):
    """A table, as its last look left it."""

    found: Upkeep | None
    jobs: tuple[JobStatus, ...]


class HasTables(Protocol):
    """A keeper."""

    @property
    def all_tables(self) -> Sequence[Kept]:
        """Its tables."""


def watch(keeper: HasTables, meters: Meters) -> None:
    """Let the gauges of this process show that keeper."""

    def total(read: str) -> Mapping[Labels, float]:
        found = [kept.found for kept in keeper.all_tables if kept.found is not None]
        return {(): sum(getattr(each.debt, read) for each in found)}

    def counted(status: str) -> Mapping[Labels, float]:
        jobs = [job for kept in keeper.all_tables for job in kept.jobs if job.status == status]
        return {(kind,): n for kind, n in Counter(j.job.partition(" ")[0] for j in jobs).items()}

    def number(status: str) -> Mapping[Labels, float]:
        return {(): sum(counted(status).values())}

    meters.watch(KEEP_TABLES, lambda: {(): len(keeper.all_tables)})
    meters.watch(KEEP_DAMAGED, lambda: number("damaged"))
    meters.watch(KEEP_LEFT, lambda: number("left"))
    meters.watch(KEEP_SILENT, lambda: counted("silent"))
    meters.watch(KEEP_FAILING, lambda: counted("failed"))
    meters.watch(DEBT_ENTRIES, lambda: total("entries"))
    meters.watch(DEBT_GENERATIONS, lambda: total("generations"))
    meters.watch(DEBT_BYTES, lambda: total("nbytes"))
    meters.watch(DEBT_UNREAD, lambda: total("unread"))
