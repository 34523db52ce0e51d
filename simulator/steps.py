"""Stopping an operation between two of its steps, with the failpoints of its environment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

T = TypeVar("T")


def watched(thing: T, operations: str | tuple[str, ...], hook: Callable[[str], object]) -> T:
    """The same core, site or target, whose operations call `hook` with the name of each step.

    Steps of other operations that run inside are ignored. At "compact.committed", a hook on
    "compact" gets "committed".
    """
    wanted = (operations,) if isinstance(operations, str) else operations

    def failpoint(step: str) -> None:
        operation, _, name = step.partition(".")
        if operation in wanted:
            hook(name)

    held: Any = thing
    found: T = replace(held, env=replace(held.env, failpoint=failpoint))
    return found


class Died(BaseException):
    """The end of a process, which nothing catches."""


def dies_at(step: str, times: int = 1) -> Callable[[str], None]:
    """A failpoint, or a hook of `watched`, that ends the process there, when it comes there for the
    nth time; "sealed" is every step called "sealed SHARD"."""
    left = [times]

    def hook(reached: str) -> None:
        if reached.partition(" ")[0] == step:
            left[0] -= 1
            if not left[0]:
                raise Died(step)

    return hook
