"""Makes a new table from a checkpoint of another: the base by reference, the rest copied.

Steps, each idempotent; a retry runs them again (C-4):
  1  find the checkpoint, or make a temporary one
  2  write the lineage at the destination: not ready, with the ids of the future pins (C-1, C-2)
  3  pin the moment in the parent, and in every table the parent shares files with (C-5), for a day
  4  copy SSTables and log entries, put the base beside them, write the shard manifests
  5  make the pins permanent
  6  write the table's record, then a lineage that says ready
A crash before 5 leaves pins that expire; after it, pins whose clone never became ready, which
collection reclaims (C-3).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal
from uuid import UUID, uuid5

from weir.env import Env
from weir.errors import CheckpointNotFound, InvalidInput, WalStoreMismatch
from weir.format import paths
from weir.format.manifest import ShardManifest, Status
from weir.log.shard_log import ShardLog
from weir.log.site import ShardSite
from weir.log.stamp import (
    name_table,
    stamp_store_id,
)
from weir.records.checkpoints import Checkpoint, Checkpoints, Ref
from weir.records.cut import ShardCut
from weir.records.lineage import Lineage, ParentPin, append_lineage, read_lineage
from weir.records.table import TableRecord, TableRecords
from weir.records.wal_store import WalStoreRecord, append_record, latest_record
from weir.routing.core import Core
from weir.routing.former import former_routings
from weir.routing.opening import open as open_core
from weir.shard.tokens import Tokens, by_folder, merged
from weir.store.api import ObjectExists, Store
from weir.store.consent import same_place
from weir.store.open import normalize, open_store
from weir.types import Position, Version
from weir.upkeep import checkpoint as checkpoints
from weir.upkeep.copying import (
    CopiedLog,
    admit_log,
    copy_base,
    copy_by,
    copy_folder,
    copy_sstables,
    copy_wal,
    lost_prefix,
)
from weir.upkeep.parents import detach, discard, give_up, reclaimable_pins, release_clone
from weir.upkeep.pinning import versioned_lake
from weir.upkeep.tasks import Runner

__all__ = ["clone", "detach", "discard", "give_up", "reclaimable_pins", "release_clone"]

logger = logging.getLogger("weir.upkeep")

GRACE_SECONDS: Final = 86_400.0
"""How long a pin protects a clone that is being made; a clone that takes longer is retried."""

Options = Mapping[str, str] | None


@dataclass(frozen=True)
class _CloneRun:
    """One clone being made."""

    core: Core
    source: Checkpoint
    uri: str
    store: Store
    wal: Store
    wal_uri: str | None
    options: Mapping[str, str] = field(repr=False)
    accept_loss: bool
    engine: Literal["local"] | Runner


def clone(
    core: Core,
    destination: str,
    checkpoint: Ref | None = None,
    wal_uri: str | None = None,
    *,
    storage_options: Options = None,
    deep: bool = False,
    accept_loss: bool = False,
    engine: Literal["local"] | Runner = "local",
) -> Core:
    """Make a table at `destination` that holds exactly the checkpoint's rows, and open it.

    The base is shared by reference, so a clone of any size costs a few small objects; its files
    stay pinned in the parent until the clone no longer shares any of them (`detach`). Uncompacted
    SSTables and the pinned part of the log are copied. The destination may be on another bucket or
    another kind of store; with `deep=True` the base is copied too and nothing is shared. Without
    `checkpoint` a temporary one of scope "durable" is made. Raises `InvalidInput` when the
    destination is taken or was begun as another clone; `MissingEntry` when rows of the checkpoint
    were lost with a WAL store, unless `accept_loss` (recorded in the clone). Running it again after
    a failure finishes it. `engine` copies the base of a deep clone.
    """
    options = dict(core.storage_options if storage_options is None else storage_options)
    uri = normalize(destination)
    if uri == core.uri:
        raise InvalidInput(f"{uri} is the table itself; clone to an empty place")
    env = core.env
    store = open_store(uri, options, env=env)
    begun = read_lineage(store)
    if begun is None and TableRecords(store).find() is not None:
        raise InvalidInput(f"{uri} is a weir table already; clone to an empty place")
    wal_place = None if wal_uri is None else normalize(wal_uri)
    if wal_place == uri:
        raise InvalidInput(f"wal_uri is the destination {uri} itself; leave it out")
    wal = None if wal_place is None else open_store(wal_place, options, env=env)
    if wal is not None and begun is None and checkpoint is None:
        # Before the temporary checkpoint is made.
        admit_log(wal, dict.fromkeys(core.shard_ids()))
    source, temporary = _source(core, checkpoint, begun)
    if begun is not None:
        _require_same(begun, core, source, uri)
    if begun is not None and begun.state == "ready":
        _require_pins(begun, options, env)
        return open_core(uri, storage_options=options, env=env)
    job = _CloneRun(
        core=core,
        source=source,
        uri=uri,
        store=store,
        wal=wal or store,
        wal_uri=wal_place,
        options=options,
        accept_loss=accept_loss,
        engine=engine,
    )
    if wal is not None:
        admit_log(wal, {pin.shard: _store_id(job, pin) for pin in source.shards})
        name_table(wal, uri)  # by this call: the clone's record alone is not enough (G-13)
    _run(job, _begin(job, deep=deep) if begun is None else _renew(job, begun))
    if temporary:
        checkpoints.delete(core, source)
    return open_core(uri, storage_options=options, env=env)


def _source(core: Core, ref: Ref | None, begun: Lineage | None) -> tuple[Checkpoint, bool]:
    """Step 1. A retry without a checkpoint uses the one of the first attempt."""
    if ref is None and begun is None:
        ttl = GRACE_SECONDS
        return checkpoints.create(core, scope="durable", ttl=ttl), True
    if ref is None:
        assert begun is not None, "C-4: a retry knows what it retries"
        ref = begun.checkpoint
    assert ref is not None, "C-4: the lineage of a clone names its checkpoint"
    try:
        return checkpoints.find(core, ref), False
    except CheckpointNotFound:
        if begun is None or not (isinstance(ref, str) or _id(ref) == begun.checkpoint):
            raise
        # The pin of the first attempt holds the same moment.
        for pin in begun.pins:
            held = Checkpoints(core.store).load(pin.checkpoint)
            if pin.uri == core.uri and held is not None and held.confirmed:
                return replace(held, id=begun.checkpoint or held.id), False
        raise


def _id(ref: Any) -> UUID | None:
    return ref.id if isinstance(ref, Checkpoint) else ref


def _require_same(begun: Lineage, core: Core, source: Checkpoint, uri: str) -> None:
    """C-4: leftovers of one clone must not become part of another."""
    if begun.parent != core.uri or begun.checkpoint != source.id:
        raise InvalidInput(
            f"{uri} already holds a clone, begun or finished, of {begun.parent} at checkpoint"
            f" {begun.checkpoint}, not of {core.uri} at {source.id}; clone to another place"
        )


def _require_pins(begun: Lineage, options: Options, env: Env) -> None:
    for pin in begun.pins:
        if Checkpoints(open_store(pin.uri, options, env=env)).load(pin.checkpoint) is None:
            raise CheckpointNotFound(
                f"the clone's pin {pin.checkpoint} in {pin.uri} is gone: files that they share may"
                " have been deleted. Make a new clone from a new checkpoint"
            )


def _begin(job: _CloneRun, *, deep: bool) -> Lineage:
    """Step 2: record what is cloned, and the ids of the pins in the parents (C-1)."""
    lineage = Lineage(
        state="copying",
        parent=job.core.uri,
        checkpoint=job.source.id,
        pins=_new_pins(job, deep=deep),
        deep=deep,
    )
    made = append_lineage(job.store, lineage, job.core.env.new_id())
    job.core.env.failpoint("clone.begun")
    return made


def _new_pins(job: _CloneRun, *, deep: bool) -> tuple[ParentPin, ...]:
    new_id = job.core.env.new_id
    parent = None if deep else read_lineage(job.core.store)
    others = parent.pins if parent else ()
    return tuple(ParentPin(uri, new_id()) for uri in (job.core.uri, *(p.uri for p in others)))


def _run(job: _CloneRun, lineage: Lineage) -> None:
    _pin_parents(job, lineage)
    core = job.core
    moved: dict[UUID, int] = {}
    copied = 0
    base = core.lake.open_base(job.source.base_version)
    record = record_at(job.core, job.source.routing_version)
    for pin in job.source.shards:
        folded = base.compacted.get(pin.shard, 0)
        routed = record.routes_to(pin.shard, pin.field_entries, base.schema.plain)
        own = replace(
            pin,
            # SSTables that are in the base already are neither copied nor named (L-2).
            sstables=tuple(t for t in pin.sstables if t.generation > folded),
            # K-10: sealed for a reshard that comes after this moment: active in the clone.
            sealed=pin.sealed and not routed,
        )
        start, size = _copy_shard(job, own)
        copied += size
        if start > pin.replay_after:
            moved[pin.shard] = int(start)
        job.core.env.failpoint(f"clone.shard {pin.shard}")
    if lineage.deep:
        copy = copy_by(core, job.store, job.engine)
        copied += copy_base(core.store, job.store, job.source.base_version, core.env, copy)
    else:
        versioned_lake(core).shallow_clone(job.store, job.source.base_version)
    job.core.env.failpoint("clone.base")
    for tie in lineage.pins:
        Checkpoints(_store_of(job, tie.uri)).refresh(tie.checkpoint, expires=None)
    job.core.env.failpoint("clone.kept")
    copied += copy_folder(core.store, job.store, paths.APPS, core.env)  # P-6
    _write_record(job, record)
    job.core.env.failpoint("clone.recorded")
    ready = replace(
        lineage,
        state="ready",
        accepted_loss=job.accept_loss and bool(moved),
        replay_after=moved,
    )
    append_lineage(job.store, ready, core.env.new_id())
    job.core.env.failpoint("clone.ready")
    logger.info("clone.made from=%s to=%s bytes_copied=%d", core.uri, job.uri, copied)
    if lineage.deep:
        detach(open_core(job.uri, storage_options=job.options, env=core.env))


def _renew(job: _CloneRun, begun: Lineage) -> Lineage:
    """A retry: pins that expired and were collected get new ids; an id is used once."""
    env = job.core.env
    ties = []
    # No pins are left when collection gave the clone up (C-3).
    for tie in begun.pins or _new_pins(job, deep=begun.deep):
        alive = Checkpoints(_store_of(job, tie.uri)).load(tie.checkpoint) is not None
        ties.append(tie if alive else ParentPin(tie.uri, env.new_id()))
    if tuple(ties) == begun.pins:
        return begun
    return append_lineage(job.store, replace(begun, pins=tuple(ties)), env.new_id())


def _pin_parents(job: _CloneRun, lineage: Lineage) -> None:
    """Step 3: pin the parent, and through its pins the tables it shares files with (C-5)."""
    env = job.core.env
    parent = read_lineage(job.core.store)
    theirs = {pin.uri: pin.checkpoint for pin in (parent.pins if parent else ())}
    for pin in lineage.pins:
        if pin.uri == job.core.uri:
            core, source = job.core, job.source
        else:
            if not job.core.consent.may_ask(pin.uri):
                raise job.core.consent.refused(pin.uri, "as a table it was cloned from")
            core = open_core(pin.uri, storage_options=job.options, env=env)
            standing = Checkpoints(core.store).load(pin.checkpoint)
            source = standing or Checkpoints(core.store).find(theirs[pin.uri], whole=False)
            # The owner of the pin is read from that table's record, not from ours (G-13).
            if not same_place(source.owner, job.uri if standing else job.core.uri):
                raise job.core.consent.refused(
                    pin.uri, f"and checkpoint {source.id} there is not its pin"
                )
        checkpoints.derive(
            core,
            source,
            owner=job.uri,
            id=pin.checkpoint,
            lifetime=GRACE_SECONDS,
        )
        job.core.env.failpoint(f"clone.pinned {pin.uri}")


def _copy_shard(job: _CloneRun, pin: ShardCut) -> tuple[Position, int]:
    """Step 4 for one shard; returns R' and the bytes copied."""
    core = job.core
    copy = ShardLog(ShardSite(job.store, job.wal, pin.shard, core.env))
    names = [table.path for table in pin.sstables]
    copied = copy_sstables(core.store, job.store, pin.shard, names, core.env)
    log_ = _copy_log(job, pin)
    start = log_.start
    # P-6: also the tokens in the log, which a native writer of the clone would not know of.
    Tokens(copy.site()).carry(merged(dict(pin.tokens), by_folder(log_.tokens)))
    job.core.env.failpoint(f"clone.copied {pin.shard}")
    if job.wal is not job.store and start < pin.wal_through:
        _record_wal_store(job, copy, pin)  # S-4: where the copied entries are
    copy.manifests.create(
        ShardManifest(
            version=Version(1),
            writer_epoch=pin.epoch,  # C-6
            replay_after=start,
            last_seen=pin.wal_through,
            current_generation=pin.current_generation,
            sstables=pin.sstables,
            shard_spec_id=pin.shard_spec_id,
            shard_id=pin.shard,
            field_entries=pin.field_entries,
            status=Status.SEALED if pin.sealed else Status.ACTIVE,
        )
    )
    return start, copied + log_.bytes


def _copy_log(job: _CloneRun, pin: ShardCut) -> CopiedLog:
    if pin.closed:
        return CopiedLog(pin.replay_after)  # needs no WAL store, which may be gone (W-2)
    if job.wal is not job.store:
        # Before the first entry: none may go into the store of another table.
        stamp_store_id(job.wal, pin.shard, _store_id(job, pin), job.uri)
    try:
        log_ = job.core.log(pin.shard)
        log_.site(log_.floors())
        site = log_.segment(pin.wal_through).site
    except WalStoreMismatch as lost:
        if job.source.scope != "all" and not job.accept_loss:
            raise lost_prefix(pin, pin.wal_through, "its WAL store") from lost
        return CopiedLog(pin.wal_through)
    return copy_wal(site, job.wal, pin, job.source.scope, accept_loss=job.accept_loss)


def _store_id(job: _CloneRun, pin: ShardCut) -> str:
    """Derived from source and destination, so that every attempt gives the store the same id."""
    return uuid5(job.source.id, f"{job.uri} {pin.shard}").hex


def _record_wal_store(job: _CloneRun, copy: ShardLog, pin: ShardCut) -> None:
    if not latest_record(job.store, pin.shard).seq:
        record = WalStoreRecord(job.wal_uri, _store_id(job, pin), epoch=pin.epoch)
        # A concurrent attempt would write the same record.
        with contextlib.suppress(ObjectExists):
            append_record(job.store, pin.shard, record, job.core.env.new_id())
    # The attempt that wrote the record may have died before it raised the mark readers check.
    copy.manifests.floors.raise_to("store", 1)


def _write_record(job: _CloneRun, then: TableRecord) -> None:
    if TableRecords(job.store).find() is not None:
        return
    env = job.core.env
    TableRecords(job.store).create(
        replace(
            then,
            table_id=env.new_id(),
            wal_uri=job.wal_uri,
            created=env.clock.wall(),
            former=former_routings(job.core, then),
        )
    )


def record_at(core: Core, routing_version: int) -> TableRecord:
    """The table's record as it was under that routing."""
    found = TableRecords(core.store).at_routing(routing_version)
    if found is None:
        raise CheckpointNotFound(
            f"{core.uri}: the record of routing {routing_version}, which the checkpoint needs, is"
            " gone; use a newer checkpoint"
        )
    return found


def _store_of(job: _CloneRun, uri: str) -> Store:
    if uri == job.core.uri:
        return job.core.store
    return open_store(uri, job.options, env=job.core.env)
