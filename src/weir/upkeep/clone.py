"""Makes a new table from a checkpoint of another: the base by reference, the rest copied.

Steps, each idempotent; a retry runs them again (C-4):
  1  probe the stores (S-8), find the checkpoint, or make a temporary one
  2  write the lineage at the destination: not ready, with the ids of the future pins (C-1, C-2)
  3  pin the moment in the parent, and in every table the parent shares files with (C-5), for a day
  4  copy SSTables and log entries, put the base beside them, write the shard manifests
  5  make the pins permanent
  6  write the table's record, then a lineage that says ready
  7  narrow the pins to the base, or release those that are not needed (C-14)
A crash before 5 leaves pins that expire; after it, pins that collection names until a retry
finishes the clone or an operator releases it (C-3).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from msgspec.structs import replace

from weir.env import Env
from weir.errors import CheckpointNotFound, InvalidInput, WalStoreMismatch
from weir.format import paths
from weir.format.manifest import ShardManifest, Status
from weir.log.shard_log import ShardLog
from weir.log.site import ShardSite
from weir.log.wal_store import make_folder, require_no_table
from weir.records.checkpoints import Checkpoint, Ref
from weir.records.cut import ShardCut
from weir.records.enclosing import is_within
from weir.records.holds import Holds
from weir.records.lineage import Lineage, ParentPin, append_lineage, read_lineage
from weir.records.places import BESIDE_THE_DATA, LogPlace, append_place
from weir.records.table import TableRecord, TableRecords
from weir.routing.core import Core
from weir.routing.opening import open as open_core
from weir.routing.opening import require_own_place
from weir.shard.tokens import Tokens, by_folder, merged
from weir.store.api import RootMissing, Store
from weir.store.consent import same_place
from weir.store.open import normalize, open_store
from weir.store.probe import prove
from weir.types import Position, Version
from weir.upkeep import checkpoint as checkpoints
from weir.upkeep.compact.progress import require_no_lost_rows
from weir.upkeep.copying import (
    CopiedLog,
    copy_base,
    copy_by,
    copy_folder,
    copy_sstables,
    copy_wal,
    lost_prefix,
    require_own_files,
)
from weir.upkeep.parents import settle_pins
from weir.upkeep.tasks import LOCAL, Runner
from weir.upkeep.unfinished import require_settled

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
    wal_uri: str | None
    options: Mapping[str, str] = field(repr=False)
    accept_loss: bool
    engine: Runner
    probed: Mapping[str, object]
    """What its stores were found to keep, for the clone's record."""


def clone(
    core: Core,
    destination: str,
    checkpoint: Ref | None = None,
    wal_uri: str | None = None,
    *,
    storage_options: Options = None,
    deep: bool = False,
    accept_loss: bool = False,
    engine: Runner = LOCAL,
) -> Core:
    """See `Table.clone`. `engine` copies the base of a deep clone."""
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
    if wal_place is not None and is_within(wal_place, uri):
        raise InvalidInput(
            f"wal_uri {wal_place} is the destination itself, or inside it; leave it out"
        )
    wal = None if wal_place is None else open_store(wal_place, options, env=env)
    if begun is None:  # before anything is written
        require_own_place(uri, options, env)
    if wal is not None and begun is None:
        require_no_table(wal, lambda uri: open_store(uri, options, env=env))
    if deep and begun is None:
        found = None if checkpoint is None else checkpoints.find(core, checkpoint)
        version = core.lake.open_base().version if found is None else found.base_version
        require_own_files(core.store, version)
    if begun is not None:
        _require_same(begun, core, checkpoint, uri, deep=deep)
        if begun.state == "ready":
            return _finished(uri, wal_place, options, env)
    if begun is None and checkpoint is None:  # before anything is written there
        require_no_lost_rows(core)  # guard: L-8 test_rolled_back_base
        require_settled(core, "checkpoint")
    probed = prove([store] if wal is None else [store, wal], env)
    source = _source(core, checkpoint, begun)
    job = _CloneRun(
        core=core,
        source=source,
        uri=uri,
        store=store,
        wal_uri=wal_place,
        options=options,
        accept_loss=accept_loss,
        engine=engine,
        probed=probed,
    )
    _run(job, _begin(job, deep=deep) if begun is None else _renew(job, begun))
    if begun is None and checkpoint is None:
        checkpoints.delete(core, source)  # the temporary one
    return open_core(uri, storage_options=options, env=env)


def _source(core: Core, ref: Ref | None, begun: Lineage | None) -> Checkpoint:
    """Step 1. A retry uses the checkpoint of the first attempt."""
    if begun is None:
        if ref is None:
            return checkpoints.create(core, scope="durable", ttl=GRACE_SECONDS)
        return checkpoints.find(core, ref)
    assert begun.checkpoint is not None, "C-4: the lineage of a clone names its checkpoint"
    try:
        return checkpoints.find(core, begun.checkpoint)
    except CheckpointNotFound:
        held = _first_pin(core, begun)
        if held is None:
            raise
        return replace(held, id=begun.checkpoint)


def _first_pin(core: Core, begun: Lineage) -> Checkpoint | None:
    """The pin of the first attempt, which holds the same moment as its checkpoint."""
    for pin in begun.pins:
        held = Holds(core.store).load(pin.checkpoint)
        if pin.uri == core.uri and held is not None and held.confirmed:
            return held
    return None


def _asked_for(core: Core, ref: Ref | None, begun: Lineage) -> UUID | None:
    """The id of the checkpoint that a retry means, which may be deleted by now (C-4)."""
    if ref is None or ref == str(begun.checkpoint):
        return begun.checkpoint
    if isinstance(ref, Checkpoint):
        return ref.id
    if isinstance(ref, UUID):
        return ref
    try:
        return checkpoints.find(core, ref).id
    except CheckpointNotFound:
        if begun.checkpoint_name != ref:
            raise
        return begun.checkpoint


def _finished(uri: str, wal_place: str | None, options: Options, env: Env) -> Core:
    """The clone that an earlier call finished; its last step, settling its pins, may be missing."""
    core = open_core(uri, storage_options=options, env=env)
    if wal_place is not None and core.record.wal_uri != wal_place:
        raise InvalidInput(
            f"{uri} holds this clone already, with its log at {core.record.wal_uri or uri} and not"
            f" at {wal_place}; move it there with table.move_wal, or clone to another place"
        )
    settle_pins(core)
    lineage = read_lineage(core.store)
    assert lineage is not None, "C-4: it was just read"
    _require_pins(lineage, options, env)
    return core


def _require_same(begun: Lineage, core: Core, ref: Ref | None, uri: str, *, deep: bool) -> None:
    """C-4: leftovers of one clone must not become part of another."""
    if begun.deep != deep:  # guard: C-4
        kinds = {True: "a deep clone, which copies the base", False: "a clone that shares files"}
        raise InvalidInput(
            f"{uri} already holds {kinds[begun.deep]}, begun or finished, and not {kinds[deep]};"
            " clone to another place"
        )
    if begun.parent != core.uri:
        other = f"of {core.uri}"
    elif (asked := _asked_for(core, ref, begun)) != begun.checkpoint:
        other = f"at {asked}"
    else:
        return
    raise InvalidInput(
        f"{uri} already holds a clone, begun or finished, of {begun.parent} at checkpoint"
        f" {begun.checkpoint}, not {other}; clone to another place"
    )


def _require_pins(begun: Lineage, options: Options, env: Env) -> None:
    for pin in begun.pins:
        if Holds(open_store(pin.uri, options, env=env)).load(pin.checkpoint) is None:
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
        checkpoint_name=job.source.name,
        pins=_new_pins(job, deep=deep),
        deep=deep,
        wal_folder=None if job.wal_uri is None else _new_folder(job),
    )
    made = append_lineage(job.store, lineage, job.core.env.new_id())
    job.core.env.failpoint("clone.begun")
    return made


def _new_folder(job: _CloneRun) -> str:
    new_id = job.core.env.new_id
    return paths.log_folder(new_id(), new_id())


def _new_pins(job: _CloneRun, *, deep: bool) -> tuple[ParentPin, ...]:
    new_id = job.core.env.new_id
    parent = None if deep else read_lineage(job.core.store)
    others = parent.pins if parent else ()  # guard: C-5 never
    return tuple(ParentPin(uri, new_id()) for uri in (job.core.uri, *(p.uri for p in others)))


def _run(job: _CloneRun, lineage: Lineage) -> None:
    _pin_parents(job, lineage)
    core = job.core
    log_place = _log_place(job, lineage)
    moved: dict[UUID, int] = {}
    copied = 0
    base = core.lake.open_base(job.source.base_version)
    record = record_at(job.core, job.source.routing_version)
    dtype = core.identity_type(record.sharding)
    for pin in job.source.shards:
        folded = base.compacted.get(pin.shard, 0)
        routed = record.routes_to(pin.shard, pin.field_entries, dtype)
        own = replace(
            pin,
            # SSTables that are in the base already are neither copied nor named (L-2).
            sstables=tuple(t for t in pin.sstables if t.generation > folded),
            # K-10: sealed for a reshard that comes after this moment: active in the clone.
            sealed=pin.sealed and not routed,
        )
        start, size = _copy_shard(job, own, log_place)
        copied += size
        if start > pin.replay_after:
            moved[pin.shard] = int(start)
        job.core.env.failpoint(f"clone.shard {pin.shard}")
    if lineage.deep:
        copy = copy_by(core, job.store, job.engine)
        copied += copy_base(core.store, job.store, job.source.base_version, core.env, copy)
    else:
        core.lake.shallow_clone(job.store, job.source.base_version)
    job.core.env.failpoint("clone.base")
    for tie in lineage.pins:
        # guard: C-1 simulator:clones
        Holds(_store_of(job, tie.uri)).refresh(tie.checkpoint, expires=None, env=core.env)
    job.core.env.failpoint("clone.kept")
    copied += copy_folder(core.store, job.store, paths.APPS, core.env)  # P-6
    _write_record(job, record, log_place)
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
    settle_pins(open_core(job.uri, storage_options=job.options, env=core.env))


def _renew(job: _CloneRun, begun: Lineage) -> Lineage:
    """A retry: pins that expired and were collected get new ids; an id is used once."""
    env = job.core.env
    ties = []
    # No pins are left when an operator released the clone (C-3).
    for tie in begun.pins or _new_pins(job, deep=begun.deep):
        alive = Holds(_store_of(job, tie.uri)).load(tie.checkpoint) is not None
        ties.append(tie if alive else ParentPin(tie.uri, env.new_id()))
    needs_folder = job.wal_uri is not None and begun.wal_folder is None
    folder = _new_folder(job) if needs_folder else begun.wal_folder
    if tuple(ties) == begun.pins and folder == begun.wal_folder:
        return begun
    renewed = replace(begun, pins=tuple(ties), wal_folder=folder)
    return append_lineage(job.store, renewed, env.new_id())


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
            standing = Holds(core.store).load(pin.checkpoint)
            source = standing or Holds(core.store).find(theirs[pin.uri], whole=False)
            # The owner of the pin is read from that table's record, not from ours (G-13).
            # guard: G-13 test_inside_the_table
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


def _log_place(job: _CloneRun, lineage: Lineage) -> LogPlace:
    """Where the clone's logs begin (S-8). By this call, not by the clone's record alone (G-13)."""
    if job.wal_uri is None or lineage.wal_folder is None:
        return BESIDE_THE_DATA
    env = job.core.env
    make_folder(open_store(job.wal_uri, job.options, env=env), lineage.wal_folder, job.uri)
    return LogPlace(uri=job.wal_uri, folder=lineage.wal_folder)


def _copy_shard(job: _CloneRun, pin: ShardCut, place: LogPlace) -> tuple[Position, int]:
    """Step 4 for one shard; returns R' and the bytes copied."""
    core = job.core
    wal = job.store
    if place.root is not None:
        wal = open_store(place.root, job.options, env=core.env, must_exist=True)
    site = ShardSite(job.store, wal, pin.shard, core.env)
    copy = ShardLog(site)
    shift = 0
    if copy.floors().manifest:
        # C-16: a table was dropped here, and the copy's positions go on from its last one.
        made = copy.manifests.require()
        if not made.dropped:  # made by an earlier attempt
            return Position(made.replay_after - made.last_seen + pin.wal_through), 0
        shift = made.last_seen
    names = [table.path for table in pin.sstables]
    copied = copy_sstables(core.store, job.store, pin.shard, names, core.env)
    log_ = _copy_log(job, wal, pin, shift)
    start = log_.start
    # P-6: also the tokens in the log, which a native writer of the clone would not know of.
    # guard: P-6 simulator:tokens
    Tokens(site).carry(merged(dict(pin.tokens), by_folder(log_.tokens)))
    job.core.env.failpoint(f"clone.copied {pin.shard}")
    if place.uri is not None:
        place = append_place(job.store, pin.shard, place, core.env)
    if start + shift:
        # The clone's log begins after R': its feed must not look for the entries before that.
        copy.manifests.floors.raise_to("wal", start + shift)
    copy.manifests.create(
        ShardManifest(
            version=Version(1),
            writer_epoch=pin.epoch,
            closed_epoch=pin.epoch,
            log_place=place.seq,  # guard: S-8 test_missing_log
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


def _copy_log(job: _CloneRun, wal: Store, pin: ShardCut, shift: int) -> CopiedLog:
    if pin.closed:
        return CopiedLog(pin.replay_after)  # needs no WAL store, which may be gone (W-2)
    scope, loss = job.source.scope, job.accept_loss
    try:
        log_ = job.core.log(pin.shard)
        log_.current_site()  # it may have been moved since this handle last looked (S-3)
        site = log_.segment(pin.wal_through).site
        return copy_wal(site, wal, pin, scope, accept_loss=loss, shift=shift)
    except (WalStoreMismatch, RootMissing) as lost:
        if scope != "all" and not loss:
            raise lost_prefix(pin, pin.wal_through, "its WAL store") from lost
        return CopiedLog(pin.wal_through)


def _write_record(job: _CloneRun, then: TableRecord, place: LogPlace) -> None:
    if TableRecords(job.store).find() is not None:
        return
    env = job.core.env
    TableRecords(job.store).create(
        replace(
            then,
            table_id=env.new_id(),
            wal_uri=place.uri,
            wal_folder=place.folder,
            probe=job.probed,
            created=env.clock.wall(),
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
