"""Keeps compactors away while the base is changed in another way (restore, reshard, loads), and
checks a table before a handle writes to it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from weir.errors import CommitConflict
from weir.format.schema import TableSchema
from weir.routing.core import Core
from weir.routing.guard import look_for_rivals
from weir.routing.natives import update_mem_wal_index, wanted_mem_wal_index
from weir.routing.shards import schema_for_writing
from weir.upkeep.compact.claim import Claim, take_claim
from weir.upkeep.compact.jobs import Jobs
from weir.upkeep.compact.progress import may_have_lost, require_no_lost_rows
from weir.upkeep.unfinished import Verb, require_settled

logger = logging.getLogger("weir.upkeep")


def without_compaction(core: Core, verb: Verb | None = None) -> Claim:
    """The compactors' claim for `verb`, which may have to wait (`require_settled`).

    To be held in a `with` block. It is taken over from whoever has it.
    """
    jobs = Jobs(core.store)
    for _ in core.env.attempts():
        latest = jobs.latest()
        if verb is not None:
            # Between the two requests: a restore claims before it announces itself, and proves its
            # claim after that. Whichever of us claims last, the other one learns of it.
            require_settled(core, verb)
        try:
            record = jobs.claim(str(core.env.new_id()), latest)
        except CommitConflict:
            continue
        return take_claim(core, record)
    raise CommitConflict(
        f"{core.uri}: compactions claimed it first, again and again; try again later"
    )


def before_writing(core: Core) -> TableSchema:
    """Check the table before this handle writes; returns the schema to write with.

    Shuts out native writers that could not share the logs (X-1); that takes no request unless
    this handle moves the log away from the data. Raises `CorruptEntry`
    when another program removed rows that the base held (L-8). Finds shards that other programs
    made, and refuses writers of their values (X-3). The requests run in parallel with those for the
    schema: a list and a get for the chain of compactions, a listing of the shards.
    """
    if core.wal_uri not in (None, core.uri):
        core.record_number()
        if core.wal_uri != core.latest_record().wal_uri:
            sync_mem_wal_index(core, elsewhere=True)
    asked: list[Callable[[], Any]] = [
        core.base,
        Jobs(core.store).latest,
        lambda: look_for_rivals(core),
    ]
    base, record, _ = core.env.threads.map(lambda ask: ask(), asked, workers=core.workers)
    # guard: L-8 test_rolled_back_base
    if record is not None and may_have_lost(base, record.reached):
        require_no_lost_rows(core)
    return schema_for_writing(core, base)


def sync_mem_wal_index(core: Core, *, elsewhere: bool = False) -> bool:
    """Make the MemWAL index entry say who may write (X-1); True when it had to be changed.

    One read of the base when the entry is right; otherwise one commit under the compactors' claim,
    which another process may take over in the middle: then it is looked at again.
    """
    is_changed = False
    for _ in core.env.attempts():
        if wanted_mem_wal_index(core, elsewhere=elsewhere) is None:
            return is_changed
        try:
            with without_compaction(core):
                return update_mem_wal_index(core, elsewhere=elsewhere)
        except CommitConflict as lost:
            logger.info("index.again uri=%s reason=%s", core.uri, lost)
            is_changed = True
    raise CommitConflict(
        f"{core.uri}: other processes compact, reshard or load the table again and again, while the"
        " entry that tells native programs who may write was to be changed. Run this again after"
        " them"
    )
