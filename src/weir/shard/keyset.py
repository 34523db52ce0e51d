"""The keys a merge has already seen, and a fast answer to which keys of a batch are new.

Integer keys: a table of hashed slots, each remembering the last key that fell on it, and before it
one byte a slot that fits the processor's cache; keys that lost their slot are few, and kept sorted.
Under 10 ns a key at any batch size. Others go through Arrow's `is_in`, which builds a hash table
at each call: hand over large batches. docs/design/0001-merge-engine.md has the figures.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from weir.format.columns import fixed_values

Mask = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.int64]

_SLOTS_PER_KEY: Final = 8
_SLOT_BITS_MIN: Final = 12
_SLOT_BITS_MAX: Final = 26
"""At most 320 MiB of slots; with more than 8 million keys more of them lose their slot."""
_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)


class KeySet:
    """A growing set of keys of one type, without nulls. One thread at a time."""

    def __init__(self, dtype: pa.DataType) -> None:
        is_integer = pa.types.is_integer(dtype) or pa.types.is_boolean(dtype)
        self._integers = _Integers() if is_integer else None
        self._values: list[pa.Array] = []
        self._count = 0

    def __len__(self) -> int:
        """At least the number of different keys."""
        return self._count

    @property
    def wants_large_batches(self) -> bool:
        """True when `new` costs a fixed amount per call that only many keys make up for."""
        return self._integers is None and self._count > 0

    def add(self, keys: pa.Array) -> None:
        """Take keys in; one that is there already does no harm."""
        if len(keys) == 0:
            return
        self._count += len(keys)
        if self._integers is not None:
            self._integers.add(_codes(keys))
            return
        self._values.append(keys)
        # Few sets, each several times as large as the next: a key is copied O(log n) times.
        while len(self._values) > 1 and len(self._values[-2]) < 4 * len(self._values[-1]):
            self._values[-2:] = [pa.concat_arrays(self._values[-2:])]

    def new(self, keys: pa.Array | pa.ChunkedArray) -> Mask | None:
        """True for each key that is not in the set; None when that is all of them."""
        if self._count == 0 or len(keys) == 0:
            return None
        if self._integers is not None:
            array = keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys
            return self._integers.new(_codes(array))
        old = np.zeros(len(keys), np.bool_)
        for values in self._values:
            found = pc.is_in(keys, value_set=values)
            old |= found.to_numpy(zero_copy_only=False)
        return ~old if old.any() else None


class _Integers:
    """The set for whole numbers of any width."""

    def __init__(self) -> None:
        self._keys: Codes = np.empty(0, np.int64)
        self._count = 0
        self._lost: list[Codes] = []
        self._resize(_SLOT_BITS_MIN)

    def add(self, codes: Codes) -> None:
        first = self._count
        self._reserve(len(codes))
        self._keys[first : self._count] = codes
        bits = (self._count * _SLOTS_PER_KEY).bit_length()
        if min(bits, _SLOT_BITS_MAX) > self._bits:
            self._resize(min(bits, _SLOT_BITS_MAX))
            first = 0
        self._settle(first)

    def _settle(self, first: int) -> None:
        """Give every key from `first` on its slot; whoever loses one is remembered apart."""
        codes = self._keys[first : self._count]
        slots = self._slot(codes)
        before = self._table[slots]
        pushed = before[(before >= 0) & (self._keys[before] != codes)]
        self._table[slots] = np.arange(first, self._count, dtype=np.int32)
        self._used[slots] = True
        beaten = codes[self._keys[self._table[slots]] != codes]
        lost = np.concatenate([self._keys[pushed], beaten])
        if len(lost):
            lost.sort()
            self._lost = _merged([*self._lost, lost])

    def new(self, codes: Codes) -> Mask | None:
        slots = self._slot(codes)
        candidates = np.flatnonzero(self._used.take(slots, mode="clip"))
        if len(candidates) == 0:
            return None
        values = codes.take(candidates, mode="clip")
        holders = self._table.take(slots.take(candidates, mode="clip"), mode="clip")
        seen = self._keys.take(holders, mode="clip") == values
        for lost in self._lost:
            rest = np.flatnonzero(~seen)
            wanted = values[rest]
            places = np.searchsorted(lost, wanted)
            places[places == len(lost)] = 0
            seen[rest] = lost[places] == wanted
        if not seen.any():
            return None
        mask = np.ones(len(codes), np.bool_)
        mask[candidates[seen]] = False
        return mask

    def _slot(self, codes: Codes) -> Codes:
        spread = (codes.view(np.uint64) * _SPREAD) >> np.uint64(64 - self._bits)
        return spread.view(np.int64)

    def _resize(self, bits: int) -> None:
        self._bits = bits
        self._used: Mask = np.zeros(1 << bits, np.bool_)
        self._table = np.full(1 << bits, -1, np.int32)
        self._lost = []

    def _reserve(self, more: int) -> None:
        self._count += more
        assert self._count < 2**31, "a table of slots numbers its keys with 31 bits"
        if self._count > len(self._keys):
            larger = np.empty(max(self._count, 2 * len(self._keys)), np.int64)
            larger[: len(self._keys)] = self._keys
            self._keys = larger


def _codes(keys: pa.Array) -> Codes:
    if pa.types.is_boolean(keys.type):
        keys = keys.cast(pa.int8())
    values = fixed_values(keys, keys.type.to_pandas_dtype())
    return values.view(np.int64) if values.dtype.itemsize == 8 else values.astype(np.int64)


def _merged(tiers: list[Codes]) -> list[Codes]:
    """Few sorted tiers, each at least twice as large as the next."""
    while len(tiers) > 1 and len(tiers[-2]) < 2 * len(tiers[-1]):
        tiers[-2:] = [np.sort(np.concatenate(tiers[-2:]), kind="stable")]
    return tiers
