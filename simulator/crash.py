"""Death at every write: a script runs once to count writes, then dies before and after each one.

After each death another process opens the shard, and may die too. At the end the judge sees the
whole table on a healthy store. What it demands is in `oracles`: every acknowledged row, every batch
whole, no row twice.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from simulator.roles import Session, final
from simulator.scenarios import Outcome, Plan, Role, Run
from simulator.scheduler import Actor
from simulator.truth import Violation
from simulator.world import Faults

Script = Callable[[Run, Actor], None]

SMALL: dict[str, Any] = {"max_memtable_rows": 3, "stats_log_interval": 0}
WAL_ONLY: dict[str, Any] = {**SMALL, "enable_memtable": False}


@dataclass(frozen=True)
class Life:
    """A script, and what runs before and after it."""

    script: Script
    before: Script | None = None
    again: Script | None = None
    """What runs after a death; the script itself if None."""
    setup: Script | None = None
    """Makes the table; not needed by scripts that use its one shard only."""
    final: Script = final
    moves: bool = False


@dataclass(frozen=True)
class Death:
    """One point: the n-th write of the script's process, and perhaps one of the next process."""

    write: int
    when: str
    second: tuple[int, str] | None = None


def live(life: Life, death: Death | None = None, *, keyed: bool = True, seed: int = 0) -> Outcome:
    """One life with that death, recovery, and the judge's verdict."""
    run = _run(life, keyed=keyed, seed=seed)

    def prepare() -> None:
        if life.before is not None:
            _live_as(run, "before", life.before)
        if death is not None:
            run.world.crash_at["script"] = (death.write, death.when)
            if death.second is not None:
                run.world.crash_at["again"] = death.second
        _live_as(run, "script", life.script)
        if death is not None:
            _live_as(run, "again", life.again or life.script)

    return run.execute(life.final, live=prepare)


def _run(life: Life, *, keyed: bool, seed: int) -> Run:
    settings = {"policy": "uniform", "stay": 0.6, "lock_yield": 0.0, "step_seconds": 0.01}
    plan = Plan(
        seed=seed,
        scenario="crash",
        keyed=keyed,
        wal_apart=False,
        settings=settings,
        faults=Faults(orphan=0.0).record(),
        paging=0.0,
        fence_ttl=0.0,
        wal_only=False,
        roles=[],
        moves=life.moves,
        is_story=life.setup is not None,
    )
    return Run(plan, {}, life.setup) if life.setup is not None else Run(plan, {})


def _live_as(run: Run, name: str, script: Script) -> None:
    """Run one process to its end, on its own."""
    actor = run.actor(name, f"{name}/{run.plan.seed}")

    def body() -> None:
        try:
            script(run, actor)
        finally:
            if not actor.dead:
                run.scheduler.kill(actor)

    run.scheduler.spawn(actor, body, name=name)
    run.scheduler.run()


def deaths(life: Life, *, keyed: bool = True) -> list[Death]:
    """Every point of the script: before each write, and after the last.

    After a write the store is as it is before the next one, where more was acknowledged.
    """
    outcome = live(life, keyed=keyed)
    if outcome.failure is not None:
        raise outcome.failure
    writes = outcome.writes["script"]
    if not writes:
        raise Violation("P", "the script writes nothing: no point to die at")
    return [*(Death(n, "before") for n in range(1, writes + 1)), Death(writes, "after")]


def second_deaths(life: Life, first: Death, *, keyed: bool = True) -> Iterator[Death]:
    """Every point of the recovery after `first`."""
    writes = live(life, first, keyed=keyed).writes["again"]
    for number in range(1, writes + 1):
        yield Death(first.write, first.when, (number, "before"))
    if writes:
        yield Death(first.write, first.when, (writes, "after"))


# -- scripts -------------------------------------------------------------------------------------


def session(config: dict[str, Any], ops: str) -> Script:
    """A writer that does `ops`: p(ut), f(lush), w (flush the WAL); closes unless it ends with x."""

    def script(run: Run, actor: Actor) -> None:
        role = Role("script", sessions=1, ops=0, config=config)
        Scripted(run, actor, role, run.next_session()).play(ops)

    return script


class Scripted(Session):
    """A session that follows a script."""

    def play(self, ops: str) -> None:
        """Open and do what `ops` says."""
        self.rng = random.Random(f"script/{self.run.plan.seed}/{self.number}")
        if not self.open():
            return
        assert self.writer is not None, "opened"
        for op in ops:
            if op == "p":
                put, data = self.make()
                self.accepted.append(put)
                self._told(put, self.writer.put(data))
            elif op == "n":
                put, data = self.make()
                self.accepted.append(put)
                self.pending.append((put, self.writer.put(data, wait=False)))
            elif op == "f":
                self.writer.flush()
            elif op == "w":
                self.writer.flush_wal()
            elif op == "x":
                return
        self._close()
        self._settle(closed=True)
