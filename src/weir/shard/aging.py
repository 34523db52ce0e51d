"""Flush by age: rows that stay in a MemTable for too long become an SSTable without a put.

The writers of one table share one thread, which runs only while one of them holds rows: it sleeps
until the first MemTable is too old, hands that to its writer's flusher, and ends when no rows are
left. Where it cannot be started, the next entry of any of the writers looks at the age (F-16).
"""

from __future__ import annotations

from typing import Final, Protocol

from weir.env import Bell, Env, Lock, Thread

LATEST: Final = 60.0
"""The longest sleep: a machine that was suspended does not sleep on for the whole rest."""


class Aging(Protocol):
    """A flusher, as the watch sees it. Called with the lock held."""

    def flush_aged(self, now: float) -> float | None:
        """Freeze the active MemTable if it is too old; otherwise return when it will be, if it
        holds rows."""


class _Watcher:
    """The thread, while there is one."""

    def __init__(self, env: Env) -> None:
        self.bell = Bell(env.threads)
        self.is_over = False
        """It ends, or has ended, and looks at nothing any more."""
        self.thread: Thread | None = None


class AgeWatch:
    """When the MemTables of one table's writers will be too old, as far as they hold rows.

    `add` and `remove` are called with the lock held.
    """

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self._due: dict[Aging, float] = {}
        self._watcher: _Watcher | None = None

    @property
    def _is_watched(self) -> bool:
        return self._watcher is not None and not self._watcher.is_over

    def __contains__(self, flusher: Aging) -> bool:
        return flusher in self._due and self._is_watched

    def add(self, flusher: Aging, due: float, env: Env) -> None:
        """Flush the active MemTable of `flusher` at `due`, if it is not flushed before."""
        self._due.setdefault(flusher, due)
        if not self._is_watched:
            # An interrupt in here at worst leaves a thread that nobody knows: it does the same, and
            # ends when no rows are left.
            watcher = _Watcher(env)
            watcher.thread = env.threads.start(lambda: self._run(env, watcher), name="weir-age")
            self._watcher = None if watcher.thread is None else watcher
        if not self._is_watched:
            self._look(env.clock.boottime())

    def remove(self, flusher: Aging) -> Thread | None:
        """Forget a writer that stops; returns the thread if it ends because this was the last."""
        self._due.pop(flusher, None)
        watcher = self._watcher
        if self._due or watcher is None:
            return None
        watcher.is_over = True
        watcher.bell.ring()
        return watcher.thread

    def _run(self, env: Env, me: _Watcher) -> None:
        while True:
            with self._lock:
                if me.is_over:
                    return
                now = env.clock.boottime()
                self._look(now)
                if not self._due:
                    me.is_over = True
                    return
                left = min(self._due.values()) - now
            me.bell.wait(min(left, LATEST))

    def _look(self, now: float) -> None:
        for flusher, due in list(self._due.items()):
            if due > now:
                continue
            following = flusher.flush_aged(now)
            if following is None:
                del self._due[flusher]
            else:
                self._due[flusher] = following
