"""The shards of writers that stopped without a word, where each has its own (`weir.PerWriter`).

Nobody takes such a shard over, because its writer may live. After the time that the table was made
with it is sealed: its rows are in SSTables then, and are folded, and the shard is finished (C-17).
A writer that lives after all meets the seal, and goes on in another shard (C-18).
"""

from __future__ import annotations

import logging
from uuid import UUID

from weir.errors import WeirError
from weir.format.sharding import PerWriter
from weir.read.survey import Survey, last_written
from weir.routing.core import CONCURRENCY, Core
from weir.routing.writer_shard import has_own_writer
from weir.upkeep.compact.policy import Now
from weir.upkeep.owner import Owner

logger = logging.getLogger("weir.upkeep")


def find_silent(core: Core, seen: Survey, now: Now) -> list[UUID]:
    """The shards whose writer has not left and wrote nothing for the table's time, by the clock of
    the store that holds the log (F-18). Where writers have shards of their own, `last_written` of
    those that have an owner; otherwise no request."""
    sharding = core.record.sharding
    if not isinstance(sharding, PerWriter):
        return []
    owned = [one for one in seen if has_own_writer(core, one.manifest)]
    written = last_written(core, owned)
    before = now() - sharding.silent_after_s if written else 0.0
    # guard: C-18 test_per_writer
    return [shard for shard, at in written.items() if at <= before]


def seal_silent(core: Core, seen: Survey) -> tuple[int, list[str]]:
    """Seal them; returns how many were sealed, and a sentence for each that could not be."""
    silent = find_silent(core, seen, core.store.now)

    def seal(shard: UUID) -> str | None:
        try:
            Owner(core, shard).seal()
        except WeirError as failed:  # the others need not wait for it
            return f"shard {shard}: its writer is silent, but it was not sealed: {failed}"
        logger.info("shard.silent table=%s shard=%s", core.uri, shard)
        return None

    told = core.env.threads.map(seal, silent, workers=CONCURRENCY)
    notes = [note for note in told if note is not None]
    return len(silent) - len(notes), notes
