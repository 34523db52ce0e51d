"""The positions of keys in a list, found without Python objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from weir.format.keys import pk_values
from weir.keys.numbers import codes_of, is_whole
from weir.keys.slots import Codes

Positions = npt.NDArray[np.int64]

_NOWHERE: Final[Positions] = np.zeros(0, np.int64)
_OBJECT_BYTES: Final = 512
"""Rough memory cost of an index beyond its arrays."""


def rows_of_keys(rows: pa.Table, keys: pa.Table, names: Sequence[str]) -> pa.Table:
    """The rows whose key is one of `keys`."""
    return rows.filter(pc.is_in(pk_values(rows, names), value_set=pk_values(keys, names)))


class KeyIndex:
    """The position of each key in a list. Immutable.

    Integers are sorted by value, all other keys by their 64-bit hash, so an index takes 16 bytes a
    key whatever the keys are. Two keys may share a hash: `find` returns candidates, and the caller
    compares the key of the row it fetched.
    """

    def __init__(self, keys: pa.Array) -> None:
        codes = codes_of(keys)
        self._order: Positions | None = None
        if len(codes) > 1 and not bool((codes[:-1] <= codes[1:]).all()):
            self._order = np.argsort(codes, kind="stable")
            codes = codes[self._order]
        self._codes = codes

    def __len__(self) -> int:
        return len(self._codes)

    @staticmethod
    def is_exact(dtype: pa.DataType) -> bool:
        """Whether `find` returns only exact matches, not candidates."""
        return is_whole(dtype)

    @property
    def nbytes(self) -> int:
        """Memory held."""
        order_bytes = 0 if self._order is None else self._order.nbytes
        return self._codes.nbytes + order_bytes + _OBJECT_BYTES

    def find(self, keys: pa.Array) -> Positions:
        """Positions that may hold one of `keys`, ascending and distinct; no match is missing."""
        return self.find_codes(codes_of(keys))

    def find_codes(self, codes: Codes) -> Positions:
        """`find` for keys whose `codes_of` is known."""
        if not len(self._codes):
            return _NOWHERE
        first = self._codes.searchsorted(codes)
        hit = self._codes.take(first, mode="clip") == codes
        if not hit.any():
            return _NOWHERE  # the common case: a key is in few of the indexes searched
        end = self._codes.searchsorted(codes[hit], side="right")
        unique: Positions = np.unique(self._positions(first[hit], end))
        return unique

    def _positions(self, first: Positions, end: Positions) -> Positions:
        if bool((end - first == 1).all()):
            places = first
        else:
            places = np.concatenate([np.arange(a, b) for a, b in zip(first, end, strict=True)])
        found = places if self._order is None else self._order[places]
        return found.astype(np.int64)
