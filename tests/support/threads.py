"""Threads for tests: a call that hangs fails the test."""

import os
import threading
from collections.abc import Callable
from typing import Any

from weir.shard.writer import ShardWriter


class Caller:
    """Runs a call in a thread; `result()` gives its value or raises its error."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._value: Any = None
        self._error: BaseException | None = None

        def run() -> None:
            try:
                self._value = call()
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def result(self, timeout: float = 10.0) -> Any:
        """Wait for the call to end; its value, or its error raised."""
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "the call never returned"
        if self._error is not None:
            raise self._error
        return self._value


class InterruptedLock:
    """A writer's lock that raises `KeyboardInterrupt` on chosen acquisitions, in the thread that
    armed it."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._thread = 0
        self._strikes: list[bool] = []

    def arm(self, *strikes: bool) -> None:
        self._thread, self._strikes = threading.get_ident(), list(strikes)

    def __enter__(self) -> Any:
        ours = self._strikes and threading.get_ident() == self._thread
        if ours and self._strikes.pop(0):
            raise KeyboardInterrupt
        return self._inner.__enter__()

    def __exit__(self, *error: object) -> Any:
        return self._inner.__exit__(*error)


def until(happened: Callable[[], object]) -> None:
    """Return once it is true; the test's own limit ends a wait for ever."""
    while not happened():
        os.sched_yield()


def until_queued(writer: ShardWriter, count: int) -> None:
    """Return once that many writes wait for the log, the one on its way included."""
    until(lambda: writer._state.waiting >= count)
