"""Cancelled tasks and timeouts that strike: like `points.Points`, by what a call waits for.

A task is cancelled where it is suspended: at once, when the tasks that it started have begun, and
when what it awaits has come, before it runs again. A call with a timeout is told at a lock that the
time is up.
"""

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Self

from tests.interrupts.points import WEIR, place_of
from weir.env import Lock, SystemThreads

Tell = Callable[[str], None]


def _say_nothing(_: str) -> None:
    return None


class Strikes:
    """Counts the chances of one call, and strikes at one: "cancelled.2" is the second."""

    def __init__(self, target: str, tell: Tell = _say_nothing) -> None:
        self.target = target
        self.raised = False
        self.passed: dict[str, str] = {}
        self._tell = tell
        self._lock = threading.Lock()

    def is_struck(self, name: str, place: str) -> bool:
        """Note a chance; True if it is the one."""
        with self._lock:
            name = f"{name}.{1 + sum(known.startswith(name) for known in self.passed)}"
            self.passed[name] = place
            if name != self.target or self.raised:
                return False
            self.raised = True
        self._tell(place)
        return True


class Cancels(Strikes):
    """Cancels a task."""

    async def run(self, call: Coroutine[Any, Any, object]) -> object:
        """Await the call, which is cancelled at the target."""
        return await _Stepped(call, self)


class _Stepped:
    def __init__(self, call: Coroutine[Any, Any, object], strikes: Cancels) -> None:
        self._call, self._strikes = call, strikes

    def __await__(self) -> Generator[Any, Any, object]:
        task = asyncio.current_task()
        assert task is not None
        loop = task.get_loop()
        step: Callable[[], Any] = lambda: self._call.send(None)  # noqa: E731
        while True:
            try:
                awaited = step()
            except StopIteration as ended:
                return ended.value
            place = f"{self._call.cr_frame.f_code.co_qualname}:{self._call.cr_frame.f_lineno}"
            if self._strikes.is_struck("cancelled", place):
                task.cancel()
            elif self._strikes.is_struck("soon", place):
                loop.call_soon(loop.call_soon, task.cancel)
            elif awaited is not None and self._strikes.is_struck("late", place):
                awaited.add_done_callback(lambda _: task.cancel())
            try:
                yield awaited
            except BaseException as error:
                step = lambda error=error: self._call.throw(error)  # noqa: E731
            else:
                step = lambda: self._call.send(None)  # noqa: E731


class Timeouts(Strikes):
    """Ends a wait of a call because its time is up."""

    def __init__(self, target: str, tell: Tell = _say_nothing) -> None:
        super().__init__(target, tell)
        self._caller: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._caller = threading.current_thread()
        return self

    def __exit__(self, *_: object) -> None:
        self._caller = None

    def is_up(self) -> bool:
        """True when the wait that begins in this thread ends at once."""
        thread = threading.current_thread()
        # The parts of a call for several shards run in threads of the pool.
        if self._caller is None or (
            thread is not self._caller and not thread.name.startswith("weir-map")
        ):
            return False
        frame = sys._getframe(2)
        while not frame.f_code.co_filename.startswith(WEIR) and frame.f_back is not None:
            frame = frame.f_back
        return self.is_struck("timeout", place_of(frame))


class TimedThreads(SystemThreads):
    """Threads whose locks ask `timeouts` before they wait for a limited time."""

    def __init__(self) -> None:
        self.timeouts: Timeouts | None = None

    def lock(self) -> Lock:
        return _TimedLock(self)


class _TimedLock:
    def __init__(self, threads: TimedThreads) -> None:
        self._threads = threads
        self._lock = threading.Lock()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._lock.acquire(blocking=False):
            return True
        timeouts = self._threads.timeouts
        if timeout >= 0 and timeouts is not None and timeouts.is_up():
            return False
        return self._lock.acquire(blocking, timeout)

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> bool:
        return self._lock.__enter__()

    def __exit__(self, *error: object) -> None:
        self._lock.release()
