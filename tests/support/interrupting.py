"""Interrupts at chosen points of one call, and at every one of them: see `tests.interrupts`."""

import re
from collections.abc import Callable

from tests.interrupts.points import Points

Scenario = Callable[[Points], None]
"""Makes the call within `with points`, which raises `KeyboardInterrupt`, and judges afterwards."""


def interrupt_each(scenario: Scenario, at: str) -> int:
    """Run the scenario once for each point whose way (innermost function first) holds the regular
    expression `at`; return how often it was interrupted."""
    free = Points("-")
    scenario(free)
    waiting, tried = dict(free.passed), set[str]()
    interrupted = 0
    while waiting:
        name, way = waiting.popitem()
        if name in tried or not re.search(at, way):
            continue
        tried.add(name)
        points = Points(name)
        scenario(points)
        interrupted += points.raised
        waiting |= points.passed  # with an interrupt a call may take another way
    return interrupted
