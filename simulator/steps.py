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
