"""Processes that keep a table tidy, in a simulated history: they delete, so they are watched most."""

from __future__ import annotations

import random

from weir.errors import WeirError
from weir.testing.oracles import Violation
from weir.testing.scenarios import SHARD, Role, Run
from weir.testing.scheduler import Actor
from weir.upkeep.collect import Target, collect


def collector(run: Run, actor: Actor, role: Role) -> None:
    """Collects at no age at all, again and again.

    With `fence_ttl` 0 ownership is proved after every put, and even the first entries of epochs may go at once.
    """
    rng = random.Random(f"collector/{run.plan.seed}/{actor.name}")
    ttl = run.plan.fence_ttl
    for _ in range(role.ops):
        site = run.site(actor)
        target = Target(
            site.store, actor.env, [site], lake=run.lake(actor), fence_ttl=ttl
        )
        try:
            report = collect(
                target,
                min_age=rng.choice((0.0, 0.0, 0.05)) if ttl else 0.0,
                fence_retention=max(0.05, 2 * ttl) if ttl else 0.0,
                keep_first_entries=bool(ttl) or rng.random() < 0.5,
            )
        except WeirError as error:
            run.judge.failed(SHARD, error, None, 0)
            continue
        run.note(actor, f"collected {report.deleted} objects, {len(report.errors)} errors")
        run.judge.counts["collected"] += report.deleted
        for text in report.errors:
            if any(name in text for name in ("RuleBroken", "CorruptEntry", "MissingEntry")):
                raise Violation("T", f"collection of a healthy table: {text}")
        actor.env.clock.sleep(0.1)


def collect_once(run: Run, actor: Actor) -> None:
    """One collection of everything that may go."""
    site = run.site(actor)
    target = Target(site.store, actor.env, [site], lake=run.lake(actor), fence_ttl=0.0)
    report = collect(target, min_age=0.0, fence_retention=0.0, keep_first_entries=False)
    if report.errors:
        raise Violation("T", f"collection of a healthy table: {report.errors}")


KEEPERS = {"collector": collector}
