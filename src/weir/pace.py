"""Limits on what upkeep asks of a store: requests and bytes a second, for all jobs of a keeper.

Every request has its turn: one that comes too early waits until what was spent before it is paid
for, so the limits hold on average, and no job waits for ever. What is only known afterwards (bytes
that were read, requests that Lance made) delays the next request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Final, Protocol, TypeVar
from weakref import WeakSet

from weir.meters import KEEP_PAUSED, Meters

if TYPE_CHECKING:
    from weir.env import Clock, Env, Lock, Threads

T = TypeVar("T")

SHORTEST_SLEEP: Final = 1e-6
"""Seconds; no clock is finer, and sums are rounded."""
LONGEST_SLEEP: Final = 1.0
"""Seconds after which a request that waits looks whether the limits were lifted."""


class Spender(Protocol):
    """Spends on its own and knows how much: Lance."""

    def spent(self) -> tuple[int, int]:
        """Requests and bytes since it was asked last."""


class _Limit:
    """One limit: so much a second, or None. What was spent is paid for as time passes."""

    def __init__(self) -> None:
        self.rate: float | None = None
        self._spent = 0.0
        self._paid = 0.0
        self._paid_at = 0.0

    def change(self, now: float, rate: float | None) -> None:
        """Another limit from now on, also for what was spent and is not paid for yet."""
        self._pay(now)
        self.rate = rate

    def spend(self, now: float, amount: float) -> float:
        """Count `amount`; returns what was spent before it, which is to be paid for first."""
        self._pay(now)
        before = self._spent
        self._spent += amount
        return before

    def left(self, now: float, before: float) -> float:
        """Seconds until what was spent before is paid for."""
        self._pay(now)
        return 0.0 if self.rate is None else max(0.0, before - self._paid) / self.rate

    def _pay(self, now: float) -> None:
        earned = inf if self.rate is None else (now - self._paid_at) * self.rate
        self._paid, self._paid_at = min(self._spent, self._paid + earned), now


@dataclass(slots=True)
class _Shared:
    """What all who keep the same limits have in common."""

    lock: Lock
    requests: _Limit = field(default_factory=_Limit)
    nbytes: _Limit = field(default_factory=_Limit)
    is_lifted: bool = False


class Pace:
    """The limits of one keeper. Safe to share between threads."""

    def __init__(
        self, clock: Clock, threads: Threads, meters: Meters, shared: _Shared | None = None
    ) -> None:
        """`shared`: the limits of another pace, which both keep together."""
        self._clock = clock
        self._threads = threads
        self._meters = meters
        self._shared = shared or _Shared(threads.lock())
        self._spenders: WeakSet[Spender] = WeakSet()

    def share(self) -> Pace:
        """The same limits for one table of many. What Lance spends on it is counted at its own
        requests: to ask all tables at each request would take a keeper the square of their
        number."""
        return Pace(self._clock, self._threads, self._meters, self._shared)

    def limit(self, requests: float | None, nbytes: float | None) -> None:
        """Allow so many requests and bytes a second from now on; None: any number."""
        with self._shared.lock:
            now = self._clock.boottime()
            self._shared.requests.change(now, requests)
            self._shared.nbytes.change(now, nbytes)

    def lift(self) -> None:
        """Let everything go on at once, also what waits; for the end of a keeper."""
        self._shared.is_lifted = True  # no lock: called by signal handlers

    def watch(self, spender: Spender) -> None:
        """Count also what `spender` spends, for as long as it exists."""
        with self._shared.lock:
            self._spenders.add(spender)

    def wait(self, requests: int = 1) -> None:
        """Count requests about to be made, and wait until it is their turn."""
        before = self._count(requests, 0)
        if not self._left(*before):
            return
        began = self._clock.boottime()
        while not self._shared.is_lifted and (left := self._left(*before)):
            self._clock.sleep(min(left, LONGEST_SLEEP))
        self._meters.add(KEEP_PAUSED, self._clock.boottime() - began)

    def charge(self, requests: int = 0, nbytes: int = 0) -> None:
        """Count what was spent already; later requests wait for it."""
        self._count(requests, nbytes)

    def _count(self, requests: int, nbytes: int) -> tuple[float, float]:
        with self._shared.lock:
            for spender in list(self._spenders):
                more = spender.spent()
                requests, nbytes = requests + more[0], nbytes + more[1]
            now = self._clock.boottime()
            return self._shared.requests.spend(now, requests), self._shared.nbytes.spend(
                now, nbytes
            )

    def _left(self, requests: float, nbytes: float) -> float:
        with self._shared.lock:
            now = self._clock.boottime()
            left = max(
                self._shared.requests.left(now, requests), self._shared.nbytes.left(now, nbytes)
            )
            return left if left >= SHORTEST_SLEEP else 0.0


def paced(batches: Iterable[T], env: Env) -> Iterable[T]:
    """The batches that a job reads through Lance, each when it is its turn."""
    return batches if env.pace is None else _one_by_one(batches, env.pace)


def _one_by_one(batches: Iterable[T], pace: Pace) -> Iterator[T]:
    for batch in batches:
        pace.wait(0)
        yield batch
