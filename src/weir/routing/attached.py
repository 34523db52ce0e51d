"""What the layers above remember with a table handle: one object of each type, made when asked."""

from __future__ import annotations

from typing import Protocol, TypeVar

from weir.env import Env


class Attachable(Protocol):
    """A type whose objects belong to one handle."""

    def __init__(self, env: Env) -> None:
        """Begin with nothing remembered."""


A = TypeVar("A", bound=Attachable)


class Attached:
    """The objects of one handle. Safe to share between threads."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._lock = env.threads.lock()
        self._held: dict[type[Attachable], Attachable] = {}

    def of(self, kind: type[A]) -> A:
        """The handle's object of that type."""
        found = self._held.get(kind)
        if isinstance(found, kind):
            return found
        with self._lock:
            found = self._held.get(kind)
            if not isinstance(found, kind):
                found = self._held[kind] = kind(self._env)
            return found
