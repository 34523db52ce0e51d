"""The pylance versions weir works with: those whose bytes and calls `make interop` has proven.

Lance releases a major version every few weeks, and its MemTable & WAL format is marked
experimental. An untested version is refused before a table is touched, rather than discovered
half-way through a write (X-8).
"""

from __future__ import annotations

import re

import lance

from weir.errors import InvalidInput

RANGE: tuple[tuple[int, int], tuple[int, int]] = ((14, 0), (14, 1))
"""From the first, up to but not including the second; as in pyproject.toml."""


def require_supported(version: str = lance.__version__) -> None:
    """Raise `InvalidInput` for a pylance that was not tested with this release."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    found = None if numbers is None else (int(numbers[1]), int(numbers[2]))
    first, end = RANGE
    if found is None or not first <= found < end:
        wanted = f"pylance>={first[0]}.{first[1]},<{end[0]}.{end[1]}"
        raise InvalidInput(
            f"pylance {version} is installed, but this release of weir supports {wanted}. Run"
            f" pip install '{wanted}'. Nothing was read or written"
        )
