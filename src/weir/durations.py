"""Durations as people write them: seconds, timedelta, or text such as "90", "15m" and "7d"."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from weir.errors import InvalidInput

if TYPE_CHECKING:
    from weir.env import Clock

Duration = float | int | str | timedelta

_LONGEST: Final = 1e9
"""Seconds that every lock of the system can wait; nobody waits longer."""

_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w|)\s*")


def check_timeout(timeout: object) -> float | None:
    """The timeout in seconds, None for no limit; `InvalidInput` for anything else."""
    if timeout is None or timeout == math.inf:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or math.isnan(timeout):
        raise InvalidInput(f"timeout: expected a number of seconds, or None, got {timeout!r}")
    return min(max(float(timeout), 0.0), _LONGEST)


def deadline_after(timeout: float | None, clock: Clock) -> float | None:
    """When the timeout will have passed, by that clock; None: never."""
    checked = None if timeout is None else check_timeout(timeout)
    return None if checked is None else clock.boottime() + checked


def seconds_until(deadline: float | None, clock: Clock) -> float | None:
    """How long a call with that deadline may still wait; None: for ever."""
    return None if deadline is None else max(0.0, deadline - clock.boottime())


def seconds(value: Duration, *, name: str = "duration") -> float:
    """The duration in seconds; `InvalidInput` names the argument when it is negative or not
    understood."""
    if isinstance(value, float):
        result = value
    elif isinstance(value, timedelta):
        result = value.total_seconds()
    elif isinstance(value, bool):
        raise InvalidInput(
            f"{name}: expected seconds, a timedelta or text such as '15m', got {value!r}"
        )
    elif isinstance(value, int):
        result = float(value) if abs(value) < sys.maxsize else math.inf
    else:
        match = _TEXT.fullmatch(str(value))
        if match is None:
            raise InvalidInput(
                f"{name}: expected seconds, a timedelta or text such as '15m', got {value!r}"
            )
        result = float(match.group(1)) * _UNITS[match.group(2)]
    if not 0 <= result < float("inf"):
        raise InvalidInput(f"{name}: must be zero or more and finite, got {value!r}")
    return result


def check_durations(settings: object, *names: str, optional: Sequence[str] = ()) -> None:
    """`InvalidInput` names the first of those fields that is no duration; the optional ones may be
    None."""
    for name in (*names, *optional):
        value = getattr(settings, name)
        if value is not None or name in names:
            seconds(value, name=f"{type(settings).__name__}.{name}")
