"""Checkpoints and clones during changes of routing and moves of the log, in a simulated history.

A cut belongs to one routing: it holds all rows of the routings before, and of each shard of its own
routing a prefix (K-10). A clone of it can be written to, and rows written to the clone win.
"""

from __future__ import annotations

import random
from typing import Final

from simulator.copies import Copy, check_copy
from simulator.keepers import ModelRunner
from simulator.reshards import final_of_reshards
from simulator.roles import KEYS, table_rows, to_batch
from simulator.scenarios import SHARD, TABLE, WAL, Plan, Role, Run
from simulator.scheduler import Actor
from simulator.steps import watched
from simulator.truth import Violation, fold_rows, index_rows
from simulator.views import lows, viewed_under
from weir.config import WriterConfig
from weir.errors import SealedShard, StoreError, WeirError
from weir.making import open as open_table
from weir.read.scan import Scan
from weir.records.checkpoints import Checkpoint
from weir.routing.writer import TableWriter
from weir.table import Table
from weir.upkeep.checkpoint import create
from weir.upkeep.compact.run import compact
from weir.upkeep.gc.collect import collect

CUTS_MAX: Final = 4
PATIENCE: Final = (0, 0, 20, 300)
PLACES: Final = (None, WAL, f"{WAL}-2")


def draw_story(plan: Plan, _rng: random.Random) -> None:
    """Every process opens the table as users do."""
    plan.is_story = True


def cutter(run: Run, actor: Actor, role: Role) -> None:
    """Makes checkpoints through one handle, reads them, and clones some of them."""
    rng = random.Random(f"cutter/{run.plan.seed}/{actor.name}")
    table: Table | None = None
    for index in range(min(role.ops, CUTS_MAX)):
        try:
            table = table or open_table(TABLE, env=actor.env)
            made = cut(run, actor, rng, table)
            if rng.random() < 0.6:
                copy = copy_of(run, actor, rng, table, made, index)
                _use(run, actor, rng, copy)
        except WeirError as error:
            run.note(actor, f"cutting failed: {type(error).__name__}")
            run.judge.failed(SHARD, error, None, 0)
        actor.env.clock.sleep(rng.choice((0.05, 0.5, 5.0)))


def cut(run: Run, actor: Actor, rng: random.Random, table: Table) -> Checkpoint:
    """Make a checkpoint, and let the judge check it."""
    low = lows(run.judge)
    scope = "durable" if run.plan.wal_only or rng.random() < 0.6 else "all"
    patience = rng.choice(PATIENCE)

    def wait(step: str) -> None:
        """Pause after the pins, so that the routing may change before the rest."""
        known = len(run.judge.routings)
        for _ in range(patience if step == "pinned" else 0):
            if len(run.judge.routings) > known:
                break
            actor.env.clock.sleep(3 * run.scheduler.settings.step_seconds)

    made = create(watched(table.core, "checkpoint", wait), scope)
    run.note(actor, f"cut {scope} of routing {made.routing_version}")
    record = next(r for r in run.judge.routings if r.routing_version == made.routing_version)
    left = {route.shard for route in record.routing} - {pin.shard for pin in made.shards}
    if left:
        raise Violation("K", f"shards of routing {record.routing_version} are not pinned: {left}")
    reader = table if rng.random() < 0.5 else open_table(TABLE, env=actor.env)
    try:
        rows = table_rows(Scan(reader.core, pinned=made).to_table())
    except StoreError as error:
        run.note(actor, f"read at a cut failed: {type(error).__name__}")
        return made
    except WeirError as error:
        raise Violation("K", f"a checkpoint cannot be read: {error}") from error
    run.judge.counts["cuts"] += 1
    viewed_under(run.judge, rows, low, made.routing_version)
    return made


def copy_of(
    run: Run, actor: Actor, rng: random.Random, table: Table, made: Checkpoint, index: int
) -> Copy:
    """Clone the cut; the clone must hold the same rows."""
    uri = f"s3://{actor.name.replace(chr(39), '-')}-{index}"
    clone = table.clone(uri, made.id, rng.choice((None, f"{uri}-wal")))
    run.note(actor, f"cloned the cut to {uri}")
    run.judge.counts["clones"] += 1
    keyed = run.plan.keyed
    found = index_rows(table_rows(Scan(clone.core).to_table()), keyed=keyed)
    held = index_rows(table_rows(Scan(table.core, pinned=made).to_table()), keyed=keyed)
    if found != held:
        raise Violation("K", f"{uri} holds {found}, and the checkpoint {held}")
    copy = run.copies[uri] = Copy(uri, TABLE, state=found)
    return copy


def _use(run: Run, actor: Actor, rng: random.Random, copy: Copy) -> None:
    """Write to the clone, compact and collect it; it must show the rows written last."""
    table = open_table(copy.uri, env=actor.env)
    config = WriterConfig(
        fence_ttl=run.plan.fence_ttl,
        enable_memtable=not run.plan.wal_only,
        stats_log_interval=0,
    )
    try:
        _put(run, rng, copy, table.writer(config))
    except SealedShard as error:
        # No other process uses the clone, and its routing is that of the cut.
        raise Violation("K", f"a clone takes no rows: {error} (K-10)") from error
    run.judge.counts["sessions of a clone"] += 1
    check_copy(run, actor, copy)
    tidy_copy(run, rng, table)
    check_copy(run, actor, copy)


def _put(run: Run, rng: random.Random, copy: Copy, writer: TableWriter) -> None:
    keyed, session, size = run.plan.keyed, run.next_session(), rng.randint(1, 3)
    assert copy.state is not None, "read before"
    with writer:
        for batch in range(rng.randint(1, 4)):
            key = rng.randrange(KEYS) if keyed else session * 1000 + batch
            copy.maybe = [(key, session, batch, i, size, False) for i in range(size)]
            writer.put(to_batch(copy.maybe))
            copy.state = fold_rows(copy.state, copy.maybe, keyed=keyed)
            copy.maybe = []


def tidy_copy(run: Run, rng: random.Random, table: Table) -> None:
    """Compact and collect a clone, or not."""
    if rng.random() < 0.5:
        compact(table.core, engine=ModelRunner(), lease=0)
    if rng.random() < 0.3:
        ttl = run.plan.fence_ttl
        collect(
            table.core,
            min_age=0.0,
            fence_retention=2 * ttl,
            keep_first_entries=bool(ttl),
        )


def mover(run: Run, actor: Actor, role: Role) -> None:
    """Moves the log of the whole table from store to store (S-8)."""
    rng = random.Random(f"mover/{run.plan.seed}/{actor.name}")
    for _ in range(min(role.ops, CUTS_MAX)):
        try:
            move(run, actor, rng.choice(PLACES))
        except WeirError as error:
            run.note(actor, f"moving failed: {type(error).__name__}")
            run.judge.failed(SHARD, error, None, 0)
        actor.env.clock.sleep(rng.choice((0.1, 5.0)))


def move(run: Run, actor: Actor, place: str | None) -> None:
    """One move of the table's log."""
    run.note(actor, f"moves the log to {place or 'the table'}")
    report = open_table(TABLE, env=actor.env).move_wal(place)
    run.note(actor, f"moved {len(report.moved)} logs")
    run.judge.counts["moves of the table"] += 1


def final_of_cuts(run: Run, actor: Actor) -> None:
    """Check that an undisturbed move takes every log along, and that new rows go only there."""
    for copy in run.copies.values():
        check_copy(run, actor, copy)
    actor.env.clock.sleep(3600.0)  # a dead compactor's claim expires
    place = f"{WAL}-3"
    move(run, actor, place)
    before = {shard: truth.tip for shard, truth in run.judge.shards.items()}
    final_of_reshards(run, actor)
    for shard, truth in run.judge.shards.items():
        written = any(entry.rows for p, entry in truth.log.items() if p > before.get(shard, 0))
        if written and not truth.places[-1][1].startswith(f"{place}/"):
            raise Violation("S", f"shard {shard} writes to {truth.places[-1][1]} (S-8)")


CUTTERS = {"cutter": cutter, "mover": mover}
