"""When a record lets go: what every record of a checkpoint and of a consumer says of its end.

The newest record of the chain counts. An end is appended like any other record, so that whoever
refreshes and whoever ends race for one number and exactly one of them wins (G-2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Lifetime:
    """Until when a chain holds what it names."""

    expires: float | None = None
    """Seconds since 1970 by the store's clock; None: for good."""
    deleted: bool = False

    def over(self, now: float) -> bool:
        """True when its time is up, whether or not somebody said so."""
        return self.expires is not None and self.expires <= now


def load_lifetime(raw: Mapping[str, Any]) -> Lifetime:
    """The end as a record says it; `ValueError` when it says no time."""
    expires = raw.get("expires")
    if expires is not None and (isinstance(expires, bool) or not isinstance(expires, int | float)):
        raise ValueError(f"it expires at {expires!r}")
    return Lifetime(None if expires is None else float(expires), raw.get("deleted") is True)


def dump_end(reason: str) -> dict[str, Any]:
    """The values of the record that ends a chain."""
    return {"deleted": True, "reason": reason}
