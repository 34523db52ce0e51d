"""A replacer: loads straight into the base, bypassing the log, that die at any write (L-7, L-9).

`weir.upkeep.loads` runs unchanged, as `bulk_load` and Spark's overwrite run it on their driver;
only the files are the model's. The judge demands that a load is there as a whole or not at all;
that it is newer than everything that was in the log when it was requested, however it was
interrupted; that nothing it replaced comes back; and that a caller may retry after "nothing was
loaded".
"""

from __future__ import annotations

import random
from typing import Final

from simulator.effects import Load
from simulator.keepers import ModelRunner
from simulator.roles import KEYS, core_of, write_record
from simulator.scenarios import SHARD, Plan, Role, Run
from simulator.scheduler import Actor
from simulator.strangers import OWN_KEYS, to_rows
from simulator.truth import Row, index_rows
from weir.errors import CommitConflict, WeirError
from weir.format.keys import pk_values
from weir.format.sharding import Unsharded
from weir.lake.api import Base
from weir.lake.base import fold
from weir.making import create_shards
from weir.records.table import Route
from weir.upkeep.compact.tasks import hide_keys
from weir.upkeep.loads import PreparedLoad, load

LOADER: Final = 6_000_000
"""Session numbers from here on are loads."""
LOADS_MAX: Final = 4
WRITES_MAX: Final = 30
"""About as many writes as a load makes, a fold of older rows included."""
DEATHS: Final = 0.6
LATE_DEATHS: Final = 0.3
"""Chance that a load dies after its files are written: at its plan, commit, mark or end."""
LAST_WRITES: Final = 5


def draw_loads(plan: Plan, _rng: random.Random) -> None:
    """Every process opens the table as users do."""
    plan.is_story = True


def make_table(run: Run, actor: Actor) -> None:
    """Make the table with its shard: a load reads the manifest of every shard."""
    store = run.store(actor)
    create_shards(store, store, actor.env, Unsharded(), [Route(SHARD, None, 0)])
    write_record(run, actor)


def replacer(run: Run, actor: Actor, role: Role) -> None:
    """Loads, again and again; more often than not it dies before or after one of its writes."""
    rng = random.Random(f"replacer/{run.plan.seed}/{actor.name}")
    if rng.random() < DEATHS:
        death = (rng.randint(1, WRITES_MAX), rng.choice(("before", "after")))
        run.world.crash_at[actor.name] = death
    for _ in range(min(role.ops, LOADS_MAX)):
        _load(run, actor, rng)
        actor.env.clock.sleep(rng.choice((0.02, 0.5, 20.0)))


def _load(run: Run, actor: Actor, rng: random.Random) -> None:
    assert run.judge.base is not None, "the base is watched"
    core, job = core_of(run, actor), actor.env.new_id().hex
    number, replaces = LOADER + run.next_session(), rng.random() < 0.5
    keys = rng.sample((*range(KEYS), *OWN_KEYS), rng.randint(0 if replaces else 1, 4))
    if not run.plan.keyed:
        keys = [number] * len(keys)
    rows: list[Row] = [(key, number, 0, i, len(keys), False) for i, key in enumerate(keys)]
    state = index_rows(rows, keyed=run.plan.keyed)
    run.judge.base.loads[job] = Load(run.scheduler.step, state, replaces)
    table = to_rows(rows, run)

    def write(base: Base) -> PreparedLoad:
        parts = [fold.write_rows(base, table)]
        actor.env.clock.sleep(rng.choice((0.0, 0.05, 400.0)))
        fragments = [number for number, _ in base.fragments()]
        names = base.schema.primary_key
        if names and fragments and not replaces:
            task = {"rows": len(rows), "keys_max": len(rows), "fragments": fragments}
            parts.append(hide_keys(base, task, lambda: [pk_values(table, names)]))
        if rng.random() < LATE_DEATHS:
            at = run.world.writes[actor.name] + rng.randint(1, LAST_WRITES)
            run.world.crash_at[actor.name] = (at, rng.choice(("before", "after")))
        return PreparedLoad(fold.combine(parts), len(rows))

    kind = "replaces everything by" if replaces else "loads"
    run.note(actor, f"{kind} {keys}")
    try:
        version, _ = load(core, write, job_id=job, replaces=replaces, engine=ModelRunner())
    except CommitConflict as error:
        run.note(actor, f"a load is refused: {error}")
        run.judge.counts["loads refused"] += 1
        run.judge.base.told(job, None)
    except WeirError as error:
        run.note(actor, f"a load failed: {type(error).__name__}")
        run.judge.failed(SHARD, error, None, 0)
    else:
        run.note(actor, f"loaded: base version {version}")
        run.judge.counts["loads that replace" if replaces else "loads"] += 1
        run.judge.base.told(job, version)


REPLACERS = {"replacer": replacer}
