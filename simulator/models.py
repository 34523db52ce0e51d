"""Small models of a protocol, all of whose interleavings are explored: what they share.

A state is a value, and a step is one request of one process to the store. A process that dies is
one that is not scheduled any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

S = TypeVar("S", bound=Hashable)


class Broken(Exception):
    """A property does not hold; `trace` has the steps that lead there."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name
        self.trace: list[str] = []


def visit_all(
    start: S,
    steps: Callable[[S], Iterable[tuple[str, S]]],
    check: Callable[[S], None],
    states_max: int,
) -> int:
    """Visit every reachable state and return their number, or raise `Broken` with its trace.

    `steps` gives the states that one step leads to, with the step's name.
    """
    came_from: dict[S, tuple[S | None, str]] = {start: (None, "start")}
    todo = [start]
    while todo:
        state = todo.pop()
        try:
            for name, after in steps(state):
                if after in came_from:
                    continue
                came_from[after] = (state, name)
                try:
                    check(after)
                except Broken as broken:
                    broken.trace = _trace(came_from, after)
                    raise
                todo.append(after)
        except Broken as broken:
            broken.trace = broken.trace or _trace(came_from, state)
            raise
        if len(came_from) > states_max:
            raise OverflowError(f"more than {states_max} states; use smaller bounds")
    return len(came_from)


def _trace(came_from: dict[S, tuple[S | None, str]], state: S) -> list[str]:
    names: list[str] = []
    at: S | None = state
    while at is not None:
        at, name = came_from[at]
        names.append(name)
    return names[::-1]


def report(explore: Callable[[], int]) -> int:
    """Explore and print what was found, for a command: 1 if a property is broken."""
    began = time.perf_counter()
    try:
        states = explore()
    except Broken as broken:
        print(f"BROKEN {broken}")
        print("\n".join(f"  {i:3} {name}" for i, name in enumerate(broken.trace)))
        return 1
    print(f"{states} states, no property broken, {time.perf_counter() - began:.1f} s")
    return 0
