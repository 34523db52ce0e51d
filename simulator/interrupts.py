"""Clients that survive an interrupt (Ctrl-C, a framework's timeout) at any store call or wait.

The judge checks F-16: an interrupt ends the call it hits and nothing else. An accepted put is
durable once the writer is closed, or an error names it; no put of another caller fails; a process
that was interrupted while it opened, compacted or collected continues, and finds the table whole.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from simulator.keepers import KEEPERS
from simulator.roles import ROLES, Session, T
from simulator.scenarios import Plan, Role, Run
from simulator.scheduler import Actor
from simulator.strikes import Stopped
from simulator.truth import Put, Violation
from simulator.world import Faults
from weir.errors import Backpressure, FencedError, SnapshotExpired, WeirError, WriterClosed
from weir.shard.ack import Ack

CLOSES_MAX = 16


def draw_interrupts(plan: Plan, rng: random.Random) -> None:
    """How often, and whether waits are interrupted too; half of the stores never fail, so that
    any failure there is caused by the interrupt."""
    plan.edge = {"strikes": rng.choice((0.03, 0.1, 0.3)), "waits": rng.random() < 0.5}
    if rng.random() < 0.5:
        plan.faults = Faults().record()


class InterruptedSession(Session):
    """A writer whose callers are interrupted now and then."""

    closing = False
    is_spared = False
    """Interrupted often enough: the last close is not interrupted."""

    def call(self, act: Callable[[], T]) -> T:
        """One call, interrupted at most once."""
        strikes = self.run.world.strikes
        assert strikes is not None, "drawn with the plan"
        if self.is_spared:
            return act()
        with strikes.aimed():
            return act()

    def open(self) -> bool:
        """Open; if interrupted, the process continues and opens again later."""
        try:
            return super().open()
        except BaseException as error:  # noqa: BLE001  judged in `go_on`
            self._interrupted(error, "open")
            return False

    def _op(self) -> None:
        try:
            super()._op()
        except BaseException as error:  # noqa: BLE001  judged in `go_on`
            self._interrupted(error, "call")

    def _put(self) -> None:
        made = len(self.made)
        try:
            super()._put()
        except BaseException as error:  # noqa: BLE001  judged in `go_on`
            put = self.made[made] if len(self.made) > made else None
            self._interrupted(error, f"put of {put.id if put else 'nothing'}")
            notes = getattr(error, "__notes__", ())
            if put is not None and put not in self.accepted and any("goes on" in n for n in notes):
                self.accepted.append(put)  # and `close` answers for it

    def _watch(self, ack: Ack) -> None:
        """A callback may fail in any thread that runs it, and must affect no other caller."""
        if self.rng.random() < 0.3:
            kind = self.rng.choice((ValueError, Stopped))

            def fail(_: Ack) -> None:
                raise kind("a callback failed")

            ack.add_done_callback(fail)

    def _close(self) -> None:
        self.closing = True
        for _ in range(CLOSES_MAX):
            try:
                super()._close()
            except BaseException as error:  # noqa: BLE001  judged in `go_on`
                self._interrupted(error, "close")
                if isinstance(error.__context__, WeirError):  # interrupted while it was raised
                    self._hear(error.__context__, None)
            else:
                return
        self.is_spared = True
        super()._close()

    def _settle(self, *, closed: bool) -> None:
        """Close again, as an interrupted put's note says: it may have waited during the close."""
        if closed and self.writer is not None:
            try:
                self.writer.close()
            except WeirError as error:
                self._hear(error, None)
        super()._settle(closed=closed)

    def _failed(self, error: WeirError, put: Put | None) -> None:
        super()._failed(error, put)
        blameless = isinstance(error, FencedError | Backpressure | SnapshotExpired)
        if isinstance(error, WriterClosed) and error.__cause__ is None:
            blameless = self.closing
        quiet = not any(rate for kind, rate in self.run.plan.faults.items() if kind != "orphan")
        if quiet and not blameless:
            raise Violation(
                "T", f"an interrupt of one call made another fail: {type(error).__name__}: {error}"
            ) from error

    def _interrupted(self, error: BaseException, what: str) -> None:
        go_on(self.run, self.actor, error, what)


def go_on(run: Run, actor: Actor, error: BaseException, what: str) -> None:
    """Swallow an interrupt of this run; raise anything else."""
    strikes = run.world.strikes
    assert strikes is not None, "drawn with the plan"
    if not strikes.is_ours(error):
        raise error
    run.note(actor, f"{what}: {type(error).__name__}, and goes on")
    run.judge.counts["interrupted"] += 1


def interrupted(run: Run, actor: Actor, role: Role) -> None:
    """Opens, puts, flushes, reads and closes, is interrupted, and continues."""
    for _ in range(role.sessions):
        InterruptedSession(run, actor, role, run.next_session()).live()


def interrupted_keeper(run: Run, actor: Actor, role: Role) -> None:
    """Compacts, collects, checkpoints and reads, is interrupted, and continues."""
    rng = random.Random(f"interrupted/{run.plan.seed}/{actor.name}")
    bodies = {**KEEPERS, "reader": ROLES["reader"]}
    for _ in range(role.sessions + 2):
        kind = rng.choice(sorted(bodies))
        assert run.world.strikes is not None, "drawn with the plan"
        if kind == "compactor":
            run.judge.forget_claims(actor)  # it publishes in the epochs it finds
        try:
            with run.world.strikes.aimed():
                bodies[kind](run, actor, replace(role, ops=rng.randint(1, 3)))
        except BaseException as error:  # noqa: BLE001  judged in `go_on`
            go_on(run, actor, error, kind)


INTERRUPTED = {"interrupted": interrupted, "interrupted-keeper": interrupted_keeper}
