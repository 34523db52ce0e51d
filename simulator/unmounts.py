"""Stores and clones that only some processes see, in a simulated history (S-7, S-8, C-15).

The log is on a disk. On some machines the disk is for a while not mounted, unreachable, or replaced
by another one. The judge demands that every durable read is complete or fails; that every
acknowledged row is in the store the record names; that a wrong store is refused before anything is
written; that a clone keeps its files although the collector of its parent does not see the clone.
At the end no row is in the log only, and its disk is lost: everything must work without it.
"""

from __future__ import annotations

import random

from msgspec import structs

from simulator.keepers import collector
from simulator.roles import (
    Session,
    check_final_view,
    final,
    open_shard,
    record_of,
    write_record,
)
from simulator.scenarios import SHARD, TABLE, Plan, Role, Run
from simulator.scheduler import Actor
from simulator.truth import Violation
from simulator.world import AWAY, HOLE, Faults, split_folder
from weir.config import WriterConfig
from weir.errors import SnapshotExpired, WeirError
from weir.format.sharding import Unsharded
from weir.making import create_shards
from weir.making import open as open_table
from weir.read.scan import Scan
from weir.records.checkpoints import Checkpoint
from weir.records.table import Route, TableRecords
from weir.routing.core import Core
from weir.store.open import open_store
from weir.upkeep.checkpoint import create, delete

DISK, SPARE = "/wal", "/wal-2"
OTHER = "s3://other"
"""The place of another table, whose shard has the same id."""
ALWAYS = 1 << 40


def draw_unmounts(plan: Plan, rng: random.Random) -> None:
    """Disks come and go on every machine."""
    plan.is_story = plan.moves = True
    plan.wal_uri = DISK
    plan.places = [None, None, None, SPARE]
    _calm(plan, rng)
    for number, role in enumerate(plan.roles):
        if role.kind == "reader":
            role.ops = 20  # repeated reads use what earlier ones cached
            _blink(role, random.Random(f"blink/{plan.seed}/{number}"))
        for _ in range(0 if role.kind == "stranger" else rng.choice((0, 1, 1, 2))):
            uri = rng.choice((DISK, DISK, SPARE))
            view = rng.choice((HOLE, HOLE, AWAY, SPARE if uri == DISK else DISK))
            role.unmounts.append((rng.randrange(400), rng.choice((40, 150, 600)), uri, view))
    if rng.random() < 0.25:
        _exchange(plan, rng)


def _blink(role: Role, rng: random.Random) -> None:
    """The disk goes between two requests of one read, and comes back later.

    Not both within one read: a hole that only one request sees cannot be detected.
    """
    first = rng.randrange(4)
    while first < 200:
        many = rng.randrange(4, 9)
        role.blinks.append((first, many, DISK, rng.choice((HOLE, HOLE, SPARE))))
        first += many + rng.randrange(5, 20)


def _exchange(plan: Plan, rng: random.Random) -> None:
    """The log has moved; then its former disk, which also bears an id, appears in its new place."""
    plan.places = [None, SPARE]
    for role in plan.roles:
        if role.kind in {"writer", "fencer"}:
            role.ops += 6
            role.unmounts = [(rng.randrange(60, 500), 600, SPARE, DISK)]


def draw_unseen_clones(plan: Plan, rng: random.Random) -> None:
    """The keepers of the parent do not see its clones."""
    plan.is_story = True
    _calm(plan, rng)
    clones = [
        f"s3://{role.kind}{number}-{index}"
        for number, role in enumerate(plan.roles)
        for index in range(3)
        if role.kind == "cloner"
    ]
    for role in plan.roles:
        if role.kind == "collector":
            role.ops += 6
        if role.kind in {"collector", "compactor"}:
            for uri in clones:
                view = rng.choice((HOLE, HOLE, AWAY, rng.choice(clones)))
                if view != uri and rng.random() < 0.8:
                    role.unmounts.append((rng.randrange(200), ALWAYS, uri, view))


def _calm(plan: Plan, rng: random.Random) -> None:
    """No request lands after its sender has seen another disk; and half of the histories have no
    other faults."""
    if rng.random() < 0.5:
        plan.faults = Faults().record()
    plan.faults |= {"late": 0.0, "orphan": 0.0}


def make_with_strangers(run: Run, actor: Actor) -> None:
    """The table, and another one with the same shard."""
    write_record(run, actor)
    other = open_store(OTHER, env=actor.env)
    TableRecords(other).create(structs.replace(record_of(run), wal_uri=None, wal_folder=None))
    create_shards(other, other, actor.env, Unsharded(), [Route(SHARD, None, 0)])


def stranger(run: Run, actor: Actor, role: Role) -> None:
    """Names a table's place as WAL store; it must be refused, and stay untouched. Or makes a clone
    with its parent's WAL store, where it has a folder of its own."""
    rng = random.Random(f"stranger/{run.plan.seed}/{actor.name}")
    for number in range(min(role.ops, 4)):
        choice = rng.choice((OTHER, DISK))
        run.note(actor, f"names {choice}")
        try:
            if choice == DISK:
                uri = f"s3://{actor.name.rstrip(chr(39))}-{number}"
                open_table(TABLE, env=actor.env).clone(uri, None, DISK)
                run.judge.counts["clones with the store of their parent"] += 1
            else:
                table = open_table(TABLE, wal_uri=choice, env=actor.env)
                table.shards()[0].writer(WriterConfig()).close()
                raise Violation("S", f"{choice} is another table's, and was taken (S-8)")
        except WeirError as error:
            run.note(actor, f"refused: {type(error).__name__}")
            run.judge.failed(SHARD, error, None, 0)
        if (actor.name, SHARD) in run.judge.claims:
            raise Violation("S", f"the shard was claimed for {choice}, which is refused (S-8)")
        actor.env.clock.sleep(0.2)


def _disk_of(actor: Actor) -> str | None:
    """The disk that the log is on, as its manifest says."""
    log = open_table(TABLE, env=actor.env).core.log(SHARD)
    return log.place().uri


def final_of_unmounts(run: Run, actor: Actor) -> None:
    """With all disks mounted no row is missing. Then the disk is lost with nothing in it (S-7)."""
    uri = _disk_of(actor)
    if uri is not None:
        shelf, _ = split_folder(run.judge.truth(SHARD).places[-1][1])
        run.world.mounts["final", uri] = shelf
    core, passed = _passed_checkpoint(run, actor)
    final(run, actor)
    uri = _disk_of(actor)
    if uri is None:
        return
    for view in (AWAY, HOLE):
        run.world.mounts["final", uri] = view
        run.note(actor, f"the disk is lost: {view}")
        check_final_view(run, actor)
        table = open_table(TABLE, env=actor.env)
        made = create(table.core, "durable")
        pin = made.pin(SHARD)
        if pin is None or pin.wal_through < run.judge.truth(SHARD).acked:
            raise Violation("K", f"{pin} does not hold all that was acknowledged")
        table.stats()
        _read_without_its_disk(run, core, passed)
    run.judge.pins.pop(passed.id, None)
    delete(core, passed)
    run.world.mounts["final", uri] = f"hole://new-{uri[1:]}"
    final(run, actor)


def _passed_checkpoint(run: Run, actor: Actor) -> tuple[Core, Checkpoint]:
    """A checkpoint of rows in the log that the table itself no longer needs, and a handle that has
    seen the log but not read it."""
    config = WriterConfig(fence_ttl=run.plan.fence_ttl)
    session = Session(run, actor, Role("final", sessions=1, ops=0), run.next_session())
    writer = open_shard(run, actor, config)
    run.judge.opened(SHARD, writer.epoch)
    put, data = session.make()
    run.judge.acked(SHARD, put, writer.put(data).position)
    core = open_table(TABLE, env=actor.env).core
    made = create(core, "durable")
    for pin in made.shards:
        run.judge.pins[made.id] = (pin.shard, pin.manifest_version, pin.wal_through)
    writer.close()
    actor.env.clock.sleep(3 * run.plan.fence_ttl)
    collector(run, actor, Role("collector", sessions=1, ops=1))
    return core, made


def _read_without_its_disk(run: Run, core: Core, checkpoint: Checkpoint) -> None:
    try:
        Scan(core, pinned=checkpoint).to_table()
    except SnapshotExpired as error:
        raise Violation("T", "without its disk a checkpoint is called collected") from error
    except WeirError as error:
        run.judge.failed(SHARD, error, None, 0)


STRANGERS = {"stranger": stranger}
