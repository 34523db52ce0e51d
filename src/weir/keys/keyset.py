"""A set of keys that tells which keys of a batch are new and which are known.

Scans, counts, compaction and overwrites all merge with it. Integers go through a `SlotTable`, at
any batch size. Other keys go through Arrow's `is_in`, which builds a hash table at each call (so
pass large batches), or, for many small queries of a set that no longer grows, through their sorted
hashes. docs/design/0001-merge-engine.md has the figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from weir.format.keys import pk_values
from weir.keys.index import Positions
from weir.keys.numbers import codes_of, is_whole
from weir.keys.slots import SlotTable

GATHER_BYTES: Final = 64 << 20
GATHER_ROWS: Final = 1 << 20
"""Limits of a gathered group, where one large batch costs less than many (text keys, filters)."""

Mask = npt.NDArray[np.bool_]


class KeySet:
    """A growing set of keys of one type, without nulls. One thread at a time.

    `expected` is the number of keys to come, if known; more may come.
    """

    def __init__(self, dtype: pa.DataType, expected: int = 0) -> None:
        self._numbers = SlotTable(expected) if is_whole(dtype) else None
        self._values: list[pa.Array] = []
        self._hashed: _HashedKeys | None = None
        self._count = 0

    @classmethod
    def of(cls, parts: Iterable[pa.Array], dtype: pa.DataType, expected: int = 0) -> KeySet:
        """The set of these keys; arrays of integers are not retained."""
        keys = cls(dtype, expected)
        for part in parts:
            keys.add(part)
        return keys

    def __len__(self) -> int:
        """At least the number of different keys."""
        return self._count

    @property
    def wants_large_batches(self) -> bool:
        """True when `new` has a fixed cost per call that only large batches amortize."""
        return self._numbers is None and self._count > 0

    def add(self, keys: pa.Array) -> None:
        """Add keys; adding a key twice is harmless."""
        if len(keys) == 0:
            return
        self._count += len(keys)
        if self._numbers is not None:
            self._numbers.add(codes_of(keys))
            return
        self._values.append(keys)
        self._hashed = None
        # Keep few arrays, each several times as large as the next: O(log n) copies of a key.
        while len(self._values) > 1 and len(self._values[-2]) < 4 * len(self._values[-1]):
            self._values[-2:] = [pa.concat_arrays(self._values[-2:])]

    def find(self, keys: pa.Array) -> Positions:
        """Positions in `keys` of the keys that are in the set, ascending.

        For complete sets: with text keys, the sorted hashes are rebuilt after an `add`.
        """
        if self._numbers is not None:
            return self._numbers.find(codes_of(keys))
        if not self._values:
            return np.zeros(0, np.int64)
        if self._hashed is None:
            self._hashed = _HashedKeys(pa.concat_arrays(self._values))
        return self._hashed.find(keys)

    def new(self, keys: pa.Array | pa.ChunkedArray) -> Mask | None:
        """True for each key that is not in the set; None when that is all of them."""
        if self._count == 0 or len(keys) == 0:
            return None
        if self._numbers is not None:
            array = keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys
            found = self._numbers.find(codes_of(array))
            if len(found) == 0:
                return None
            new = np.ones(len(array), np.bool_)
            new[found] = False
            return new
        old = np.zeros(len(keys), np.bool_)
        for values in self._values:
            found = pc.is_in(keys, value_set=values)
            old |= found.to_numpy(zero_copy_only=False)
        return ~old if old.any() else None


class _HashedKeys:
    """Text and binary keys, sorted by their 64-bit hash: 16 bytes a key on top of the keys."""

    def __init__(self, keys: pa.Array) -> None:
        self._keys = keys
        codes = codes_of(keys)
        self._order: Positions = np.argsort(codes, kind="stable")
        self._codes = codes[self._order]
        self._has_ties = bool((self._codes[:-1] == self._codes[1:]).any())

    def find(self, keys: pa.Array) -> Positions:
        """Positions in `keys` of the keys that are in the set, ascending."""
        if len(self._codes) == 0:
            return np.zeros(0, np.int64)
        codes = codes_of(keys)
        first = np.searchsorted(self._codes, codes, side="left")
        first[first == len(self._codes)] = 0
        (at,) = np.nonzero(self._codes[first] == codes)
        if len(at) == 0:
            return at
        # Equal hashes are only a strong hint; a wrong hit would hide a row that must stay.
        asked = keys.take(pa.array(at))
        ours = self._keys.take(pa.array(self._order[first[at]]))
        same = pc.equal(ours, asked).to_numpy(zero_copy_only=False)
        if self._has_ties and not same.all():
            same = same | pc.is_in(asked, value_set=self._keys).to_numpy(zero_copy_only=False)
        found: Positions = at[same]
        return found


def unseen(
    batches: Iterable[pa.RecordBatch], seen: KeySet, key: Sequence[str]
) -> Iterator[tuple[pa.RecordBatch, pa.Array, Mask | None]]:
    """For each batch: the rows whose key is not in `seen`, all keys, and a mask of the unseen.

    The mask is None when all keys are unseen. `seen` may grow between batches, by keys that no
    later batch has.
    """
    if not len(seen):
        for batch in batches:
            has_key = all(name in batch.schema.names for name in key)
            yield batch, pk_values(batch, key) if has_key else None, None
        return
    groups = gathered(batches) if seen.wants_large_batches else ([batch] for batch in batches)
    for group in groups:
        keys = [pk_values(batch, key) for batch in group]
        mask = seen.new(keys[0] if len(keys) == 1 else pa.chunked_array(keys))
        start = 0
        for batch, batch_keys in zip(group, keys, strict=True):
            part = None if mask is None else mask[start : start + batch.num_rows]
            start += batch.num_rows
            rows = batch if part is None else batch.filter(pa.array(part))
            yield rows, batch_keys, part


def gathered(
    batches: Iterable[pa.RecordBatch], *, rows: int = GATHER_ROWS
) -> Iterator[list[pa.RecordBatch]]:
    """Batches in groups of bounded size."""
    group: list[pa.RecordBatch] = []
    group_rows = group_bytes = 0
    for batch in batches:
        group.append(batch)
        group_rows += batch.num_rows
        group_bytes += batch.nbytes
        if group_rows >= rows or group_bytes >= GATHER_BYTES:
            yield group
            group, group_rows, group_bytes = [], 0, 0
    if group:
        yield group


def newest_rows(keys: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Indices, ascending, of the last occurrence of each key. `keys` holds no nulls.

    All in native code: one hash of each key and one scatter, about 20 ns a row.
    """
    array = keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys
    if isinstance(array, pa.ChunkedArray):  # combine_chunks of no chunks, or of more than 2 GiB
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    count = len(array)
    rows = np.arange(count, dtype=np.int64)
    if pa.types.is_integer(array.type):
        # Ascending keys, as in appended rows, have no duplicates; the check costs 1 ns a row.
        numbers = array.to_numpy()
        # guard: L-2 always test_newest_rows_are_the_last_of_each_key
        if (numbers[1:] > numbers[:-1]).all():
            return rows
    encoded = pc.dictionary_encode(array)
    distinct = len(encoded.dictionary)
    if distinct == count:
        return rows
    last = np.empty(distinct, np.int64)
    # numpy assigns in order, so the last row of a key stays.
    last[encoded.indices.to_numpy()] = rows
    last.sort()
    return last
