"""Clock, randomness, identifiers and threads: the only source of each, always passed in.

A simulator owns all of them by passing its own `Env`; nothing else in the product may call `time`,
`random`, `uuid` or start a thread (the linter bans it).
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import inspect
import os
import queue
import random
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from weir.meters import Meters

if TYPE_CHECKING:
    import numpy as np

    from weir.pace import Pace

    Shuffler = np.random.Generator

T = TypeVar("T")
Verb = TypeVar("Verb", bound=Callable[..., object])


class Lock(AbstractContextManager[Any], Protocol):
    """A mutual-exclusion lock, used in a `with` block."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002
        """Take the lock; False when it was not free in time."""

    def release(self) -> None:
        """Give the lock back."""


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
        clock (G-3). A jump of it can cast doubt on a proof, but never support one (F-18)."""

    def sleep(self, seconds: float) -> None:
        """Let time pass."""


class Threads(Protocol):
    """Threads and what they wait on."""

    def lock(self) -> Lock:
        """A new lock."""

    def start(self, run: Callable[[], None], *, name: str) -> Thread | None:
        """Run `run` in a daemon thread of that name; None where no thread can be started.

        That is so when the interpreter exits, or at a limit of the system. The calls that need the
        thread then do its work themselves (F-16).
        """

    def map(self, run: Callable[[Any], T], items: list[Any], *, workers: int) -> list[T]:
        """Apply `run` to each item, `workers` at a time; results in order.

        No item is begun after one has failed. Raises the error of the first item that failed.
        """


class Bell:
    """Wakes one thread that waits for work; rung before it waits, it is heard all the same.

    weir has no condition variables: an interrupt inside of one may leave its lock taken (F-16).
    """

    def __init__(self, threads: Threads) -> None:
        self._lock = threads.lock()
        self._lock.acquire()

    def ring(self) -> None:
        """Wake the thread; ringing again before it has woken does nothing more."""
        try:  # noqa: SIM105  several times as fast as `suppress`
            self._lock.release()
        except RuntimeError:  # rung already
            pass

    def wait(self, timeout: float | None = None) -> bool:
        """Wait to be woken; False when `timeout` passed."""
        return self._lock.acquire(True, -1 if timeout is None else max(0.0, timeout))


class Latch:
    """Opened once, for any number of threads that wait. Each waits at a lock of its own: one that
    is interrupted holds up no other (F-16)."""

    def __init__(self, threads: Threads) -> None:
        self.is_open = False
        self._threads = threads
        self._gates: list[Lock] = []

    def open(self) -> None:
        """Let all threads go on, now and later; may be repeated."""
        self.is_open = True
        for gate in list(self._gates):
            with contextlib.suppress(RuntimeError):  # released already
                gate.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is open; False when `timeout` passed."""
        gate = self._threads.lock()
        gate.acquire()
        self._gates.append(gate)  # before the look: whoever opens it looks for gates afterwards
        return self.is_open or gate.acquire(True, -1 if timeout is None else max(0.0, timeout))


class Places(Protocol):
    """Finds stores and tables where a URI alone does not: in a simulated or faulty world."""

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

    def start(self, run: Callable[[], None], *, name: str) -> Thread | None:
        """A started daemon thread, or None.

        `Thread.start` waits for the new thread with a `Condition`, which an interrupt would leave
        in disorder (F-16). So a thread that no signal reaches calls it.
        """
        thread = threading.Thread(target=run, name=name, daemon=True)
        outcome: queue.SimpleQueue[bool] = queue.SimpleQueue()

        def begin() -> None:
            is_started = False
            try:
                thread.start()
                is_started = True
            finally:
                outcome.put(is_started)

        try:
            _thread.start_new_thread(_quietly, (begin,))
        except RuntimeError:  # the system has no more, or the interpreter is exiting
            return None
        return thread if outcome.get() else None

    def map(self, run: Callable[[Any], T], items: list[Any], *, workers: int) -> list[T]:
        """Run on pooled threads and on the caller's; on the caller's alone if one is enough.

        After an error, or Ctrl-C, no further item is begun.
        Starting 16 threads costs a millisecond, as much as the request each of them makes. The
        caller's thread works too, so a nested map finishes even if all pooled threads are busy.
        """
        if workers <= 1 or len(items) <= 1:
            return [run(item) for item in items]
        todo = iter(enumerate(items))
        results: list[Any] = [None] * len(items)
        errors: dict[int, BaseException] = {}

        def work() -> None:
            # next() on an enumeration is one step of the interpreter, so no item is taken twice.
            for index, item in todo:
                if errors:
                    return
                try:
                    results[index] = run(item)
                except BaseException as error:  # noqa: BLE001  raised below, by the caller's thread
                    errors[index] = error

        crew = _crew()
        helpers = [crew.offer(work) for _ in range(min(workers, len(items)) - 1)]
        try:
            work()
            for helper in helpers:
                if not helper.cancel():
                    helper.wait()
        except BaseException as interrupt:
            errors[-1] = interrupt  # the helpers take no other item
            raise
        if errors:
            # An interrupt is raised even if an item before it failed.
            raise errors[min(errors, key=lambda i: (isinstance(errors[i], Exception), i))]
        return results


def _quietly(begin: Callable[[], None]) -> None:
    """Run what starts a thread; the caller hears whether it could be started."""
    with contextlib.suppress(RuntimeError):
        begin()


_CREW_THREADS = 64


class _Offer:
    """Work that a thread of the pool may take. Plain locks only: an interrupt inside a `Condition`,
    and so inside a `Future` or a `Semaphore`, would leave its lock taken for ever (F-16)."""

    __slots__ = ("_done", "_taken", "run")

    def __init__(self, run: Callable[[], None]) -> None:
        self.run = run
        self._taken = threading.Lock()
        self._done = threading.Lock()
        self._done.acquire()

    def cancel(self) -> bool:
        """True when no thread has taken it, and now none will."""
        return self._taken.acquire(blocking=False)

    def work(self) -> None:
        """Do it, unless it was cancelled."""
        if self._taken.acquire(blocking=False):
            self.run()
            self._done.release()

    def wait(self) -> None:
        """Return when the thread that took it is done."""
        self._done.acquire()


class _Crew:
    """A pool of threads that help with maps.

    `ThreadPoolExecutor` would do, but it refuses work once the main thread has returned, while
    other threads still put and `atexit` still closes writers (F-16).
    """

    def __init__(self) -> None:
        self._offers: queue.SimpleQueue[_Offer] = queue.SimpleQueue()
        self._idle: deque[None] = deque()
        """One item for each thread that waits for an offer and was promised none."""
        self._lock = threading.Lock()
        self._started = 0

    def offer(self, run: Callable[[], None]) -> _Offer:
        """Let a thread of the pool run `run`, unless the offer is cancelled first."""
        offer = _Offer(run)
        if self._has_thread():
            self._offers.put(offer)
        return offer

    def _has_thread(self) -> bool:
        """True when a thread is idle, was started for this, or will finish its other work."""
        try:
            self._idle.pop()
        except IndexError:
            pass
        else:
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
                offer = self._offers.get_nowait()
            except queue.Empty:
                self._idle.append(None)
                offer = self._offers.get()
            offer.work()
            del offer  # do not keep a map's items alive until the next one


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
    SYSTEM.meters.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


@dataclass(frozen=True)
class Limits:
    """Bounds on data, the same for writers and readers of the log. Tests scale them down."""

    entry_bytes: int = 1 << 30
    """Maximum bytes of one WAL entry; a larger one is neither written nor read (F-15)."""
    read_bytes: int = 64 << 20
    """Bytes of log entries that one read or fold holds at once; a larger entry is held alone
    (L-10)."""


def _go_on(_step: str) -> None:
    """The failpoint outside of tests, which does nothing."""


_LOW_BITS: Final = (1 << 62) - 1
"""The low bits of a UUID, which hold neither its version nor its variant."""


@dataclass(frozen=True)
class Env:
    """The environment of a process: its clock, randomness, threads and stores."""

    clock: Clock = field(default_factory=SystemClock)
    threads: Threads = field(default_factory=SystemThreads)
    random: random.Random = field(default_factory=random.SystemRandom)
    """The system's: it has no state that a fork or a restored machine would repeat (F-17)."""
    places: Places | None = None
    """None: a URI says where its store is."""
    failpoint: Callable[[str], None] = _go_on
    """Called with a name ("compact.committed") at every point where a crash may fall between two
    steps; tests stop, kill or overtake an operation there."""
    limits: Limits = field(default_factory=Limits)
    forks: Callable[[], int] = _forks
    """Number of forks between the original process and this one; one more in every child."""
    meters: Meters = field(default_factory=Meters)
    """What this process measures, if it is asked to."""
    pace: Pace | None = None
    """Limits on requests and bytes a second (`weir keep`); None: none."""

    def __repr__(self) -> str:
        """Short, as the default of many signatures."""
        return "SYSTEM" if self is SYSTEM else object.__repr__(self)

    def new_id(self) -> uuid.UUID:
        """A random UUID from this environment's randomness and the time.

        When an answer of the store was lost, a process identifies its own claim, entry or record by
        this id. Two machines restored from one snapshot may draw the same number, but not at the
        same time, so neither mistakes the other's object for its own (F-17).
        """
        return uuid.UUID(int=self._new_number(), version=4)

    def new_hex(self) -> str:
        """The same as 32 hex digits, for ids that every put needs."""
        return f"{self._new_number():032x}"

    def attempts(
        self, most: int = 16, *, first_delay: float = 0.01, longest_delay: float = 1.0
    ) -> Iterator[int]:
        """Number the attempts at what another process may do first, with a pause before a repeat.

        Pauses are uniform up to a doubling bound (full jitter), so that those who collided once do
        not do so again. A read that was overtaken begins again at once: `first_delay` 0.
        """
        bound = first_delay
        for attempt in range(1, most + 1):
            if attempt > 1:
                self.clock.sleep(self.random.uniform(0, bound))
                bound = min(bound * 2, longest_delay)
            yield attempt

    def _new_number(self) -> int:
        return self.random.getrandbits(128) ^ (int(self.clock.wall() * 1e9) & _LOW_BITS)


def seeded(*seed: int) -> Shuffler:
    """A seeded generator: the same numbers in the same order in every process."""
    import numpy as np

    return np.random.default_rng(seed)


class ForkGuard:
    """The process that a handle was opened in.

    A forked child must not use its copy of the handle: nobody will release the copied locks, and
    the handle's threads do not run there (F-16).
    """

    def __init__(self, env: Env) -> None:
        self._forks = env.forks
        self._at = env.forks()

    @property
    def is_forked(self) -> bool:
        """True in a child process that was forked since then."""
        return self._forks() != self._at  # guard: F-16


def takes_env(verb: Verb) -> Verb:
    """Leave `env` out of what `help` shows of a public function: only simulators and tests pass it,
    as `weir.testing.faulty` says."""
    signature = inspect.signature(verb)
    shown = [each for name, each in signature.parameters.items() if name != "env"]
    vars(verb)["__signature__"] = signature.replace(parameters=shown)
    return verb


def default_variable(name: str, value: str) -> None:
    """Set an environment variable unless the user did."""
    os.environ.setdefault(name, value)


SYSTEM = Env()
"""The real machine; the default of every public entry point."""

AT_EXIT: Final[list[Callable[[], None]]] = []
"""What is called when the process ends. Exit handlers run in the reverse order, and this one is
registered when weir is imported: those of a program, which may close its writers, run before it."""


@atexit.register
def _end() -> None:
    for call in AT_EXIT:
        call()
