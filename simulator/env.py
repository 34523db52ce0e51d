"""`weir.env.Env` of a simulated process: scheduled locks, threads and clocks."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeVar

from simulator.scheduler import Actor, Killed, Scheduler, Task
from simulator.truth import Violation
from weir.env import Env, Limits, Lock, Places, Thread

T = TypeVar("T")


class SimLock:
    """A lock known to the scheduler. Like `threading.Lock` it may be released by any thread."""

    def __init__(self, scheduler: Scheduler, owner: Actor | None = None) -> None:
        self._s = scheduler
        self._owner = owner
        self.held = False
        self._waiters: list[Task] = []

    def _check_owner(self, me: Task) -> None:
        """Refuse a forked child: its copy of a lock that was held is never released."""
        if self._owner is not None and me.actor is not self._owner:
            raise Violation("P", f"{me.name} takes a lock of {self._owner.name}, which forked it")

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002  as `threading.Lock` has it
        """Take the lock, or wait for it."""
        s = self._s
        me = s.current
        if me is None:  # set-up, before anything runs
            assert not self.held, "a held lock outside of the simulation"
            self.held = True
            return True
        if me.actor.dead:
            raise Killed(me.name)
        self._check_owner(me)
        if s.settings.lock_yield and s.rng.random() < s.settings.lock_yield:
            s.point()
        end = None if timeout < 0 else s.now + timeout
        while self.held:
            if not blocking or (end is not None and s.now >= end):
                return False
            self._waiters.append(me)
            try:
                s.block("lock", None if end is None else end - s.now)
            except BaseException:
                if me not in self._waiters:
                    self._pass_on()  # interrupted after it was woken for the lock
                raise
            finally:
                if me in self._waiters:
                    self._waiters.remove(me)
        self.held = True
        return True

    def release(self) -> None:
        """Release the lock and let one waiter try; refused, as by a real one, if it is free."""
        if not self.held:
            raise RuntimeError("release unlocked lock")
        self.held = False
        self._pass_on()

    def _pass_on(self) -> None:
        if self._waiters and not self.held:
            self._s.wake(self._waiters.pop(0))

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class SimThread:
    """What `Threads.start` returns."""

    def __init__(self, scheduler: Scheduler, task: Task) -> None:
        self._s = scheduler
        self._task = task

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        me = self._s.current
        assert me is not None, "a join outside of the simulation"
        end = None if timeout is None else self._s.now + timeout
        while not self._task.done and (end is None or self._s.now < end):
            self._task.waiters.append(me)
            self._s.block(f"join {self._task.name}", None if end is None else end - self._s.now)

    def is_alive(self) -> bool:
        """True until it has ended."""
        return not self._task.done


@dataclass
class SimThreads:
    """`Threads` of one actor."""

    scheduler: Scheduler
    actor: Actor = field(init=False)

    def lock(self) -> Lock:
        """A lock."""
        return SimLock(self.scheduler, self.actor)

    def start(self, run: Callable[[], None], *, name: str) -> Thread | None:
        """A task of the same actor; None once its main thread has returned, as in Python 3.12."""
        return None if self.actor.is_ending else self._spawn(run, name)

    def _spawn(self, run: Callable[[], None], name: str) -> Thread:
        task = self.scheduler.spawn(self.actor, run, name=f"{self.actor.name}/{name[:12]}")
        return SimThread(self.scheduler, task)

    def map(self, run: Callable[[Any], T], items: list[Any], *, workers: int) -> list[T]:
        """One task per item when there is more than one worker; first error raised."""
        is_outside = self.scheduler.current is None  # a test that looks at the outcome
        if workers <= 1 or len(items) <= 1 or self.actor.is_ending or is_outside:
            return [run(item) for item in items]
        results: list[Any] = [None] * len(items)
        errors: list[Exception | None] = [None] * len(items)

        def one(index: int) -> None:
            try:
                results[index] = run(items[index])
            except Exception as error:  # noqa: BLE001  raised again below
                errors[index] = error

        threads = [self._spawn(lambda i=i: one(i), f"map{i}") for i in range(len(items))]  # type: ignore[misc]
        for thread in threads:
            thread.join()
        for error in errors:
            if error is not None:
                raise error
        return results


@dataclass
class SimClock:
    """The clocks of one actor: virtual, and off by what the plan says."""

    scheduler: Scheduler
    actor: Actor = field(init=False)

    def boottime(self) -> float:
        """Virtual seconds."""
        self.actor.resume(self.scheduler.now)  # with no other task to run, a paused one runs early
        return self.scheduler.now + self.actor.boot_offset - self.actor.boot_lost

    def wall(self) -> float:
        """Virtual seconds, skewed."""
        self.actor.resume(self.scheduler.now)
        return self.scheduler.now + self.actor.wall_offset - self.actor.wall_lost

    def sleep(self, seconds: float) -> None:
        """Wait in virtual time."""
        self.scheduler.block("sleep", seconds)


def start(actor: Actor, run: Callable[[], None], name: str) -> Thread:
    """Start a thread of an actor whose main thread has not returned."""
    thread = actor.env.threads.start(run, name=name)
    assert thread is not None, f"{actor.name} is at its end"
    return thread


def make_actor(
    scheduler: Scheduler,
    name: str,
    seed: str,
    *,
    boot_offset: float = 0.0,
    wall_offset: float = 0.0,
    places: Places | None = None,
    limits: Limits | None = None,
) -> Actor:
    """An actor with an environment of its own, seeded by `seed`."""
    clock, threads = SimClock(scheduler), SimThreads(scheduler)

    def forks() -> int:
        return 0 if scheduler.current is None else scheduler.current.actor.forks

    env = Env(clock, threads, random.Random(seed), places, limits=limits or Limits(), forks=forks)
    actor = Actor(name, env, boot_offset, wall_offset)
    clock.actor = threads.actor = actor
    return actor
