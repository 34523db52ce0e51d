"""Interrupts: a `BaseException` in a client's thread at a store call or wait; the process survives
(F-16)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

from simulator.scheduler import Scheduler, Task


class Stopped(BaseException):
    """What a framework raises in a thread to stop its work: a timeout, a cancelled task."""


KINDS: tuple[type[BaseException], ...] = (KeyboardInterrupt, SystemExit, Stopped)


class Strikes:
    """The tasks that may be interrupted now, and the interrupts so far."""

    def __init__(
        self, scheduler: Scheduler, rng: random.Random, rate: float, *, waits: bool = False
    ) -> None:
        self.rng = rng
        self.rate = rate
        self._s = scheduler
        self._aimed: set[Task] = set()
        self._errors: list[BaseException] = []
        if waits:
            scheduler.on_wait = self._wait

    @contextmanager
    def aimed(self) -> Iterator[None]:
        """Around one call of a client: it is interrupted once, if at all."""
        me = self._s.current
        assert me is not None, "an interrupt outside of the simulation"
        self._aimed.add(me)
        try:
            yield
        finally:
            self._aimed.discard(me)

    def hits(self, share: float = 1.0) -> bool:
        """True when the running task is interrupted here; `strike` does it."""
        me = self._s.current
        if me not in self._aimed or self.rng.random() >= self.rate * share:
            return False
        self._aimed.discard(me)
        return True

    def strike(self) -> None:
        """Raise it."""
        error = self.rng.choice(KINDS)(f"interrupt {len(self._errors)}")
        self._errors.append(error)
        raise error

    def is_ours(self, error: BaseException) -> bool:
        """True for an interrupt that was raised here; False for any other exception."""
        return any(error is known for known in self._errors)

    def _wait(self, me: Task) -> None:
        if self.hits():
            self._s.note(me.name, "interrupted while it waits")
            self.strike()
