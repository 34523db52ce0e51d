"""What a writer does when the routing changes under it.

Keeps
  C-11 the heirs of a sealed shard take its rows; nobody fights over the shard
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final
from uuid import UUID

import pyarrow as pa

from weir.errors import FencedError, SealedShard, WeirError
from weir.format.manifest import Status
from weir.format.sharding import Router, Value
from weir.log.intake import Intake
from weir.records.resharding import read_resharding
from weir.records.table import TableRecord
from weir.routing.core import Core

Parts = dict[UUID, tuple[Value, list[pa.RecordBatch]]]
"""By shard its value and its rows of one put."""

REROUTES: Final = 8
"""How often one put follows a change of routing."""
REROUTE_SECONDS: Final = 120.0
"""How long a put waits for the new routing when it met a sealed shard."""
REROUTE_POLL_SECONDS: Final = 0.05
REROUTE_POLL_SECONDS_MAX: Final = 2.0
REROUTE_POLL_GROWTH: Final = 1.5
"""It looks soon, because a change takes some tenths of a second, and less and less often after."""


def has_left(core: Core, shard: UUID, error: WeirError) -> bool:
    """True when the shard failed because the routing leaves it."""
    if isinstance(error, SealedShard):
        return True
    if not isinstance(error, FencedError):
        return False
    change = read_resharding(core.store)
    if change is not None and change.is_open:
        return True
    manifest = core.tails.manifests(core.beside(shard)).latest()
    return manifest is not None and manifest.status is Status.SEALED


def await_routing(core: Core, after: int, timeout: float | None = None) -> bool:
    """Wait until the record shows a routing after `after`; False when it does not come in time.

    Whoever changes the routing may be busy flushing: to do the rest here would fence him, and he us
    (F-13).
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
    """Tell what the rows were waiting for."""
    change = read_resharding(core.store)
    if change is None or not change.is_open:
        return
    for error in errors:
        error.add_note(
            f"{core.uri}: a change of its routing to {change.sharding} was begun and is"
            " not finished. If whoever began it died, finish it by"
            f" {change.command}, then put the rows again"
        )


def split(
    core: Core, intake: Intake, batches: Sequence[pa.RecordBatch], record: TableRecord
) -> Parts:
    """The rows by shard, each shard's in their order."""
    parts: Parts = {}
    router = Router(record.sharding)
    for batch in batches:
        for value, rows in router.split(batch):
            shard = core.shard_of(value, record)
            parts.setdefault(shard, (value, []))[1].append(rows)
    for _, rows_of_shard in parts.values():  # before any shard takes its part (F-15)
        intake.fit(rows_of_shard, core.env.limits)
    return parts
