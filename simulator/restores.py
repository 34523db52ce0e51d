"""A table that is rolled back under its writers, in a simulated history.

From the moment the base is restored until the restore returns, a view may mix the states before and
after: such views are not judged. After that the log starts from the checkpoint's rows, at the
position of the restore's manifest. A restore that died is run again, with the same result.
"""

from __future__ import annotations

import random
from uuid import UUID

from simulator.roles import final
from simulator.scenarios import SHARD, TABLE, Role, Run
from simulator.scheduler import Actor
from simulator.steps import watched
from simulator.truth import Rollback, State, Violation
from weir.errors import WeirError
from weir.making import open as open_table
from weir.records.checkpoints import Checkpoint
from weir.records.lineage import read_lineage
from weir.table import Table
from weir.upkeep.checkpoint import create
from weir.upkeep.restore import RestoreReport, restore

MOMENTS_MAX = 4


def restorer(run: Run, actor: Actor, role: Role) -> None:
    """Makes checkpoints, and restores one of them now and then."""
    rng = random.Random(f"restorer/{run.plan.seed}/{actor.name}")
    for _ in range(role.ops):
        try:
            table = open_table(TABLE, env=actor.env)
            begun = unfinished(table)
            if begun is not None:
                roll_back(run, actor, table, begun)
            elif run.moments and rng.random() < 0.4:
                roll_back(run, actor, table, rng.choice(sorted(run.moments, key=str)))
            elif len(run.moments) < MOMENTS_MAX:
                keep(run, actor, rng, table)
        except WeirError as error:
            run.note(actor, f"restoring failed: {type(error).__name__}")
            run.judge.failed(SHARD, error, None, 0)
        actor.env.clock.sleep(rng.choice((0.05, 0.5, 5.0)))


def unfinished(table: Table) -> UUID | None:
    """The checkpoint of a restore that was begun and did not end."""
    lineage = read_lineage(table.core.store)
    if lineage is None or lineage.state != "restoring":
        return None
    return None if lineage.restored is None else lineage.restored.checkpoint


def keep(run: Run, actor: Actor, rng: random.Random, table: Table) -> Checkpoint | None:
    """Make a checkpoint, and remember what the table held then; None if that is unknown."""
    judge = run.judge
    changes = judge.mixtures
    low = judge.truth(SHARD).acked
    made = create(table.core, "durable" if run.plan.wal_only or rng.random() < 0.6 else "all")
    pin = made.pin(SHARD)
    if pin is None or judge.is_mixed or judge.mixtures != changes:
        return None  # perhaps a mixture
    if pin.wal_through < low:
        raise Violation("K", f"T is {pin.wal_through}, and {low} was acknowledged (K-2)")
    if pin.wal_through > len(judge.truth(SHARD).folded):
        return None  # an entry that is under way: the judge has not seen it yet
    run.moments[made.id] = judge.truth(SHARD).state(pin.wal_through)
    judge.pins[made.id] = (SHARD, pin.manifest_version, pin.wal_through)
    run.note(actor, f"keeps the moment {pin.wal_through}")
    return made


def roll_back(run: Run, actor: Actor, table: Table, checkpoint: UUID) -> RestoreReport:
    """Restore, and tell the judge when views may mix two states."""
    judge, truth = run.judge, run.judge.truth(SHARD)
    state: State = run.moments[checkpoint]

    def begins(step: str) -> None:
        if step == "announced":
            judge.mix()
            judge.rollback[actor.name] = Rollback(SHARD, state)

    run.note(actor, "restores")
    try:
        report = restore(watched(table.core, "restore", begins), checkpoint)
    except WeirError:
        if actor.name in judge.rollback:
            judge.rollback[actor.name].is_running = False
        raise
    done = judge.rollback.pop(actor.name)
    if SHARD in report.shards:
        if not done.done:
            raise Violation("K", "a restore returned without its manifest")
        truth.acked = max(truth.acked, report.shards[SHARD][1])
    judge.unmix()
    judge.counts["restores"] += 1
    run.note(actor, f"restored, {report.shards.get(SHARD)} is discarded")
    return report


def final_of_restores(run: Run, actor: Actor) -> None:
    """On a healthy store, finish a restore that was begun, then check the table."""
    actor.env.clock.sleep(3600.0)  # a dead compactor's claim expires
    table = open_table(TABLE, env=actor.env)
    begun = unfinished(table)
    if begun is not None:
        roll_back(run, actor, table, begun)
    final(run, actor)


RESTORERS = {"restorer": restorer}
