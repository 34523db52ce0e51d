"""A number that only rises, kept as create-only marks whose maximum counts (G-8).

A mark's name counts down from 2**64-1, so the highest number comes first in a listing.
Nothing is overwritten or cached: of two concurrent raises both succeed, and the higher one counts.
"""

from __future__ import annotations

import contextlib
from typing import Final

from weir.errors import InvalidInput
from weir.format import paths
from weir.store.api import ObjectExists, Store

MARKS_KEPT: Final = 2
"""The second highest stays, so that a listing beside a raise and a trim still finds a mark."""
_TOP = paths.U64_MAX


class Marks:
    """The marks in one folder."""

    def __init__(self, store: Store, directory: str) -> None:
        self._store = store
        self._directory = directory.rstrip("/")

    def highest(self) -> int | None:
        """The highest number ever raised to, or None: one list, every time."""
        numbers = self._numbers()
        return numbers[0] if numbers else None

    def raise_to(self, n: int) -> None:
        """Make `n` count if it is the highest; otherwise change nothing. One put."""
        if not 0 <= n <= _TOP:
            raise InvalidInput(f"a mark is a number from 0 to 2**64-1, not {n}")
        # An existing mark is as good as ours, whoever made it.
        with contextlib.suppress(ObjectExists):
            self._store.put_if_absent(self._path(n), b"")

    def trim(self) -> int:
        """Delete all but the highest two and return how many; the maximum never changes."""
        old = self._numbers()[MARKS_KEPT:]
        if old:
            self._store.delete([self._path(n) for n in old])
        return len(old)

    def _numbers(self) -> list[int]:
        _, objects = self._store.list_folder(self._directory)
        numbers = (paths.parse_mark_name(meta.path.rpartition("/")[2]) for meta in objects)
        return sorted((n for n in numbers if n is not None), reverse=True)

    def _path(self, n: int) -> str:
        return paths.mark_path(self._directory, n)
