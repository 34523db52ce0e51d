"""The shards of writers that stopped without a word, where each has its own (`weir.PerWriter`).

Nobody takes such a shard over, because its writer may live. After the time that the table was made
with it is sealed: its rows are in SSTables then, and are folded, and the shard is finished (C-17).
A writer that lives after all meets the seal, and goes on in another shard (C-18).
"""

from __future__ import annotations

import logging
from typing import NamedTuple
from uuid import UUID

from weir.errors import WeirError
from weir.format.sharding import PerWriter
from weir.read.survey import Survey, last_written
from weir.routing.core import CONCURRENCY, Core
from weir.routing.writer_shard import has_own_writer
from weir.upkeep.compact.policy import Now
from weir.upkeep.owner import Owner

logger = logging.getLogger("weir.upkeep")


class SilentShard(NamedTuple):
    """A shard whose writer has not left and wrote nothing for the table's time."""

    shard: UUID
    since: float
    """When it wrote the last entry or fence, by the clock of the store that holds it (F-18)."""


def find_silent(core: Core, seen: Survey, now: Now) -> list[SilentShard]:
    """The silent shards. Where writers have shards of their own, `last_written` of those that have
    an owner; otherwise no request."""
    sharding = core.record.sharding
    if not isinstance(sharding, PerWriter):
        return []
    owned = [one for one in seen if has_own_writer(core, one.manifest)]
    if not owned:
        return []
    written = last_written(core, owned)
    moment = now()
    return [
        SilentShard(shard, at)
        for shard, at in written.items()
        if moment - at >= sharding.silent_after_s  # guard: C-18 test_per_writer
    ]


def seal_silent(core: Core, seen: Survey) -> tuple[int, list[str]]:
    """Seal them; returns how many were sealed, and a sentence for each that could not be."""
    silent = find_silent(core, seen, core.store.now)

    def seal(one: SilentShard) -> str | None:
        try:
            Owner(core, one.shard).seal()
        except WeirError as failed:  # the others need not wait for it
            return f"shard {one.shard}: its writer is silent, but it was not sealed: {failed}"
        logger.info("shard.silent table=%s shard=%s since=%.0f", core.uri, one.shard, one.since)
        return None

    told = core.env.threads.map(seal, silent, workers=CONCURRENCY)
    notes = [note for note in told if note is not None]
    return len(silent) - len(notes), notes
