"""A cache with a bound in bytes, for values that never change under their key."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from weir.env import Env
from weir.meters import CACHE_LOOKUPS

V = TypeVar("V")


class ByteCache(Generic[V]):
    """Values by key, the least recently used dropped once their sizes exceed `limit_bytes`.

    The lock guards the map only. Values are made outside it: two threads may make the same value
    (immutable, hence equal), but they never wait for each other's reads.
    """

    def __init__(self, limit_bytes: int, env: Env, name: str | None = None) -> None:
        """`name` is that in the metrics; without one it is not measured."""
        self._limit_bytes = limit_bytes
        self._meters = None if name is None else env.meters
        self._name = name or ""
        self._lock = env.threads.lock()
        self._entries: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """The sum of the sizes held."""
        return self._bytes

    def get(self, key: Hashable) -> V | None:
        """The value, now the most recently used, or None."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
        if self._meters is not None and self._meters.is_on:
            self._meters.add(CACHE_LOOKUPS, 1, self._name, "miss" if entry is None else "hit")
        return None if entry is None else entry[0]

    def put(self, key: Hashable, value: V, size_bytes: int) -> V:
        """Cache and return `value`; one larger than the whole bound is returned uncached."""
        if size_bytes > self._limit_bytes:
            return value
        with self._lock:
            held = self._entries.get(key)
            # No call between a change of the map and its size: an interrupt comes in calls (F-16).
            self._entries[key] = (value, size_bytes)
            self._bytes += size_bytes - (0 if held is None else held[1])
            self._entries.move_to_end(key)
            while self._bytes > self._limit_bytes:
                self._remove(next(iter(self._entries)))
        return value

    def get_or_make(self, key: Hashable, make: Callable[[], V], size: Callable[[V], int]) -> V:
        """The cached value, or a new one that is made and cached."""
        found = self.get(key)
        if found is not None:
            return found
        made = make()
        return self.put(key, made, size(made))

    def drop(self, key: Hashable) -> None:
        """Forget one value."""
        with self._lock:
            if key in self._entries:
                self._remove(key)

    def _remove(self, key: Hashable) -> None:
        _, size = self._entries[key]
        del self._entries[key]
        self._bytes -= size
