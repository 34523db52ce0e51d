"""Faults as values of a plan, and the handles by which a test releases waiting requests."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from weir.env import Bell, Env, Latch

WRITES = frozenset({"put_if_absent", "put", "put_parts", "delete"})
# fmt: off
Action = Literal[
    "delay", "fail_before", "fail_after", "refuse", "deny", "hold", "pause", "duplicate",
]
# fmt: on


class Crash(BaseException):
    """The process died here. Not an `Exception`, so that no handler in the product catches it."""


class Event(NamedTuple):
    """One call as the store saw it: `outcome` is `ok`, an exception's name, or the fault's."""

    op: str
    path: str
    outcome: str


@dataclass(frozen=True, slots=True)
class Fault:
    """One entry of a plan: which calls, and what happens to them."""

    op: str
    path: str
    action: Action
    times: int | None = 1
    """How many calls it strikes; None for all."""
    skip: int = 0
    """How many matching calls pass first."""
    rate: float = 1.0
    """The probability to strike, drawn from the environment's randomness."""
    seconds: float = 0.0
    """`delay`: how long."""
    answer: Literal["first", "second"] = "first"
    """`duplicate`: which of the two answers the caller gets."""

    def matches(self, op: str, paths: Sequence[str]) -> bool:
        """True when the verb and one of the paths fit."""
        kind = "write" if op in WRITES else "read"
        return self.op in (op, kind, "*") and any(
            fnmatch.fnmatchcase(path, self.path) for path in paths
        )


class Held:
    """Requests in flight: their senders have given up, but the store has not seen them yet."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], object]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def release(self) -> int:
        """Apply them in order, and return how many; outcomes are in the log."""
        waiting, self._waiting = self._waiting, []
        for apply in waiting:
            apply()
        return len(waiting)

    def add(self, apply: Callable[[], object]) -> None:
        """Hold one more request."""
        self._waiting.append(apply)


class Gate:
    """A point where callers wait until the test lets them go on. One thread waits for callers."""

    def __init__(self, env: Env) -> None:
        self._arrived = Bell(env.threads)
        self._released = Latch(env.threads)
        self._lock = env.threads.lock()
        self._reached = 0

    def wait_reached(self, calls: int = 1, timeout: float = 10.0) -> None:
        """Return once `calls` calls have arrived; `AssertionError` if they never do."""
        while self._reached < calls:
            assert self._arrived.wait(timeout), (
                f"{self._reached} of {calls} calls reached the gate; no other in {timeout:g} s"
            )

    def release(self) -> None:
        """Let all callers continue, including later ones."""
        self._released.open()

    def pass_through(self, timeout: float = 60.0) -> None:
        """Wait for the release; called by the store."""
        with self._lock:
            self._reached += 1
        self._arrived.ring()
        assert self._released.wait(timeout), f"the gate was not released in {timeout:g} s"
