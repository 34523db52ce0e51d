"""Clocks in a simulated history: one for each store, and machines that stand still (F-18, G-7b).

A writer is paused with its machine while other processes take over, flush and collect. When it
resumes, its own clocks say that no time has passed. The judge demands what it always demands: no
acknowledgement for a batch that is not in the log (D). There are three kinds of stores: files,
which date every put; object stores, which do not, but which refuse a request whose own date is far
off; and stores that do neither, where only a broken connection reveals the pause.
"""

from __future__ import annotations

import random

from simulator.scenarios import TABLE, WAL, Plan
from simulator.world import Faults

FAR = (0.0, -1e6, 1e6, -30.0, 30.0)


def draw_clocks(plan: Plan, rng: random.Random) -> None:
    """Mostly put the log on a store of its own, and set every clock differently."""
    plan.is_story, plan.moves, plan.wal_only = True, True, False
    plan.places = [None]
    plan.wal_uri = rng.choice((WAL, WAL, WAL, None))
    plan.fence_ttl = rng.choice((0.1, 1.0, 5.0))
    plan.settings["step_seconds"] = plan.fence_ttl * rng.choice((0.002, 0.005, 0.01, 0.02))
    if rng.random() < 0.5:
        plan.faults = Faults().record()
    kind = rng.choice(("files", "files", "checks dates", "checks none"))
    plan.dated = kind == "files"
    if kind == "checks dates":
        _as_object_stores(plan, rng)
    else:
        plan.clocks = {TABLE: rng.choice(FAR), WAL: rng.choice(FAR)}
    if rng.random() < 0.3:
        # No machine sleeps long, but by the table's clock a new entry of the log is days old.
        plan.wal_uri, plan.dated, plan.skew_max = WAL, True, None
        plan.clocks = {TABLE: 1e6, WAL: 0.0}
        plan.settings["step_seconds"] = plan.fence_ttl * 0.001
    for role in plan.roles:
        if role.kind == "writer":
            role.kills = []
            role.pauses = [_draw_pause(rng) for _ in range(2)]
        elif role.kind == "collector":
            role.ops = 12


def _as_object_stores(plan: Plan, rng: random.Random) -> None:
    """Date no put, but refuse a request whose own date is too far off.

    The retention is then the documented bound: `fence_ttl` plus twice the largest allowed skew.
    """
    plan.skew_max = rng.choice((0.5, 5.0))
    near = (0.0, -plan.skew_max / 4, plan.skew_max / 4)
    plan.clocks = {TABLE: rng.choice(near), WAL: rng.choice(near)}
    plan.fence_retention = plan.fence_ttl + 2 * plan.skew_max
    for role in plan.roles:
        role.wall_offset = rng.choice(near)


def _draw_pause(rng: random.Random) -> list[int]:
    return [rng.randint(2, 4), rng.choice((100, 400, 800)), rng.choice((-1, -1, -1, 30))]
