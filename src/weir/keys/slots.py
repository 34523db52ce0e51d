"""A set of integers that looks up two million of them in a hundredth of a second.

A table of hash slots, each holding the last number that hashed to it. A byte per slot, which fits
the processor's cache, is checked first. Numbers that lost their slot are few, and kept sorted.
Under 10 ns a number at any batch size. docs/design/0001-merge-engine.md has the figures.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.int64]

_SLOTS_PER_KEY: Final = 8
_SLOT_BITS_MIN: Final = 12
_SLOT_BITS_MAX: Final = 26
"""At most 320 MiB of slots; with more than 8 million keys more of them lose their slot."""
_EXPECTED_MAX: Final = 1 << 20
"""Room is reserved for at most this many numbers (50 MB): how many are equal is unknown."""
_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)


class SlotTable:
    """A growing set of numbers. One thread at a time while it grows.

    `expected` is how many will come, if known; each doubling assigns all slots anew.
    """

    def __init__(self, expected: int = 0) -> None:
        expected = min(expected, _EXPECTED_MAX)
        # Positions count from 1, so that the zeroed pages of a new table are empty slots.
        self._keys: Codes = np.empty(expected + 1, np.int64)
        self._end = 1
        self._lost: list[Codes] = []
        self._resize(_bits_for(expected))

    def __len__(self) -> int:
        """At least the number of different numbers."""
        return self._end - 1

    def add(self, codes: Codes) -> None:
        """Add numbers; adding a number twice is harmless."""
        first = self._end
        self._reserve(len(codes))
        self._keys[first : self._end] = codes
        bits = _bits_for(self._end)
        if bits > self._bits:
            self._resize(bits)
            first = 1
        self._assign_slots(first)

    def _assign_slots(self, first: int) -> None:
        """Assign slots to the keys from `first` on; keys that lose theirs are kept separately."""
        codes = self._keys[first : self._end]
        slots = self._slot(codes)
        before = self._table[slots]
        pushed = before[(before > 0) & (self._keys[before] != codes)]
        self._table[slots] = np.arange(first, self._end, dtype=np.int32)
        self._used[slots] = True
        beaten = codes[self._keys[self._table[slots]] != codes]
        lost = np.concatenate([self._keys[pushed], beaten])
        if len(lost):
            lost.sort()
            self._lost = _merged([*self._lost, lost])

    def find(self, codes: Codes) -> Codes:
        """Positions in `codes` of the numbers that are in the set, ascending."""
        slots = self._slot(codes)
        candidates = np.flatnonzero(self._used.take(slots, mode="clip"))
        if len(candidates) == 0:
            return candidates
        values = codes.take(candidates, mode="clip")
        holders = self._table.take(slots.take(candidates, mode="clip"), mode="clip")
        seen = self._keys.take(holders, mode="clip") == values
        for lost in self._lost:
            rest = np.flatnonzero(~seen)
            wanted = values[rest]
            places = np.searchsorted(lost, wanted)
            places[places == len(lost)] = 0
            seen[rest] = lost[places] == wanted
        found: Codes = candidates[seen]
        return found

    def _slot(self, codes: Codes) -> Codes:
        spread = (codes.view(np.uint64) * _SPREAD) >> np.uint64(64 - self._bits)
        return spread.view(np.int64)

    def _resize(self, bits: int) -> None:
        self._bits = bits
        self._used = np.zeros(1 << bits, np.bool_)
        self._table = np.zeros(1 << bits, np.int32)
        self._lost = []

    def _reserve(self, more: int) -> None:
        self._end += more
        assert self._end < 2**31, "a table of slots numbers its keys with 31 bits"
        if self._end > len(self._keys):
            larger = np.empty(max(self._end, 2 * len(self._keys)), np.int64)
            larger[: len(self._keys)] = self._keys
            self._keys = larger


def _bits_for(count: int) -> int:
    return min(max((count * _SLOTS_PER_KEY).bit_length(), _SLOT_BITS_MIN), _SLOT_BITS_MAX)


def _merged(tiers: list[Codes]) -> list[Codes]:
    """Few sorted tiers, each at least twice as large as the next."""
    while len(tiers) > 1 and len(tiers[-2]) < 2 * len(tiers[-1]):
        tiers[-2:] = [np.sort(np.concatenate(tiers[-2:]), kind="stable")]
    return tiers
