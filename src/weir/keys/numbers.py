"""Keys as integers, and a growing set of them, for tables whose key is one integer column.

Keys that lie close together, as counters do, take a byte each in one array: two million are looked
up in 4 ms. Other keys share a table of slots (`weir.keys.slots`), which takes twice as long to
search and about ten times as long to fill.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.format.columns import fixed_values
from weir.keys.slots import Codes, SlotTable

_SPAN_MAX: Final = 1 << 26
"""Limit on the bytes of a row, and so on the distance from its smallest to its largest number."""
_SPAN_PER_NUMBER: Final = 64
_SPAN_MIN: Final = 1 << 16
_LEAST, _MOST = -(2**63), 2**63 - 1
_HASHED_AT_ONCE: Final = 8192
"""Keys that become Python objects together: a conversion holds Python's global lock."""


def is_whole(dtype: pa.DataType) -> bool:
    """Whether keys of this type are treated as integers."""
    return bool(pa.types.is_integer(dtype) or pa.types.is_boolean(dtype))


def codes_of(keys: pa.Array) -> Codes:
    """Keys as 64-bit integers, the same for equal keys: whole numbers as they are, all others by
    Python's own hash. That is secret to this process, so nobody can choose keys that collide."""
    if not is_whole(keys.type):
        return _hashes(keys.cast(pa.large_binary()))
    if pa.types.is_boolean(keys.type):
        keys = keys.cast(pa.int8())
    values = fixed_values(keys, keys.type.to_pandas_dtype())
    return values.view(np.int64) if values.dtype.itemsize == 8 else values.astype(np.int64)


def _hashes(keys: pa.LargeBinaryArray) -> Codes:
    starts = range(0, len(keys), _HASHED_AT_ONCE)
    values = chain.from_iterable(keys.slice(at, _HASHED_AT_ONCE).to_pylist() for at in starts)
    return np.fromiter(map(hash, values), np.int64, len(keys))


class NumberSet:
    """A growing set; one thread at a time while it grows. `expected` is its size, if known."""

    def __init__(self, expected: int = 0) -> None:
        self._expected = expected
        self._count = 0
        self._row: _DenseRange | None = None
        self._slots: SlotTable | None = None

    def __len__(self) -> int:
        """At least the number of different numbers."""
        return self._count

    def add(self, codes: Codes) -> None:
        """Add numbers; adding a number twice is harmless."""
        if len(codes) == 0:
            return
        self._count += len(codes)
        if self._slots is None:
            row = _row_over(self._row, codes, self._span_allowed())
            if row is not None:
                self._row = row
                row.add(codes)
                return
            self._slots = SlotTable(self._expected)
            if self._row is not None:
                self._slots.add(self._row.numbers())
                self._row = None
        self._slots.add(codes)

    def find(self, codes: Codes) -> Codes:
        """Positions in `codes` of the numbers that are in the set, ascending."""
        if self._row is not None:
            return self._row.find(codes)
        if self._slots is not None:
            return self._slots.find(codes)
        return np.zeros(0, np.int64)

    def _span_allowed(self) -> int:
        return min(_SPAN_MAX, max(_SPAN_MIN, _SPAN_PER_NUMBER * max(self._count, self._expected)))


@dataclass(frozen=True)
class _DenseRange:
    """A byte for every number from `low` up to `end`, and one on each side that is never set."""

    low: int
    used: npt.NDArray[np.bool_]

    @property
    def end(self) -> int:
        return self.low + len(self.used) - 2

    def add(self, codes: Codes) -> None:
        self.used[codes - np.int64(self.low) + 1] = True

    def find(self, codes: Codes) -> Codes:
        # The difference wraps around, so every number outside is clipped to one of those two bytes.
        places = codes - np.int64(self.low) + 1
        return np.flatnonzero(self.used.take(places, mode="clip"))

    def numbers(self) -> Codes:
        return np.flatnonzero(self.used[1:-1]) + np.int64(self.low)


def _row_over(row: _DenseRange | None, codes: Codes, span_allowed: int) -> _DenseRange | None:
    """A row with room for `codes` as well, or None when the numbers lie too far apart."""
    low, high = int(codes.min()), int(codes.max())
    if row is not None:
        if row.low <= low and high < row.end:
            return row
        low, high = min(low, row.low), max(high, row.end - 1)
    size = high - low + 1
    if size > span_allowed:
        return None
    if row is None:
        return _DenseRange(low, np.zeros(size + 2, np.bool_))
    # Leave room on both sides, so that steadily rising numbers do not move the row every time.
    spare = min(size, span_allowed - size) // 2
    low, high = max(low - spare, _LEAST), min(high + spare, _MOST)
    used = np.zeros(high - low + 3, np.bool_)
    first = row.low - low + 1
    used[first : first + len(row.used) - 2] = row.used[1:-1]  # guard: M-1 test_numbers
    return _DenseRange(low, used)
