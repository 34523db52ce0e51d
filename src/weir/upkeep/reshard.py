"""Changes the sharding of a table while it is written to.

Steps, each idempotent; an interrupted run is finished by running it again:
  1  record what is being done
  2  make the new shards, empty (C-12), numbering generations above all old ones (C-13)
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
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal
from uuid import UUID

from weir.errors import CommitConflict, FencedError, InvalidInput, SealedShard
from weir.format.manifest import ShardManifest, Status
from weir.format.sharding import (
    FIRST_ROUTING,
    Identity,
    Sharding,
    check_sharding,
    field_entries,
    values_of,
)
from weir.log.rules import Evidence
from weir.records.resharding import Resharding, append_resharding, read_resharding
from weir.records.table import Route, TableRecord, TableRecords, upgraded, with_routing
from weir.routing.core import CONCURRENCY, Core, first_manifest, routes_of
from weir.routing.shards import Shard, unregistered_writer
from weir.shard.tokens import Tokens
from weir.types import Generation
from weir.upkeep import checkpoint as checkpoints
from weir.upkeep.compact.plan import find_pending
from weir.upkeep.compact.run import CompactReport
from weir.upkeep.compact.run import compact as run_compaction
from weir.upkeep.exclusive import sync_mem_wal_index
from weir.upkeep.tasks import Runner

logger = logging.getLogger("weir.upkeep")

SEAL_ATTEMPTS: Final = 16
ROLLBACK_CHECKPOINT_TTL: Final = "7d"


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
    engine: Literal["local"] | Runner = "local",
) -> ReshardReport:
    """Spread the table's rows by `sharding` from now on; rows already there stay where they are.

    Safe under load: writers of `table.writer()` pause briefly and go on, other writers of the
    old shards get `FencedError` or `SealedShard`. With `compact` the old shards' rows are folded
    into the base afterwards, by `engine` as `table.compact` takes it. Raises `InvalidInput` for a
    sharding that does not fit, or while another reshard is unfinished. Costs a claim, a flush and
    two manifests per old shard.
    """
    check_sharding(sharding, core.schema().plain, core.record.primary_key)
    state, record = _begin(core, sharding)
    if state is None:
        return ReshardReport(record.routing_version, (), (), None, None)
    state, sealed = _change(core, state, record, engine)
    logger.info("table.resharded uri=%s to=%s sealed=%d", core.uri, sharding, len(sealed))
    return ReshardReport(
        routing_version=core.refresh().routing_version,
        sealed=tuple(sealed),
        shards=tuple(route.shard for route in core.record.routing),
        checkpoint=state.checkpoint,
        compaction=run_compaction(core, engine=engine) if compact else None,
    )


def to_native_shards(core: Core, before_routing: Callable[[], None]) -> Resharding:
    """The same sharding with LanceDB's shard ids and format 2: the last steps of an upgrade.

    `before_routing` runs when every old shard is sealed, and may still raise.
    """
    state, record = _begin(core, core.record.sharding, upgrade=True)
    assert state is not None, "a table of format 1, or an upgrade that goes on"
    return _change(core, state, record, "local", before_routing)[0]


def _change(
    core: Core,
    state: Resharding,
    record: TableRecord,
    engine: Literal["local"] | Runner,
    before_routing: Callable[[], None] = lambda: None,
) -> tuple[Resharding, list[UUID]]:
    """Run those of steps 2 to 7 that are not done yet; returns the old shards too."""
    core.env.failpoint("reshard.begun")
    old = TableRecords(core.store).at_routing(state.routing_version)
    if old is None:
        raise CommitConflict(f"{core.uri}: the record of routing {state.routing_version} is gone")
    if record.routing_version == state.routing_version:
        _fold_sealed(core, old, engine)
        _make_shards(core, old, state)
        core.env.failpoint("reshard.made")
        _seal_all(core, old)
        state = _checkpoint(core, state)
        core.env.failpoint("reshard.checkpointed")
        before_routing()
        _change_routing(core, old, state)
        core.env.failpoint("reshard.routed")
    sealed = _seal_all(core, old)
    core.refresh()
    sync_mem_wal_index(core)
    core.env.failpoint("reshard.told")
    done = append_resharding(core.store, replace(state, state="done"), core.env.new_id())
    core.env.failpoint("reshard.done")
    return done, sealed


def _begin(
    core: Core, sharding: Sharding, *, upgrade: bool = False
) -> tuple[Resharding | None, TableRecord]:
    """Step 1, and the table's record after it; None when the sharding is in place already."""
    found = read_resharding(core.store)
    # Read after the chain of reshards: a routing read before the last of them is outdated (C-11). A
    # reshard that begins after that takes the number under which this one would be recorded.
    record = core.refresh()
    if found is not None and found.is_open:
        if found.sharding != sharding or found.upgrade != upgrade:
            raise InvalidInput(
                f"{core.uri}: a change to {found.sharding} was begun and not finished; finish it"
                f" first: {found.command}"
            )
        return found, record
    if record.sharding == sharding and not upgrade:
        return None, record
    begun = Resharding(
        state="begun",
        routing_version=record.routing_version,
        sharding=sharding,
        seq=found.seq if found is not None else 0,
        upgrade=upgrade,
    )
    return append_resharding(core.store, begun, core.env.new_id()), record


def _fold_sealed(core: Core, old: TableRecord, engine: Literal["local"] | Runner) -> None:
    """Two generations of sealed shards would have no order between them: fold the older one."""
    if not _sealed_waiting(core, old):
        return
    report = run_compaction(core, engine=engine)
    if _sealed_waiting(core, old):
        raise CommitConflict(
            f"{core.uri}: rows of an earlier reshard are not compacted yet"
            f" ({report.skipped or 'they could not all be folded'}); try again"
        )


def _sealed_waiting(core: Core, old: TableRecord) -> bool:
    """True when rows that an earlier reshard sealed still wait to be folded.

    Shards of `old` do not count: this reshard seals them, or did so in an earlier attempt.
    """
    _, waiting = find_pending(core, fold_wal=False)
    sealed = {one.cut.shard for one in waiting if one.cut.sealed}
    return bool(sealed) and not sealed.issubset(_old_shards(core, old))


def _new_routes(old: TableRecord, state: Resharding) -> tuple[Route, ...]:
    """The shards that exist from the start of the new routing."""
    spec, ids = old.spec + 1, old.routing_version + 1
    if state.upgrade:
        spec, ids = 1 if old.spec else 0, FIRST_ROUTING
    return routes_of(state.sharding, values_of(state.sharding), ids, spec)


def _make_shards(core: Core, old: TableRecord, state: Resharding) -> None:
    highest = 0
    for shard in _old_shards(core, old):
        manifest = core.log(shard).latest()
        highest = max(highest, manifest.current_generation if manifest else 0)
    for route in _new_routes(old, state):
        entries = field_entries(state.sharding, route.value, None)
        first = first_manifest(route.shard, route.spec, entries)
        first = replace(first, current_generation=Generation(highest + 1))  # C-13
        core.log(route.shard).manifests.create(first)


def _old_shards(core: Core, old: TableRecord) -> list[UUID]:
    """The shards of the old routing that exist now; identity shards are known by their value."""
    if not isinstance(old.sharding, Identity):
        return [route.shard for route in old.routing]
    columns = core.schema().plain
    found = []
    for shard in core.shard_ids():
        manifest = core.log(shard).latest()
        if manifest is not None and (
            old.routes_to(shard, manifest.field_entries, columns)
            or _is_unnamed(core, old.sharding, old, manifest)
        ):
            found.append(shard)
    return found


def _is_unnamed(core: Core, sharding: Identity, old: TableRecord, manifest: ShardManifest) -> bool:
    """X-2: a shard of the old routing that LanceDB made and owns, even one without rows."""
    if manifest.field_entries or manifest.shard_spec_id != old.spec:
        return False
    told = core.unnamed_value(manifest.shard_id, manifest, sharding)
    return told is None or core.shard_of(told[0], old) == manifest.shard_id


def _seal_all(core: Core, old: TableRecord) -> list[UUID]:
    shards = _old_shards(core, old)

    def one(shard: UUID) -> None:
        seal(core, shard)
        core.env.failpoint(f"reshard.sealed {shard}")

    core.env.threads.map(one, shards, workers=CONCURRENCY)
    return shards


def seal(core: Core, shard: UUID) -> None:
    """Step 3 for one shard: from then on every row of its log is in an SSTable, for good."""
    manifests = core.log(shard).manifests
    # The table's own settings: a larger `fence_ttl` would be refused (G-7b).
    config = replace(core.record.writer_defaults, enable_memtable=True, index_configs=())
    for _ in range(SEAL_ATTEMPTS):
        manifest = manifests.latest()
        if manifest is None or manifest.status is Status.SEALED:
            return
        try:
            with unregistered_writer(
                core, Shard(core, shard, None, is_routed=False), config
            ) as writer:
                flushed = writer.flush()
                # P-6: heirs read the tokens that a sealed shard has recorded, and not its log.
                Tokens(writer.site).recover(None, epoch=writer.epoch, through=flushed.replay_after)
                manifests.update(_sealed, epoch=writer.epoch)
            return
        except (FencedError, SealedShard) as lost:
            logger.info("seal.again shard=%s reason=%s", shard, lost)
    raise CommitConflict(
        f"{core.log(shard)}: other writers claimed it {SEAL_ATTEMPTS} times while it was being"
        " sealed; stop them, then run this again"
    )


def _sealed(current: ShardManifest) -> tuple[ShardManifest, Evidence] | None:
    assert current.replay_after == current.last_seen, "C-11: sealed with rows in the log"
    return replace(current, status=Status.SEALED), Evidence()


def _checkpoint(core: Core, state: Resharding) -> Resharding:
    if state.checkpoint is not None:
        return state
    name = "before-upgrade" if state.upgrade else "before-reshard"
    made = checkpoints.create(core, scope="all", name=name, ttl=ROLLBACK_CHECKPOINT_TTL)
    return append_resharding(core.store, replace(state, checkpoint=made.id), core.env.new_id())


def _change_routing(core: Core, old: TableRecord, state: Resharding) -> None:
    """Step 5: one append to the table's record."""
    routes = _new_routes(old, state)

    def change(latest: TableRecord) -> TableRecord:
        if latest.routing_version != old.routing_version:
            return latest  # an earlier attempt did it
        if state.upgrade:
            return upgraded(latest, routes)
        return replace(with_routing(latest, state.sharding, routes), spec=old.spec + 1)

    core.record = TableRecords(core.store).update(change)
