"""Which shard takes a row, and how a writer learns that the routing changed under it (C-11)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from uuid import UUID

import pyarrow as pa

from weir.errors import FencedError, SealedShard, StoreError, WeirError
from weir.format.manifest import Status
from weir.format.sharding import Router, Value
from weir.log.intake import Intake
from weir.records.resharding import read_resharding
from weir.records.table import TableRecord
from weir.routing.core import Core

Parts = dict[UUID, tuple[Value, list[pa.RecordBatch]]]
"""By shard: its value, and its rows of one call."""

REROUTES: Final = 8
"""How often one call follows a change of routing."""
REROUTE_SECONDS: Final = 120.0
"""How long a call waits for the new routing when it met a sealed shard."""
REROUTE_POLL_SECONDS: Final = 0.05
REROUTE_POLL_SECONDS_MAX: Final = 2.0
REROUTE_POLL_GROWTH: Final = 1.5
"""The first poll comes soon, as a change takes some tenths of a second; later ones less often."""


def routed_away(core: Core, failures: Mapping[UUID, WeirError]) -> list[UUID]:
    """The shards that failed because the routing has left them or is leaving them.

    If the store fails here, the errors stay what they are, with a note: the caller reports its
    rows, and loses none to an error of this check (F-16).
    """
    try:
        return [shard for shard, error in failures.items() if _is_routed_away(core, shard, error)]
    except StoreError as unasked:
        for shard, error in failures.items():
            error.add_note(f"could not check whether shard {shard} was resharded: {unasked}")
        return []


def _is_routed_away(core: Core, shard: UUID, error: WeirError) -> bool:
    if isinstance(error, SealedShard):
        return True
    if not isinstance(error, FencedError):
        return False
    change = read_resharding(core.store)
    if change is not None and change.is_open:
        return True
    manifest = core.log(shard).manifests.latest()
    return manifest is not None and manifest.status is Status.SEALED


def await_heirs(
    core: Core, after: int, errors: Iterable[WeirError], timeout: float | None = None
) -> bool:
    """Wait for a routing after `after`; False, with a note on the errors, when none comes."""
    try:
        if _await_routing(core, after, timeout):
            return True
        change = read_resharding(core.store)
        if change is None or not change.is_open:
            return False
        note = (
            f"{core.uri}: a change of the routing to {change.sharding} is not finished. If the"
            f" process that started it died, finish it with {change.command}, then put the rows"
            " again"
        )
    except StoreError as unasked:
        note = f"{core.uri}: could not read the new routing: {unasked}"
    for error in errors:
        error.add_note(note)
    return False


def _await_routing(core: Core, after: int, timeout: float | None) -> bool:
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
