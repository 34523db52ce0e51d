"""A seeded scheduler: real threads, one baton, virtual time.

Exactly one thread runs. At a store call, a contended lock, a wait or a sleep it hands the baton to
the thread that this seed's policy picks. A waiting thread is not runnable. If no thread is
runnable, the clock jumps to the next sleeper; if none sleeps either, it is a deadlock, reported
with all stacks.

An actor stands for a process: its clocks, its randomness, its threads. Killing it raises `Killed`
(not an `Exception`) in each of its threads at the next point where they could be switched; its
stores answer nothing afterwards.
"""

from __future__ import annotations

import random
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from weir.env import Env

Policy = Literal["uniform", "pct", "stall"]
POLICIES: tuple[Policy, ...] = ("uniform", "pct", "stall")


class Killed(BaseException):
    """The process died here. Not an `Exception`, so that no handler of the product catches it."""


class Stuck(AssertionError):
    """No task can run, or the run takes too many steps (P)."""


@dataclass
class Actor:
    """One simulated process."""

    name: str
    env: Env
    boot_offset: float = 0.0
    wall_offset: float = 0.0
    dead: bool = False
    paused_at: float | None = None
    """Since when its machine has stood still, and its clocks too; None: it runs."""
    boot_lost: float = 0.0
    """Seconds for which it stood still."""
    wall_lost: float = 0.0
    """The same, until the wall clock is corrected."""
    forks: int = 0
    """How many forks lie between it and the original process."""
    is_ending: bool = False
    """Its main thread has returned: no new thread starts, and running ones continue."""
    is_torn: bool = False
    """Its connections broke: the next write is never answered, unless the store dates puts."""

    def resume(self, now: float) -> None:
        """Run the machine again; it does not know for how long it stood still."""
        if self.paused_at is not None:
            self.boot_lost += now - self.paused_at
            self.wall_lost += now - self.paused_at
            self.paused_at = None

    def set_right(self) -> None:
        """The machine's wall clock is corrected."""
        self.wall_lost = 0.0


@dataclass
class Settings:
    """How a run is scheduled; drawn from the seed."""

    policy: Policy = "uniform"
    stay: float = 0.3
    """Chance to keep the baton at a yield."""
    lock_yield: float = 0.1
    """Chance that taking a free lock is a switching point too."""
    step_seconds: float = 0.01
    change_points: int = 3
    stall_chance: float = 0.02
    steps_max: int = 60_000


class _Worker:
    """A parked thread that runs one task after another; starting threads is expensive."""

    idle: list[_Worker] = []  # noqa: RUF012  one pool per process, on purpose

    def __init__(self) -> None:
        self.gate = threading.Lock()
        self.gate.acquire()
        self.run: Callable[[], None] | None = None
        self.thread = threading.Thread(target=self._loop, name="sim-worker", daemon=True)
        self.thread.start()

    def _loop(self) -> None:
        while True:
            self.gate.acquire()
            run, self.run = self.run, None
            assert run is not None, "a worker was woken without work"
            run()
            del run  # its objects are not held until the next task


class Task:
    """One simulated thread."""

    __slots__ = (
        "actor",
        "done",
        "error",
        "frozen_until",
        "index",
        "name",
        "priority",
        "ready",
        "run",
        "waiters",
        "wake_at",
        "why",
        "woken",
        "worker",
    )

    def __init__(self, index: int, name: str, actor: Actor, run: Callable[[], None]) -> None:
        self.index = index
        self.name = name
        self.actor = actor
        self.run = run
        self.worker = _Worker.idle.pop() if _Worker.idle else _Worker()
        self.ready = True
        self.wake_at: float | None = None
        self.woken = False
        self.why = "new"
        self.done = False
        self.error: BaseException | None = None
        self.priority = 0.0
        self.frozen_until = 0
        self.waiters: list[Task] = []


def _nothing() -> None:
    """The body of a task that is done."""


class Scheduler:
    """Runs tasks one at a time until all are done."""

    def __init__(self, seed: int, settings: Settings) -> None:
        self.settings = settings
        self.rng = random.Random(f"schedule/{seed}")
        self.now = 1_000_000.0
        self.step = 0
        self.current: Task | None = None
        self.tasks: list[Task] = []
        self.live: list[Task] = []
        self.on_step: list[Callable[[], None]] = []
        self.on_wait: Callable[[Task], None] = lambda _task: None
        """Called by a task whose wait is over; may raise into it."""
        self.notes: list[tuple[int, str, str]] = []
        self._main = threading.Lock()
        self._main.acquire()
        self._failure: BaseException | None = None
        self._points = sorted(self.rng.randrange(1, 600) for _ in range(settings.change_points))

    # -- from outside ----------------------------------------------------------------------------

    def spawn(self, actor: Actor, run: Callable[[], None], *, name: str) -> Task:
        """A new task; it runs when the policy picks it."""
        task = Task(len(self.tasks), name, actor, run)
        task.priority = self.rng.random() + 1.0
        task.worker.run = lambda: self._body(task)
        self.tasks.append(task)
        self.live.append(task)
        return task

    def run(self) -> None:
        """Run until no task is left; raises `Stuck`, or a task's first error except `Killed`."""
        if not self.live:
            return
        self._hand_over(self._pick())
        self._main.acquire()
        self.current = None
        if self._failure is not None:
            raise self._failure

    def kill(self, actor: Actor) -> None:
        """End the actor: each of its threads meets `Killed` where it stands."""
        actor.dead = True
        self.note(actor.name, "killed")
        for task in self.live:
            if task.actor is actor:
                self.wake(task)
                task.frozen_until = 0

    def pause(self, actor: Actor, steps: int) -> None:
        """Let the actor's machine stand still for that many steps."""
        actor.paused_at = self.now
        self.note(actor.name, f"stands still for {steps} steps")
        for task in self.live:
            if task.actor is actor:
                task.frozen_until = max(task.frozen_until, self.step + steps)

    def note(self, who: str, what: str) -> None:
        """Record a line of history."""
        self.notes.append((self.step, who, what))

    # -- called by the running task --------------------------------------------------------------

    def point(self) -> None:
        """A point where another task may run; raises `Killed` if this one's actor is dead."""
        me = self.current
        assert me is not None, "a yield outside of the simulation"
        if me.actor.dead:
            raise Killed(me.name)
        self._tick()
        following = self._pick()
        if following is not me:
            self._switch(me, following)
        if me.actor.dead:
            raise Killed(me.name)

    def block(self, why: str, timeout: float | None = None) -> bool:
        """Wait for `wake`; False after `timeout` seconds."""
        me = self.current
        assert me is not None, "a wait outside of the simulation"
        if me.actor.dead:
            raise Killed(me.name)
        me.ready = False
        me.woken = False
        me.why = why
        me.wake_at = None if timeout is None else self.now + max(0.0, timeout)
        self._tick()
        following = self._pick()
        if following is not me:
            self._switch(me, following)
        if me.actor.dead:
            raise Killed(me.name)
        woken = me.woken
        self.on_wait(me)
        return woken

    def wake(self, task: Task) -> None:
        """Make a blocked task runnable."""
        if not task.ready and not task.done:
            task.ready = True
            task.woken = True
            task.wake_at = None

    # -- inside ----------------------------------------------------------------------------------

    def _tick(self) -> None:
        self.step += 1
        self.now += self.settings.step_seconds
        if self.step > self.settings.steps_max:
            self._stop(Stuck(f"no end after {self.step} steps\n{self.stacks()}"))
        for hook in self.on_step:
            hook()

    def _pick(self) -> Task:
        now = self.now
        choices: list[Task] = []
        frozen: list[Task] = []
        for task in self.live:
            if not task.ready and task.wake_at is not None and task.wake_at <= now:
                task.ready = True
                task.wake_at = None
            if task.ready:
                (frozen if task.frozen_until > self.step else choices).append(task)
        if not choices:
            if frozen:
                choices = frozen
            else:
                return self._jump()
        return self._choose(choices)

    def _choose(self, choices: list[Task]) -> Task:
        settings, rng, me = self.settings, self.rng, self.current
        if settings.policy == "pct":
            if self._points and self.step >= self._points[0]:
                self._points.pop(0)
                if me is not None:
                    me.priority = -self.step
            return max(choices, key=lambda task: task.priority)
        if me in choices and rng.random() < settings.stay:
            return me
        task = choices[rng.randrange(len(choices))] if len(choices) > 1 else choices[0]
        if settings.policy == "stall" and rng.random() < settings.stall_chance:
            task.frozen_until = self.step + rng.choice((5, 20, 60, 150, 600))
            others = [other for other in choices if other is not task]
            if others:
                task = others[rng.randrange(len(others))]
        return task

    def _jump(self) -> Task:
        """No task can run: let time pass until the next sleeper."""
        sleepers = [task for task in self.live if task.wake_at is not None]
        if not sleepers:
            self._stop(Stuck(f"deadlock: every thread waits for another\n{self.stacks()}"))
            return self.live[0]
        task = min(sleepers, key=lambda t: (t.wake_at or 0.0, t.index))
        self.now = max(self.now, task.wake_at or 0.0)
        task.ready = True
        task.wake_at = None
        return task

    def _hand_over(self, task: Task) -> None:
        self.current = task
        task.worker.gate.release()

    def _switch(self, me: Task, following: Task) -> None:
        self._hand_over(following)
        me.worker.gate.acquire()

    def _body(self, task: Task) -> None:
        try:
            if not task.actor.dead:
                task.run()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001  raised again in `run`
            if self._failure is None:
                self._failure = error
        task.done = True
        task.ready = False
        task.run = _nothing
        self.live.remove(task)
        for waiter in task.waiters:
            self.wake(waiter)
        _Worker.idle.append(task.worker)
        if self._failure is not None:
            self.live_dead()
        if not self.live:
            self._main.release()
            return
        self._hand_over(self._pick())

    def live_dead(self) -> None:
        """After a failure, make every remaining task unwind."""
        for task in self.live:
            task.actor.dead = True
            self.wake(task)
            task.frozen_until = 0

    def _stop(self, error: Stuck) -> None:
        if self._failure is None:
            self._failure = error
        self.settings.steps_max = sys.maxsize
        self.live_dead()
        me = self.current
        if me is not None and not me.done:
            raise Killed(me.name)

    def stacks(self) -> str:
        """Where every live task stands."""
        frames = sys._current_frames()  # noqa: SLF001  the documented way to other threads' stacks
        text = []
        for task in self.live:
            text.append(f"--- {task.name} ({task.actor.name}): {task.why}")
            frame = frames.get(task.worker.thread.ident or 0)
            if frame is not None:
                stack = traceback.extract_stack(frame)
                lines = [
                    s for s in stack if "/weir/" in s.filename and "scheduler" not in s.filename
                ]
                text += [
                    f"    {s.filename.rpartition('/weir/')[2]}:{s.lineno} {s.line}" for s in lines
                ]
        return "\n".join(text)
