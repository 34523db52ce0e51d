"""Processes that fork, draw the same names, or are exiting (F-16, F-17).

A forked child has a copy of its parent's handle, and of locks that no thread will release: the
judge demands that every call through it is refused with a clear error, and touches neither store
nor lock; then the child opens a writer of its own. All processes draw the same ids and names, from
the first one on at each start: no file of an SSTable may ever be put over another's, and no process
may mistake another's claim, entry or commit for its own. A process whose main thread has returned
can start no more threads; the judge demands of it the same as of any other: what was accepted is
durable once `close` returns, or an error names it.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pyarrow as pa

from simulator.roles import Session, to_batch
from simulator.scenarios import Plan, Role, Run
from simulator.scheduler import Actor
from simulator.truth import Violation
from simulator.world import Faults
from weir.errors import WeirError, WriterClosed
from weir.shard.writer import ShardWriter

CALLS_OF_A_CHILD = 4


def draw_twins(plan: Plan, rng: random.Random) -> None:
    """Tiny MemTables, so that files are written at once; half of the stores never fail."""
    plan.edge = {"twins": True}
    plan.wal_only = False
    if rng.random() < 0.5:
        plan.faults = Faults().record()
    for role in plan.roles:
        if role.kind in {"forking", "ending", "writer"}:
            role.config["enable_memtable"] = rng.random() < 0.9
            role.config["max_memtable_rows"] = rng.choice((2, 5, 100_000))
            role.config["durable_write"] = rng.random() < 0.5


class ForkingSession(Session):
    """A writer whose process forks now and then."""

    children = 0

    def _op(self) -> None:
        if self.children < 2 and self.rng.random() < 0.2:
            self.children += 1
            self._fork()
        super()._op()

    def _fork(self) -> None:
        run, writer = self.run, self.writer
        assert writer is not None, "opened first"
        name = f"{self.actor.name}-child{self.number}.{self.children}"
        child = run.actor(name, f"child/{run.plan.seed}/{name}")
        child.forks = self.actor.forks + 1
        run.note(self.actor, f"forks {name}")

        def live() -> None:
            try:
                _misuse(run, child, writer)
                Session(run, child, self.role, run.next_session()).live()
            finally:
                if not child.dead:
                    run.scheduler.kill(child)

        run.scheduler.spawn(child, live, name=name)


def _misuse(run: Run, child: Actor, writer: ShardWriter) -> None:
    """Every call through the parent's handle must be refused and change nothing; `close` may return
    without doing anything."""
    rng = random.Random(f"misuse/{run.plan.seed}/{child.name}")
    calls: dict[str, Callable[[], object]] = {
        "put": lambda: writer.put(_strange_rows(run)),
        "put without waiting": lambda: writer.put(_strange_rows(run), wait=False),
        "flush_wal": writer.flush_wal,
        "close": writer.close,
    }
    if writer.config.enable_memtable:
        calls |= {"flush": writer.flush, "scan": lambda: writer.scan().read_all()}
    for _ in range(CALLS_OF_A_CHILD):
        kind = rng.choice(sorted(calls))
        try:
            calls[kind]()
        except WriterClosed as error:
            if "fork" not in str(error):
                raise Violation("T", f"{kind} in a forked child is told: {error}") from error
        except WeirError as error:
            raise Violation("T", f"{kind} in a forked child is told: {error}") from error
        else:
            if kind != "close":
                raise Violation("S", f"{kind} through the handle of the process that forked it")
        run.judge.counts["calls of a forked child"] += 1
        child.env.clock.sleep(0.01)


def _strange_rows(run: Run) -> pa.RecordBatch:
    """Rows that must never get anywhere."""
    number = run.next_session()
    put = run.judge.putting((number, 1), [(0, number, 1, 0, 1, False)])
    put.refused = True
    return to_batch(put.rows)


class EndingSession(Session):
    """A writer whose process begins to exit while it is open."""

    def _op(self) -> None:
        if not self.actor.is_ending and self.rng.random() < 0.25:
            self.actor.is_ending = True
            self.run.note(self.actor, "its main thread returns")
        super()._op()

    def _close(self) -> None:
        if not self.actor.is_ending:
            self.run.note(self.actor, "its main thread returns")
        self.actor.is_ending = True  # as `atexit` calls it
        super()._close()


def forking(run: Run, actor: Actor, role: Role) -> None:
    """Opens, puts, forks, closes, and again."""
    for _ in range(role.sessions):
        ForkingSession(run, actor, role, run.next_session()).live()


def ending(run: Run, actor: Actor, role: Role) -> None:
    """One writer, closed when everything else has ended."""
    role.threads = 1
    EndingSession(run, actor, role, run.next_session()).live()


TWINS = {"ending": ending, "forking": forking}
