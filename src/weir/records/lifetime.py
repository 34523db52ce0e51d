"""Lifetimes: the part of every checkpoint and consumer record that says when its hold ends.

The newest record of the chain counts. An end is appended like any other record, so a refresh and
an end race for one number and exactly one of them wins (G-2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Lifetime:
    """How long a chain holds what it names."""

    expires: float | None = None
    """Seconds since 1970 by the store's clock; None: never."""
    deleted: bool = False

    def over(self, now: float) -> bool:
        """True when it has expired, whether or not a record has ended it."""
        return self.expires is not None and self.expires <= now


def load_lifetime(raw: Mapping[str, Any]) -> Lifetime:
    """The lifetime in a record; `ValueError` when its expiry is not a number."""
    expires = raw.get("expires")
    if expires is not None and (isinstance(expires, bool) or not isinstance(expires, int | float)):
        raise ValueError(f"its expiry time {expires!r} is not a number")
    return Lifetime(None if expires is None else float(expires), raw.get("deleted") is True)


def dump_end(reason: str) -> dict[str, Any]:
    """The values of the record that ends a chain."""
    return {"deleted": True, "reason": reason}
