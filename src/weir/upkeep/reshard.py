"""Changes the sharding of a table while it is written to.

Steps, each idempotent; an interrupted run is finished by running it again:
  1  record what is being done, once nothing stands in its way
  2  make the new shards, empty, numbering generations above all old ones (C-13)
  3  seal every shard of the old routing: claim, fence, replay, flush to R = L, then `SEALED`
  4  checkpoint everything, as the way back
  5  one record changes the routing; from here on rows go to the new shards
  6  seal shards that were made under the old routing in the meantime
  7  update the MemWAL index of the base for native programs, record that it is done

No row is moved: readers treat a sealed shard's rows as older than its heirs', and compaction folds
them into the base together with the heirs' rows or before them (C-11). Rows that still wait in
shards sealed by an earlier reshard are folded first, so there is only one generation of sealed
shards at any time.
Writers that meet a sealed shard wait for step 5 and go on with the new routing (`TableWriter`).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from msgspec import structs

from weir.errors import CommitConflict, InvalidInput
from weir.format.manifest import ShardManifest
from weir.format.sharding import (
    Identity,
    PerWriter,
    Sharding,
    check_sharding,
    field_entries,
    values_of,
)
from weir.read.survey import ShardSurvey, survey, survey_shards
from weir.records.resharding import Resharding, append_resharding, read_resharding
from weir.records.table import Route, TableRecord, TableRecords, with_routing
from weir.routing.core import CONCURRENCY, Core, first_manifest, routes_of
from weir.types import Generation
from weir.upkeep import checkpoint as checkpoints
from weir.upkeep.compact.progress import require_no_lost_rows
from weir.upkeep.compact.run import CompactReport
from weir.upkeep.compact.run import compact as run_compaction
from weir.upkeep.defaults import UNDO_TTL
from weir.upkeep.exclusive import sync_mem_wal_index
from weir.upkeep.owner import Owner
from weir.upkeep.tasks import LOCAL, Runner
from weir.upkeep.unfinished import require_settled

logger = logging.getLogger("weir.upkeep")

COMPACTIONS: Final = 4
"""How often the old shards are compacted, if others take the claim over."""


@dataclass(frozen=True)
class ReshardReport:
    """What a change of routing did."""

    routing_version: int
    sealed: tuple[UUID, ...]
    """Shards of the old routing; they are read until compaction has folded them."""
    shards: tuple[UUID, ...]
    """Shards of the new routing that exist from the start."""
    checkpoint: UUID | None
    """The table as it was when all old shards were sealed, kept for seven days."""
    compaction: CompactReport | None


def reshard(
    core: Core,
    sharding: Sharding,
    *,
    compact: bool = True,
    engine: Runner = LOCAL,
) -> ReshardReport:
    """See `Table.reshard`. `engine` folds the old shards' rows."""
    check_sharding(sharding, core.schema().plain, core.record.primary_key)
    _require_routes(core, sharding)
    state, record = _begin(core, sharding, engine)
    if state is None:
        return ReshardReport(record.routing_version, (), (), None, None)
    state, sealed = _change(core, state, record)
    logger.info("table.resharded uri=%s to=%s sealed=%d", core.uri, sharding, len(sealed))
    return ReshardReport(
        routing_version=core.refresh().routing_version,
        sealed=tuple(sealed),
        shards=tuple(route.shard for route in core.record.routing),
        checkpoint=state.checkpoint,
        compaction=_fold_old_shards(core, engine) if compact else None,
    )


def _fold_old_shards(core: Core, engine: Runner) -> CompactReport:
    """Compact; again if somebody took the claim over, as a move of the log does for a moment. One
    that keeps it compacts in our place, and the report says so."""
    for attempt in core.env.attempts(COMPACTIONS):
        try:
            return run_compaction(core, engine=engine)
        except CommitConflict:
            if attempt == COMPACTIONS:
                raise
    raise AssertionError("L-4: the loop above returns or raises")


def _require_routes(core: Core, sharding: Sharding) -> None:
    """`InvalidInput` unless rows find their shard by a routing, before and after."""
    if isinstance(core.record.sharding, PerWriter):
        raise InvalidInput(
            f"{core.uri} has a shard for each writer (PerWriter), which no reshard changes: to have"
            " more shards, open more writers"
        )
    if isinstance(sharding, PerWriter):
        raise InvalidInput(
            f"{core.uri}: a table has a shard for each writer from its beginning or never; make a"
            " new one with sharding=PerWriter()"
        )


def _change(core: Core, state: Resharding, record: TableRecord) -> tuple[Resharding, list[UUID]]:
    """Run those of steps 2 to 7 that are not done yet; returns the old shards too."""
    core.env.failpoint("reshard.begun")
    old = TableRecords(core.store).at_routing(state.routing_version)
    if old is None:
        raise CommitConflict(f"{core.uri}: the record of routing {state.routing_version} is gone")
    if record.routing_version == state.routing_version:
        _make_shards(core, old, state)
        core.env.failpoint("reshard.made")
        _seal_all(core, old)  # guard: C-11 simulator:reshards
        state = _checkpoint(core, state)
        core.env.failpoint("reshard.checkpointed")
        _change_routing(core, old, state)
        core.env.failpoint("reshard.routed")
    sealed = _seal_all(core, old)
    core.refresh()
    sync_mem_wal_index(core)
    core.env.failpoint("reshard.told")
    done = append_resharding(core.store, structs.replace(state, state="done"), core.env.new_id())
    core.env.failpoint("reshard.done")
    return done, sealed


def _begin(core: Core, sharding: Sharding, engine: Runner) -> tuple[Resharding | None, TableRecord]:
    """Step 1, and the table's record after it; None when the sharding is in place already."""
    require_no_lost_rows(core)  # guard: L-8 test_rolled_back_base
    require_settled(core, "reshard")
    found = read_resharding(core.store)
    # Read after the chain of reshards: a routing read before the last of them is outdated (C-11). A
    # reshard that begins after that takes the number under which this one would be recorded.
    record = core.refresh()
    if found is not None and found.is_open:
        if found.sharding != sharding:
            raise InvalidInput(
                f"{core.uri}: a change to {found.sharding} was begun and not finished; finish it"
                f" first: {found.command}"
            )
        if found.routing_version == record.routing_version:
            _fold_sealed(core, record, engine)
            require_settled(core, "reshard")
        return found, record
    if record.sharding == sharding:
        return None, record
    # Before the record: writers that are fenced wait for a reshard that has begun.
    _fold_sealed(core, record, engine)
    begun = Resharding(
        state="begun",
        routing_version=record.routing_version,
        sharding=sharding,
        seq=found.seq if found is not None else 0,
    )
    state = append_resharding(core.store, begun, core.env.new_id())
    try:
        # A restore that announced itself in between does not see this record. One that comes later
        # does, and waits.
        require_settled(core, "reshard")
        _require_folded(core, record)
    except CommitConflict:
        # Nothing was done: the chain says again that the change to the present routing is done.
        last = record.routing_version - 1
        done = structs.replace(state, state="done", routing_version=last, sharding=record.sharding)
        append_resharding(core.store, done, core.env.new_id())
        raise
    return state, record


def _fold_sealed(core: Core, old: TableRecord, engine: Runner) -> None:
    """Two generations of sealed shards would have no order between them: fold the older one."""
    if _sealed_waiting(core, old):
        report = run_compaction(core, engine=engine)
        _require_folded(core, old, report.skipped)


def _require_folded(core: Core, old: TableRecord, reason: str | None = None) -> None:
    if _sealed_waiting(core, old):
        raise CommitConflict(
            f"{core.uri}: rows of an earlier reshard are not compacted yet"
            f" ({reason or 'they could not all be folded'}). Run table.compact(), with"
            " lease=0 if the other compaction died, then this again"
        )


def _sealed_waiting(core: Core, old: TableRecord) -> bool:
    """True when rows that an earlier reshard sealed still wait to be folded.

    Shards of `old` do not count: this reshard seals them, or did so in an earlier attempt.
    """
    seen = survey(core, logs=False)
    sealed = {one.id for one in seen if one.is_sealed and one.waiting(seen.base)}
    # guard: C-11 last test_reshard_resumed_beside_a_claim
    return bool(sealed) and not sealed.issubset(_old_shards(core, old))


def _new_routes(old: TableRecord, state: Resharding) -> tuple[Route, ...]:
    """The shards that exist from the start of the new routing."""
    values = values_of(state.sharding)
    return routes_of(state.sharding, values, old.routing_version + 1, old.spec + 1)


def _make_shards(core: Core, old: TableRecord, state: Resharding) -> None:
    _, shards = survey_shards(core, logs=False)
    ending = {*_old_shards(core, old)}
    numbers = [one.manifest.current_generation for one in shards if one.id in ending]
    highest = max(numbers, default=0)
    for route in _new_routes(old, state):
        entries = field_entries(state.sharding, route.value, None)
        first = first_manifest(route.shard, route.spec, entries)
        # guard: C-13
        first = replace(first, current_generation=Generation(highest + 1))  # C-13
        core.log(route.shard).manifests.create(first)


def _old_shards(core: Core, old: TableRecord) -> list[UUID]:
    """The shards of the old routing that exist now; identity shards are known by their value."""
    sharding = old.sharding
    if not isinstance(sharding, Identity):
        return [route.shard for route in old.routing]
    dtype = core.identity_type(sharding)
    _, shards = survey_shards(core, logs=False)

    def is_old(one: ShardSurvey) -> bool:
        return (
            old.routes_to(one.id, one.manifest.field_entries, dtype)
            or _is_unnamed(core, sharding, old, one.manifest)  # guard: X-2 test_shared_tables
        )

    return [one.id for one in shards if is_old(one)]


def _is_unnamed(core: Core, sharding: Identity, old: TableRecord, manifest: ShardManifest) -> bool:
    """X-2: a shard of the old routing that LanceDB made and owns, even one without rows."""
    if manifest.field_entries or manifest.shard_spec_id != old.spec:
        return False
    told = core.unnamed_value(manifest.shard_id, manifest, sharding)
    return told is None or core.shard_of(told[0], old) == manifest.shard_id


def _seal_all(core: Core, old: TableRecord) -> list[UUID]:
    shards = _old_shards(core, old)

    def one(shard: UUID) -> None:
        Owner(core, shard).seal()
        core.env.failpoint(f"reshard.sealed {shard}")

    core.env.threads.map(one, shards, workers=CONCURRENCY)
    return shards


def _checkpoint(core: Core, state: Resharding) -> Resharding:
    if state.checkpoint is not None:
        return state
    made = checkpoints.create(core, scope="all", name="before-reshard", ttl=UNDO_TTL)
    return append_resharding(
        core.store, structs.replace(state, checkpoint=made.id), core.env.new_id()
    )


def _change_routing(core: Core, old: TableRecord, state: Resharding) -> None:
    """Step 5: one append to the table's record."""
    routes = _new_routes(old, state)

    def change(latest: TableRecord) -> TableRecord:
        if latest.routing_version != old.routing_version:
            return latest  # an earlier attempt did it
        return structs.replace(with_routing(latest, state.sharding, routes), spec=old.spec + 1)

    core.record = core.records().update(change, core.env)
