"""The keys a merge has already seen, and a fast answer to which keys of a batch are new.

Integer keys: a table of hashed slots sends most keys on their way with one lookup; only those
that hit it are searched for among the sorted keys, 18 ns a key at any batch size. Every other key
goes through Arrow's `is_in`, which builds a hash table at each call: hand over large batches.
docs/design/0001-merge-engine.md has the measurements.
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

_SLOTS_PER_KEY: Final = 16
_SLOT_BITS_MIN: Final = 12
_SLOT_BITS_MAX: Final = 26
"""At most 64 MiB of slots; with more keys than that more of them are searched for."""
_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)


class KeySet:
    """A growing set of keys of one type, without nulls. One thread at a time."""

    def __init__(self, dtype: pa.DataType) -> None:
        self._is_integer = pa.types.is_integer(dtype) or pa.types.is_boolean(dtype)
        self._tiers: list[Codes] = []
        self._values: list[pa.Array] = []
        self._count = 0
        self._bits = 0
        self._slots: Mask = np.zeros(0, np.bool_)

    def __len__(self) -> int:
        return self._count

    @property
    def wants_large_batches(self) -> bool:
        """True when `new` costs a fixed amount per call that only many keys make up for."""
        return not self._is_integer and self._count > 0

    def add(self, keys: pa.Array) -> None:
        """Take keys in; one that is there already does no harm."""
        if len(keys) == 0:
            return
        self._count += len(keys)
        if not self._is_integer:
            self._values = _merged_values([*self._values, keys])
            return
        codes = np.sort(_codes(keys))
        self._tiers = _merged_tiers([*self._tiers, codes])
        wanted = min(
            max((self._count * _SLOTS_PER_KEY).bit_length(), _SLOT_BITS_MIN), _SLOT_BITS_MAX
        )
        if wanted > self._bits:
            self._bits = wanted
            self._slots = np.zeros(1 << wanted, np.bool_)
            for tier in self._tiers:
                self._slots[self._slot(tier)] = True
        else:
            self._slots[self._slot(codes)] = True

    def new(self, keys: pa.Array | pa.ChunkedArray) -> Mask | None:
        """True for each key that is not in the set; None when that is all of them."""
        if self._count == 0 or len(keys) == 0:
            return None
        if self._is_integer:
            return self._new_integers(keys)
        old = np.zeros(len(keys), np.bool_)
        for values in self._values:
            found = pc.is_in(keys, value_set=values)
            old |= found.to_numpy(zero_copy_only=False)
        return ~old if old.any() else None

    def _new_integers(self, keys: pa.Array | pa.ChunkedArray) -> Mask | None:
        codes = _codes(keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys)
        candidates = np.flatnonzero(self._slots[self._slot(codes)])
        if len(candidates) == 0:
            return None
        values = codes[candidates]
        seen = np.zeros(len(values), np.bool_)
        for tier in self._tiers:
            places = np.searchsorted(tier, values)
            places[places == len(tier)] = 0
            seen |= tier[places] == values
        if not seen.any():
            return None
        mask = np.ones(len(codes), np.bool_)
        mask[candidates[seen]] = False
        return mask

    def _slot(self, codes: Codes) -> npt.NDArray[np.uint64]:
        return (codes.view(np.uint64) * _SPREAD) >> np.uint64(64 - self._bits)


def _codes(keys: pa.Array) -> Codes:
    if pa.types.is_boolean(keys.type):
        keys = keys.cast(pa.int8())
    values = fixed_values(keys, keys.type.to_pandas_dtype())
    return values.view(np.int64) if values.dtype.itemsize == 8 else values.astype(np.int64)


def _merged_tiers(tiers: list[Codes]) -> list[Codes]:
    """Few tiers, each at least twice as large as the next: every key is sorted O(log n) times."""
    while len(tiers) > 1 and len(tiers[-2]) < 2 * len(tiers[-1]):
        tiers[-2:] = [np.sort(np.concatenate(tiers[-2:]), kind="stable")]
    return tiers


def _merged_values(values: list[pa.Array]) -> list[pa.Array]:
    while len(values) > 1 and len(values[-2]) < 4 * len(values[-1]):
        values[-2:] = [pa.concat_arrays(values[-2:])]
    return values
