"""What a writer does when the routing changes under it.

Keeps
  C-11 the heirs of a sealed shard take its rows; writers do not compete for the shard
  F-16 rows that do not reach their heir are reported
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import pyarrow as pa

from weir.errors import FencedError, SealedShard, StoreError, UnknownOutcome, WeirError
from weir.format.manifest import Status
from weir.format.sharding import Router, Value
from weir.log.intake import Intake
from weir.records.resharding import read_resharding
from weir.records.table import TableRecord
from weir.routing.core import Core
from weir.routing.receipt import Failures

Parts = dict[UUID, tuple[Value, list[pa.RecordBatch]]]
"""By shard: its value, and its rows of one put."""

REROUTES: Final = 8
"""How often one put follows a change of routing."""
REROUTE_SECONDS: Final = 120.0
"""How long a put waits for the new routing when it met a sealed shard."""
REROUTE_POLL_SECONDS: Final = 0.05
REROUTE_POLL_SECONDS_MAX: Final = 2.0
REROUTE_POLL_GROWTH: Final = 1.5
"""The first poll comes soon, as a change takes some tenths of a second; later ones less often."""


def is_routed_away(core: Core, shard: UUID, error: WeirError) -> bool:
    """True when the shard failed because the routing has left it or is leaving it."""
    if isinstance(error, SealedShard):
        return True
    if not isinstance(error, FencedError):
        return False
    change = read_resharding(core.store)
    if change is not None and change.is_open:
        return True
    manifest = core.tails.manifests(core.table_site(shard)).latest()
    return manifest is not None and manifest.status is Status.SEALED


def await_routing(core: Core, after: int, timeout: float | None = None) -> bool:
    """Wait until the record shows a routing after `after`; False when none comes in time.

    The process that changes the routing may be busy flushing. Finishing its work here would fence
    it, and it would fence us (F-13).
    """
    clock = core.env.clock
    patience = REROUTE_SECONDS if timeout is None else min(timeout, REROUTE_SECONDS)
    until = clock.boottime() + patience
    pause = REROUTE_POLL_SECONDS
    while core.refresh().routing_version <= after:
        if clock.boottime() >= until:
            return False
        clock.sleep(pause)
        pause = min(pause * REROUTE_POLL_GROWTH, REROUTE_POLL_SECONDS_MAX)
    return True


def explain(core: Core, errors: Iterable[WeirError]) -> None:
    """Note on the errors what their rows were waiting for."""
    change = read_resharding(core.store)
    if change is None or not change.is_open:
        return
    for error in errors:
        error.add_note(
            f"{core.uri}: a change of the routing to {change.sharding} is not finished. If the"
            f" process that started it died, finish it with {change.command}, then put the rows"
            " again"
        )


@dataclass(frozen=True)
class Rerouter:
    """Takes rows from shards that the routing has left to their heirs."""

    core: Core
    abandon: Callable[[UUID], list[pa.RecordBatch]]
    """Gives up the writer of a sealed shard; returns rows that nobody is waiting for, or raises
    `UnknownOutcome`."""

    def heirs_of(
        self, record: TableRecord, failures: Failures, timeout: float | None
    ) -> list[pa.RecordBatch] | None:
        """Wait for the heirs; return the rows of one put for them, or None to report `failures`."""
        moved = self._moved(failures, lambda: record.routing_version, timeout, needs_all=True)
        if not moved:
            return None
        batches = self._abandoned(moved, failures)
        if any(isinstance(error, UnknownOutcome) for error, _ in failures.values()):
            return None
        return batches + [row for shard in moved for row in failures[shard][1]]

    def take(self, failures: Failures) -> list[pa.RecordBatch]:
        """Remove and return the rows of `failures` that heirs take; the caller reports the rest."""

        def change() -> int | None:
            found = read_resharding(self.core.store)
            return None if found is None else found.routing_version

        rows: list[pa.RecordBatch] = []
        for shard in self._moved(failures, change):
            _, left = failures.pop(shard)  # reported nowhere else
            rows += left
            try:
                rows += self.abandon(shard)
            except UnknownOutcome as unknown:
                failures[shard] = (unknown, unknown.unacknowledged)
        return rows

    def _moved(
        self,
        failures: Failures,
        before: Callable[[], int | None],
        timeout: float | None = None,
        *,
        needs_all: bool = False,
    ) -> list[UUID]:
        """The failed shards that the routing has left, once their heirs exist.

        If the store fails here, the failures stay as they are: the caller reports its rows, and
        loses none to an error of this check (F-16).
        """
        try:
            # C-11: the shard was sealed under us. Do not reclaim it: its heirs take the rows.
            moved = [s for s, (error, _) in failures.items() if is_routed_away(self.core, s, error)]
            if needs_all and len(moved) < len(failures):
                return []
            version = before() if moved else None
            if version is not None and await_routing(self.core, version, timeout):
                return moved
            explain(self.core, (failures[shard][0] for shard in moved))
        except StoreError as unasked:
            for shard, (error, _) in failures.items():
                error.add_note(f"could not check whether shard {shard} was resharded: {unasked}")
        return []

    def _abandoned(self, shards: list[UUID], failures: Failures) -> list[pa.RecordBatch]:
        """Rows that nobody waits for, which were put before those of the failures.

        If some may be in the log, the failure says so, and the failures then hold all of them.
        """
        left: dict[UUID, list[pa.RecordBatch]] = {}
        doubts: dict[UUID, UnknownOutcome] = {}
        for shard in shards:
            try:
                left[shard] = self.abandon(shard)
            except UnknownOutcome as doubt:
                doubts[shard] = doubt
        for shard in shards if doubts else ():
            error, _ = failures[shard]
            final = doubts.get(shard, error)
            before = doubts[shard].not_written if shard in doubts else left[shard]
            final.not_written = [*before, *error.not_written]
            if final is not error:
                final.perhaps_written = [*final.perhaps_written, *error.perhaps_written]
            failures[shard] = (final, final.unacknowledged)
        return [row for batches in left.values() for row in batches]


def split(
    core: Core, intake: Intake, batches: Sequence[pa.RecordBatch], record: TableRecord
) -> Parts:
    """The rows by shard, in order within each shard."""
    parts: Parts = {}
    router = Router(record.sharding)
    for batch in batches:
        for value, rows in router.split(batch):
            shard = core.shard_of(value, record)
            parts.setdefault(shard, (value, []))[1].append(rows)
    for _, rows_of_shard in parts.values():  # before any shard takes its part (F-15)
        intake.fit(rows_of_shard, core.env.limits)
    return parts
