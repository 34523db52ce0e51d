"""Clock, randomness, identifiers and threads: the only source of each, passed in, never reached
for.

A simulator owns all of them by passing its own `Env`; nothing else in the product may call `time`,
`random`, `uuid` or start a thread (the linter bans it).
"""

from __future__ import annotations

import os
import queue
import random
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

if TYPE_CHECKING:
    import numpy as np

    Shuffler = np.random.Generator

T = TypeVar("T")


class Lock(AbstractContextManager[Any], Protocol):
    """A mutual-exclusion lock, used in a `with` block."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002
        """Take the lock; False when it could not be had in time."""

    def release(self) -> None:
        """Give the lock back."""


class Condition(AbstractContextManager[Any], Protocol):
    """A condition variable with its own lock."""

    def wait(self, timeout: float | None = None) -> bool:
        """Release the lock and wait to be notified; False on timeout."""

    def notify(self, n: int = 1) -> None:
        """Wake `n` waiters."""

    def notify_all(self) -> None:
        """Wake all waiters."""


class Thread(Protocol):
    """A started thread."""

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""

    def is_alive(self) -> bool:
        """True until it has ended."""


class Clock(Protocol):
    """Time as one machine sees it."""

    def boottime(self) -> float:
        """Seconds on a clock that never goes back and also runs while the machine sleeps (G-7b)."""

    def wall(self) -> float:
        """Seconds since 1970 by this machine; for people and logs, never compared with another
        clock (G-3). That it jumped is a reason to doubt a proof, never one to trust it (F-18)."""

    def sleep(self, seconds: float) -> None:
        """Let time pass."""


class Threads(Protocol):
    """Threads and what they wait on."""

    def lock(self) -> Lock:
        """A new lock."""

    def condition(self, lock: Lock | None = None) -> Condition:
        """A new condition variable, on `lock` if given."""

    def start(self, run: Callable[[], None], *, name: str) -> Thread | None:
        """Run `run` in a daemon thread of that name; None where no thread can be started.

        The process is at its end, or at a limit of the system: then whoever comes by does the work
        (F-16).
        """

    def map(self, run: Callable[[Any], T], items: list[Any], *, workers: int) -> list[T]:
        """Apply `run` to each item, `workers` at a time; results in order, first error raised."""


class Places(Protocol):
    """Where stores and tables are, when a URI alone does not say: a simulated world, or a faulty
    one."""

    def store(self, uri: str) -> Any:
        """The `weir.store.api.Store` at that URI."""

    def lake(self, uri: str) -> Any:
        """The `weir.lake.api.Lake` of the table at that URI; None: Lance itself."""


_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


class SystemClock:
    """The machine's clocks."""

    def boottime(self) -> float:
        """CLOCK_BOOTTIME where there is one (Linux); it counts suspended time, CLOCK_MONOTONIC does
        not."""
        if _BOOTTIME is not None:
            return time.clock_gettime(_BOOTTIME)
        return time.monotonic()  # macOS: Python does not offer mach_continuous_time

    def wall(self) -> float:
        """Seconds since 1970."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)


class SystemThreads:
    """Plain threads."""

    def lock(self) -> Lock:
        """A `threading.Lock`."""
        return threading.Lock()

    def condition(self, lock: Lock | None = None) -> Condition:
        """A `threading.Condition`."""
        return threading.Condition(cast("threading.Lock", lock) if lock else threading.Lock())

    def start(self, run: Callable[[], None], *, name: str) -> Thread | None:
        """A started daemon thread, if there can be one."""
        thread = threading.Thread(target=run, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no more, or the interpreter is at its end
            return None
        return thread

    def map(self, run: Callable[[Any], T], items: list[Any], *, workers: int) -> list[T]:
        """Threads kept between calls, and this one; in this thread when one worker is enough.

        Starting 16 threads costs a millisecond, as much as the request each of them makes. This
        thread works too, so that a map within a map ends although all kept threads are busy.
        """
        if workers <= 1 or len(items) <= 1:
            return [run(item) for item in items]
        todo = iter(enumerate(items))
        results: list[Any] = [None] * len(items)
        errors: dict[int, BaseException] = {}

        def work() -> None:
            # Taking the next of an enumeration is one step of the interpreter: no item goes twice.
            for index, item in todo:
                try:
                    results[index] = run(item)
                except BaseException as error:  # noqa: BLE001  raised below, by the caller's thread
                    errors[index] = error

        crew = _crew()
        helpers = [crew.offer(work) for _ in range(min(workers, len(items)) - 1)]
        work()
        for helper in helpers:
            if not helper.cancel():
                helper.result()
        if errors:
            raise errors[min(errors)]
        return results


_CREW_THREADS = 64


class _Crew:
    """Threads that help with maps and are kept between them.

    `ThreadPoolExecutor` does as much, but takes no work once the main thread has returned, when
    other threads still put and `atexit` still closes writers (F-16).
    """

    def __init__(self) -> None:
        self._offers: queue.SimpleQueue[tuple[Future[None], Callable[[], None]]] = (
            queue.SimpleQueue()
        )
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._started = 0

    def offer(self, run: Callable[[], None]) -> Future[None]:
        """Have `run` run by a thread, if one comes before the offer is cancelled."""
        offer: Future[None] = Future()
        if self._has_thread():
            self._offers.put((offer, run))
        else:
            offer.cancel()
        return offer

    def _has_thread(self) -> bool:
        """True when one waits, was started for this, or will be through with other work."""
        if self._idle.acquire(blocking=False):
            return True
        with self._lock:
            if self._started < _CREW_THREADS:
                if SYSTEM.threads.start(self._work, name=f"weir-map-{self._started}") is None:
                    return self._started > 0
                self._started += 1
        return True

    def _work(self) -> None:
        while True:
            try:
                offer, run = self._offers.get_nowait()
            except queue.Empty:
                self._idle.release()
                offer, run = self._offers.get()
            if offer.set_running_or_notify_cancel():
                run()
                offer.set_result(None)
            del offer, run  # what a map worked on is not kept until the next


_CREW: list[_Crew] = []
_FORKS = [0]


def _crew() -> _Crew:
    if not _CREW:
        _CREW.append(_Crew())
    return _CREW[0]


def _forks() -> int:
    return _FORKS[0]


def _count_fork() -> None:
    _FORKS[0] += 1
    _CREW.clear()  # threads do not survive a fork; the child starts its own


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


@dataclass(frozen=True)
class Limits:
    """Bounds that no data may exceed; the same on both sides of the log. Tests scale them down."""

    entry_bytes: int = 1 << 30
    """Most bytes of one WAL entry: more is not written, and not read (F-15)."""
    read_bytes: int = 64 << 20
    """Bytes of log entries that one read or fold holds at a time; a larger entry is held alone
    (L-10)."""


def _go_on(_step: str) -> None:
    """What a failpoint does outside of tests."""


_LOW_BITS: Final = (1 << 62) - 1
"""Those of a UUID that say neither its version nor its variant."""


@dataclass(frozen=True)
class Env:
    """What a process brings along: its clock, its randomness, its threads, its world."""

    clock: Clock = field(default_factory=SystemClock)
    threads: Threads = field(default_factory=SystemThreads)
    random: random.Random = field(default_factory=random.SystemRandom)
    """The system's, which has no state that a fork or a restored machine would repeat (F-17)."""
    places: Places | None = None
    """None: a URI says where its store is."""
    failpoint: Callable[[str], None] = _go_on
    """Called at every step that a crash may come between, with its name ("compact.committed"):
    where tests stop, kill or overtake an operation."""
    limits: Limits = field(default_factory=Limits)
    forks: Callable[[], int] = _forks
    """How many forks lie between this process and the one that began: another in each child."""

    def new_id(self) -> uuid.UUID:
        """A random UUID out of this environment's randomness, and the time.

        By such an id an author knows its own claim, entry or record again when an answer was lost.
        Two machines restored from one snapshot may draw the same number, not at the same time; then
        neither takes what the other wrote for its own (F-17).
        """
        return uuid.UUID(int=self._new_number(), version=4)

    def new_hex(self) -> str:
        """The same as 32 digits, for what is made with every put."""
        return f"{self._new_number():032x}"

    def _new_number(self) -> int:
        return self.random.getrandbits(128) ^ (int(self.clock.wall() * 1e9) & _LOW_BITS)


def seeded(*seed: int) -> Shuffler:
    """Chance that a caller chose: the same numbers, the same order, in every process."""
    import numpy as np

    return np.random.default_rng(seed)


class Home:
    """The process that a handle was opened in.

    A forked child has a copy of the handle, of locks that nobody will release and of threads that
    do not run: it must not use it (F-16).
    """

    def __init__(self, env: Env) -> None:
        self._forks = env.forks
        self._at = env.forks()

    @property
    def is_left(self) -> bool:
        """True in a child that was forked since."""
        return self._forks() != self._at


def default_variable(name: str, value: str) -> None:
    """Set an environment variable unless the user did."""
    os.environ.setdefault(name, value)


SYSTEM = Env()
"""The real machine; the default of every public entry point."""
