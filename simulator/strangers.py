"""A Lance user: programs that know nothing of weir change the base at any moment (L-7, L-8).

They rewrite files, insert, upsert, update, delete and restore, on keys of the log and on keys of
their own; weir's tidying runs as a process of its own. For L-8 the judge demands that no version of
the base ever has a key or a row twice, and that a stranger's change stays until the log has newer
rows; for L-7, that every generation counts exactly once, whichever program rewrote its files.
"""

from __future__ import annotations

import random
from typing import Final

import pyarrow as pa

from simulator.keepers import ModelRunner
from simulator.model_fragments import FragmentLake
from simulator.roles import KEYS, check_final_view, core_of, final, table_rows
from simulator.scenarios import COLUMNS, SHARD, Plan, Role, Run
from simulator.scheduler import Actor
from simulator.truth import Row, Violation
from weir.errors import CommitConflict, CorruptEntry, StoreError, WeirError
from weir.routing.core import Core
from weir.upkeep.compact.run import compact
from weir.upkeep.compact.tidying import tidy
from weir.upkeep.exclusive import without_compaction

STRANGER: Final = 5_000_000
"""Session numbers from here on are not weir's."""
OWN_KEYS: Final = (100, 101)


def draw_strangers(plan: Plan, rng: random.Random) -> None:
    """Every process opens the table as users do; whether versions are restored is drawn."""
    plan.is_story = True
    plan.edge = {"restores": rng.random() < 0.3}


def to_rows(rows: list[Row], run: Run) -> pa.Table:
    """Rows of the base."""
    columns = [pa.array([row[i] for row in rows], pa.int64()) for i in range(len(COLUMNS))]
    return pa.Table.from_arrays(columns, names=list(COLUMNS)).cast(run.schema.plain)


def stranger(run: Run, actor: Actor, role: Role) -> None:
    """Changes the base with Lance alone."""
    rng = random.Random(f"stranger/{run.plan.seed}/{actor.name}")
    acts = [_compact_files, _change, _change, _change]
    if run.plan.edge.get("restores"):
        acts.append(_restore)
    for _ in range(role.ops):
        try:
            rng.choice(acts)(run, actor, rng, run.fragments(actor))
        except (CommitConflict, StoreError) as error:
            run.note(actor, f"a stranger is told {type(error).__name__}")
        actor.env.clock.sleep(rng.choice((0.02, 0.1, 0.5)))


def _compact_files(run: Run, actor: Actor, _rng: random.Random, lake: FragmentLake) -> None:
    run.note(actor, f"rewrites files: {lake.compact_files()}")
    run.judge.counts["rewrites of files"] += 1


def _change(run: Run, actor: Actor, rng: random.Random, lake: FragmentLake) -> None:
    """An insert, upsert, update or delete."""
    number = STRANGER + run.next_session()
    if run.plan.keyed:
        wanted = rng.sample((*range(KEYS), *OWN_KEYS), rng.randint(1, 3))
        updates = rng.random() < 0.3
        if updates:  # only keys that are there
            have = {row[0] for row in table_rows(lake.open_base().table)}
            wanted = [key for key in wanted if key in have]
        brought = [] if rng.random() < 0.3 else wanted
    else:
        sessions = [row[1] for row in table_rows(lake.open_base().table)]
        wanted = rng.sample(sessions, 1) if sessions and rng.random() < 0.3 else []
        brought = [number] if rng.random() < 0.7 else []
    rows = [(key, number, 0, i, len(brought), False) for i, key in enumerate(brought)]
    # Its own rows too: a commit that collides with its own earlier attempt is retried.
    version = lake.plain_change(actor.env.new_id().hex, [*wanted, number], to_rows(rows, run))
    run.note(actor, f"{wanted} out, {brought} in: {version}")
    run.judge.counts["changes by strangers"] += 1


def _restore(run: Run, actor: Actor, rng: random.Random, lake: FragmentLake) -> None:
    versions = sorted(lake._versions())[-6:]  # noqa: SLF001
    chosen = rng.choice(versions)
    try:
        version = lake.restore(chosen)
    except WeirError as error:
        run.note(actor, f"a stranger cannot restore {chosen}: {type(error).__name__}")
        return
    run.note(actor, f"restores {chosen}: {version}")
    run.judge.counts["restores by strangers"] += 1


def tidier(run: Run, actor: Actor, role: Role) -> None:
    """Runs weir's own tidying, which holds no claim, at any moment."""
    for _ in range(role.ops):
        try:
            run.note(actor, f"tidied, {tidy(core_of(run, actor), rewrite=True)}")
        except WeirError as error:
            run.judge.failed(SHARD, error, None, 0)
        actor.env.clock.sleep(0.1)


def final_of_base(run: Run, actor: Actor) -> None:
    """On a healthy store, complete unfinished work and check the table."""
    actor.env.clock.sleep(3600.0)  # a dead compactor's claim expires
    try:
        _come_next(run, actor)
        _compact(run, actor)
        final(run, actor)
        _compact(run, actor)
    except CorruptEntry as refused:
        if not run.judge.is_taken_back(refused):
            raise
        run.judge.counts["bases taken back, and refused"] += 1
        return
    check_final_view(run, actor)


def _come_next(run: Run, actor: Actor) -> None:
    """Claim with nothing to fold, and check the marks: a later fold would mark earlier ones too.

    A version that a stranger restored from before its mark is only marked by a compaction.
    """
    core = core_of(run, actor)
    with without_compaction(core):
        pass
    if not run.plan.edge.get("restores"):
        _check_marked(core)


def _compact(run: Run, actor: Actor) -> None:
    core = core_of(run, actor)
    compact(core, engine=ModelRunner(), lease=0)
    _check_marked(core)


def _check_marked(core: Core) -> None:
    base = core.lake.open_base()
    assert base.mem_wal is not None, "a table of weir"
    left = {s: n for s, n in base.compacted.items() if n > base.mem_wal.compacted.get(s, 0)}
    if left:
        raise Violation("L", f"generations {left} are in the base, and nobody marks them (L-7)")


LANCE_USERS = {"lance-user": stranger, "tidier": tidier}
