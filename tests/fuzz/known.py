"""Faults that are known and not mended yet: what histories avoid because of them.

An empty dictionary is the aim. Take a fault out when it is mended, and run `make fuzz`.
"""

KNOWN: dict[str, str] = {}


def avoids(handle: str) -> bool:
    """True while that fault is on the list."""
    return handle in KNOWN
