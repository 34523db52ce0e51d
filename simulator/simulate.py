"""Draws plans, runs them, shrinks those that fail."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable

from simulator.appenders import (
    APPENDERS,
    draw_appenders,
    final_of_appenders,
    make_per_writer,
)
from simulator.clocks import draw_clocks
from simulator.copies import CLONERS, final_of_clones
from simulator.cuts import CUTTERS, draw_story, final_of_cuts
from simulator.decisions import DECIDERS, draw_decisions, make_decided
from simulator.feeds import FEEDS, draw_feeds, final_of_feeds
from simulator.interrupts import INTERRUPTED, draw_interrupts
from simulator.keepers import KEEPERS
from simulator.limits import LIMITED, draw_limits, make_limited
from simulator.native import MODES, draw_modes
from simulator.natives import NATIVES
from simulator.operators import OPERATORS, final_of_operators
from simulator.own_reads import OWN_READERS, draw_own_reads
from simulator.replacers import REPLACERS, draw_loads, make_table
from simulator.reshards import RESHARDERS, final_of_reshards, make_sharded
from simulator.restores import RESTORERS, final_of_restores
from simulator.roles import ROLES, final, write_record
from simulator.scenarios import (
    Outcome,
    Plan,
    Run,
    draw_faults,
    draw_role,
    draw_settings,
)
from simulator.strangers import LANCE_USERS, draw_strangers, final_of_base
from simulator.streams import STREAMS
from simulator.tokens import FEEDERS, draw_tokens, final_of_tokens
from simulator.twins import TWINS, draw_twins
from simulator.unmounts import (
    STRANGERS,
    draw_unmounts,
    draw_unseen_clones,
    final_of_unmounts,
    make_with_strangers,
)

SCENARIOS: dict[str, tuple[str, ...]] = {
    "stream": ("streamer", "streamer", "writer", "compactor", "collector", "reader"),
    "writers": ("writer", "writer", "writer", "reader"),
    "compaction": ("writer", "writer", "compactor", "compactor", "collector", "reader", "reader"),
    "checkpoints": ("writer", "checkpointer", "checkpointer", "compactor", "collector", "writer"),
    "fencing": ("writer", "fencer", "fencer", "reader"),
    "collection": ("writer", "writer", "fencer", "collector", "collector", "reader"),
}
STORIES: dict[str, tuple[str, ...]] = {
    "clones": ("writer", "writer", "cloner", "cloner", "compactor", "collector", "reader"),
    "reshards": (
        "table-writer",
        "table-writer",
        "resharder",
        "resharder",
        "compactor",
        "collector",
        "table-reader",
    ),
    "restores": ("writer", "writer", "restorer", "restorer", "compactor", "collector", "reader"),
    "moves": ("writer", "fencer", "writer", "checkpointer", "compactor", "collector", "reader"),
}
"""Scenarios that change where or what the table is; one seed in three draws one of them."""
STORY_CHANCE = 1 / 3
EDGES: dict[str, tuple[str, ...]] = {
    "appenders": (
        "appender",
        "appender",
        "appender",
        "application",
        "application",
        "compactor",
        "compactor",
        "collector",
        "append-reader",
    ),
    "clocks": ("writer", "fencer", "fencer", "collector", "collector", "reader"),
    "cuts": (
        "table-writer",
        "table-writer",
        "resharder",
        "mover",
        "cutter",
        "cutter",
        "compactor",
        "collector",
        "table-reader",
    ),
    "decisions": ("decider", "decider", "decider", "compactor", "collector", "reader"),
    "feeds": (
        "table-writer",
        "table-writer",
        "consumer",
        "consumer",
        "tailer",
        "spark-consumer",
        "spark-consumer",
        "mover",
        "resharder",
        "compactor",
        "collector",
        "collector",
    ),
    "interrupts": ("interrupted", "interrupted", "interrupted-keeper", "reader", "collector"),
    "limits": (
        "padded",
        "padded",
        "thrifty-reader",
        "thrifty-reader",
        "thrifty-compactor",
        "thrifty-collector",
    ),
    "own-reads": ("own-reader", "own-reader", "compactor", "collector", "reader"),
    "operators": (
        "writer",
        "operator",
        "operator",
        "feeder",
        "native",
        "compactor",
        "collector",
        "reader",
    ),
    "tokens": (
        "feeder",
        "feeder",
        "resharder",
        "native",
        "native",
        "mover",
        "token-cutter",
        "compactor",
        "collector",
        "table-reader",
    ),
    "twins": ("forking", "forking", "ending", "ending", "compactor", "collector", "reader"),
    "unmounts": (
        "writer",
        "writer",
        "fencer",
        "checkpointer",
        "compactor",
        "collector",
        "reader",
        "reader",
        "stranger",
    ),
    "unseen clones": ("writer", "cloner", "cloner", "compactor", "collector", "collector"),
    "loads": (
        "writer",
        "writer",
        "replacer",
        "replacer",
        "replacer",
        "tidier",
        "compactor",
        "checkpointer",
        "collector",
        "reader",
    ),
    "modes": ("writer", "writer", "mode-native", "mode-native", "compactor", "compactor", "reader"),
    "strangers": (
        "writer",
        "writer",
        "lance-user",
        "lance-user",
        "tidier",
        "compactor",
        "compactor",
        "checkpointer",
        "collector",
        "reader",
    ),
}
"""What happens around the tables: to processes, clocks, disks. Drawn from a child of the seed of
their own, so that adding or removing a scenario leaves the other histories unchanged."""
EDGE_CHANCE = 1 / 3
ALL = SCENARIOS | STORIES | EDGES
EDGE_ROLES = {
    **APPENDERS,
    **INTERRUPTED,
    **LIMITED,
    **OWN_READERS,
    **OPERATORS,
    **CUTTERS,
    **DECIDERS,
    **FEEDERS,
    **NATIVES,
    **MODES,
    **LANCE_USERS,
    **REPLACERS,
    **FEEDS,
    **STRANGERS,
    **TWINS,
}
ADJUST: dict[str, Callable[[Plan, random.Random], None]] = {
    "appenders": draw_appenders,
    "clocks": draw_clocks,
    "cuts": draw_story,
    "decisions": draw_decisions,
    "feeds": draw_feeds,
    "interrupts": draw_interrupts,
    "limits": draw_limits,
    "loads": draw_loads,
    "modes": draw_modes,
    "own-reads": draw_own_reads,
    "operators": draw_story,
    "strangers": draw_strangers,
    "tokens": draw_tokens,
    "twins": draw_twins,
    "unmounts": draw_unmounts,
    "unseen clones": draw_unseen_clones,
}
"""How a scenario extends or changes its plan."""
MEMTABLE_ONLY = frozenset({"writers", "fencing", "collection"})
SETUPS = {
    "appenders": make_per_writer,
    "cuts": make_sharded,
    "decisions": make_decided,
    "limits": make_limited,
    "feeds": make_sharded,
    "loads": make_table,
    "reshards": make_sharded,
    "tokens": make_sharded,
    "unmounts": make_with_strangers,
}
FINALS = {
    "appenders": final_of_appenders,
    "clones": final_of_clones,
    "cuts": final_of_cuts,
    "feeds": final_of_feeds,
    "loads": final_of_base,
    "operators": final_of_operators,
    "reshards": final_of_reshards,
    "restores": final_of_restores,
    "strangers": final_of_base,
    "tokens": final_of_tokens,
    "unmounts": final_of_unmounts,
    "unseen clones": final_of_clones,
}


def draw_plan(seed: int, scenario: str | None = None) -> Plan:
    """The plan of a seed; every choice has its own child of the seed."""
    rng = random.Random(f"plan/{seed}")
    story = random.Random(f"story/{seed}")
    name = rng.choice(sorted(SCENARIOS))
    if story.random() < STORY_CHANCE:
        name = story.choice(sorted(STORIES))
    edge = random.Random(f"edge/{seed}")
    if edge.random() < EDGE_CHANCE:
        name = edge.choice(sorted(EDGES))
    name = scenario or name
    kinds = ALL[name]
    roles = [draw_role(random.Random(f"role/{seed}/{i}"), kind) for i, kind in enumerate(kinds)]
    kept = [role for role in roles if rng.random() < 0.8] or roles[:1]
    plan = Plan(
        seed=seed,
        scenario=name,
        keyed=rng.random() < 0.6,
        wal_apart=rng.random() < 0.0,
        settings=draw_settings(random.Random(f"settings/{seed}")),
        faults=draw_faults(random.Random(f"fault rates/{seed}")),
        paging=rng.choice((0.0, 0.0, 0.3)),
        fence_ttl=rng.choice((0.0, 0.0, 0.1, 1.0, 60.0)),
        wal_only=name not in MEMTABLE_ONLY and rng.random() < 0.3,
        roles=kept,
        moves=name == "moves",
        is_story=name in STORIES,
    )
    if name in ADJUST:
        ADJUST[name](plan, random.Random(f"adjust/{seed}"))
    return plan


def simulate(plan: Plan) -> Outcome:
    """Run one plan."""
    roles = {
        **ROLES,
        **KEEPERS,
        **STREAMS,
        **CLONERS,
        **RESHARDERS,
        **RESTORERS,
        **EDGE_ROLES,
    }
    setup = SETUPS.get(plan.scenario, write_record)
    return Run(plan, roles, setup).execute(FINALS.get(plan.scenario, final))


def shrink(plan: Plan, letter: str, *, budget: int = 200) -> Plan:
    """A smaller plan that breaks the same promise: fewer processes, faults, kills, operations."""
    best = plan
    progress = True
    while progress and budget > 0:
        progress = False
        for smaller in _smaller(best):
            budget -= 1
            if budget <= 0:
                break
            if simulate(smaller).letter == letter:
                best, progress = smaller, True
                break
    return best


def _smaller(plan: Plan) -> list[Plan]:
    found: list[Plan] = []

    def variant() -> Plan:
        made = copy.deepcopy(plan)
        found.append(made)
        return made

    for index in range(len(plan.roles)):
        if len(plan.roles) > 1:
            del variant().roles[index]
    for kind, rate in plan.faults.items():
        if rate and kind != "orphan":
            variant().faults[kind] = 0.0
    if plan.paging:
        variant().paging = 0.0
    if plan.wal_apart:
        variant().wal_apart = False
    for index, role in enumerate(plan.roles):
        for mishaps in ("kills", "pauses", "unmounts", "blinks"):
            if getattr(role, mishaps):
                getattr(variant().roles[index], mishaps).pop()
        if role.sessions > 1:
            variant().roles[index].sessions -= 1
        if role.threads > 1:
            variant().roles[index].threads -= 1
        if role.ops > 1:
            variant().roles[index].ops = role.ops // 2
            variant().roles[index].ops -= 1
    return found
