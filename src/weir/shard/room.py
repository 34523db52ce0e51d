"""The bound on rows held in memory: over it, putters wait (M-6)."""

from __future__ import annotations

import logging
from collections.abc import Callable

from weir.config import WriterConfig
from weir.env import Env, Lock
from weir.errors import Backpressure
from weir.shard.stats import Counters

log = logging.getLogger("weir.shard")


class Room:
    """Bytes of rows that one writer holds. Every call is made with the writer's lock held."""

    def __init__(
        self, env: Env, config: WriterConfig, lock: Lock, *, name: str, counters: Counters
    ) -> None:
        self.held_bytes = 0
        self._clock = env.clock
        self._limit = config.max_unflushed_memtable_bytes
        self._warns_every = float(config.backpressure_log_interval)  # type: ignore[arg-type]
        self._warned_at = -1e9
        self._changed = env.threads.condition(lock)
        self._name = name
        self._counters = counters

    def is_full(self, nbytes: int) -> bool:
        """True when so much more has to wait."""
        # A put larger than the whole bound is let in alone rather than refused for ever.
        return self.held_bytes > 0 and self.held_bytes + nbytes > self._limit

    def release(self, nbytes: int = 0) -> None:
        """Rows left memory, or the writer ends; whoever waits looks again."""
        self.held_bytes -= nbytes
        self._changed.notify_all()

    def wait(self, nbytes: int, timeout: float | None, make: Callable[[], None]) -> None:
        """Return when there is room for so much; `make` is called before each wait, and may raise.

        `Backpressure` when `timeout` passes first.
        """
        began = self._clock.boottime()
        counters = self._counters
        counters.backpressure_waits += 1
        if began - self._warned_at >= self._warns_every:
            self._warned_at = began
            facts = (self._name, self.held_bytes, self._limit, counters.backpressure_waits)
            log.warning("writer.backpressure %s held_bytes=%d limit=%d waits=%d", *facts)
        try:
            while self.is_full(nbytes):
                left = None if timeout is None else began + timeout - self._clock.boottime()
                if left is not None and left <= 0:
                    raise Backpressure(
                        f"{self._name}: {self.held_bytes} bytes are held, the bound is "
                        f"{self._limit}; nothing of this put was accepted, try again"
                    )
                make()
                self._changed.wait(left)
        finally:
            counters.backpressure_seconds += self._clock.boottime() - began
