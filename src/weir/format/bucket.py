"""The bucket of a row: Lance's variant of Murmur3.

Murmur3 x86 32 with seed 0, except that each byte after the last whole word of a string is mixed in
as a word of its own, sign-extended. A null hashes to 0. The result decides which shard a row goes
to, so it never changes. Lance computes it for columns; for one value it is computed here, since
that takes a tenth of the time.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.errors import InvalidInput
from weir.format.columns import plain_array

if TYPE_CHECKING:
    from lance.schema import LanceSchema

_MASK32 = 0xFFFFFFFF
_BUCKETS_MAX = 2**31 - 1


def bucket(array: pa.Array | pa.ChunkedArray, num_buckets: int) -> npt.NDArray[np.int32]:
    """The bucket of each row, 0 to `num_buckets` - 1; `InvalidInput` for a type without a hash."""
    if not 1 <= num_buckets <= _BUCKETS_MAX:
        raise InvalidInput(f"num_buckets is {num_buckets}; it must be from 1 to {_BUCKETS_MAX}")
    from lance import evaluate_sharding_spec  # takes long to load, and many never need it

    column = plain_array(array)
    if pa.types.is_string_view(column.type):
        column = column.cast(pa.string())
    if not _has_hash(column.type):
        raise InvalidInput(
            f"a column of type {column.type} cannot be bucketed; use integers, bool, floats,"
            " date32, times, timestamps or utf8"
        )
    schema, described = _schema(column.type)
    batch = pa.RecordBatch.from_arrays([column], schema=schema)
    buckets: npt.NDArray[np.int32] = evaluate_sharding_spec(batch, _spec(num_buckets), described)[
        0
    ].to_numpy()
    return buckets


def _has_hash(dtype: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_integer(dtype)
        or types.is_boolean(dtype)
        or (types.is_floating(dtype) and dtype.bit_width >= 32)
        or types.is_date32(dtype)
        or types.is_time(dtype)
        or types.is_timestamp(dtype)
        or types.is_string(dtype)
        or types.is_large_string(dtype)
    )


@lru_cache(maxsize=64)
def _schema(dtype: pa.DataType) -> tuple[pa.Schema, LanceSchema]:
    from lance.schema import LanceSchema

    schema = pa.schema([pa.field("column", dtype)])
    return schema, LanceSchema.from_pyarrow(schema)


@lru_cache(maxsize=64)
def _spec(num_buckets: int) -> dict[str, object]:
    field = {
        "field_id": "bucket",
        "source_ids": [0],
        "transform": "bucket",
        "expression": None,
        "result_type": "int32",
        "parameters": {"num_buckets": str(num_buckets)},
    }
    return {"spec_id": 1, "fields": [field]}


def bucket_finder(dtype: pa.DataType, num_buckets: int) -> Callable[[object], int | None]:
    """A function from one value of that type to its bucket; when it returns None, use `bucket`.

    Handles integers and strings, which most values are: one microsecond instead of thirty.
    """
    if pa.types.is_integer(dtype):
        held, wide = held_by(dtype), dtype.bit_width == 64

        def of_number(value: object) -> int | None:
            if type(value) is not int or value not in held:
                return None
            words = (value & _MASK32, value >> 32 & _MASK32) if wide else (value & _MASK32,)
            hashed = _finish_one_row(_mix_one_row(0, words), 8 if wide else 4)
            return (hashed & 0x7FFFFFFF) % num_buckets

        return of_number

    def of_text(value: object) -> int | None:
        if type(value) is not str or not value.isascii():
            return None
        return (_hash_one_row(value.encode()) & 0x7FFFFFFF) % num_buckets

    is_text = pa.types.is_string(dtype) or pa.types.is_large_string(dtype)
    return of_text if is_text else lambda _: None


def held_by(dtype: pa.DataType) -> range:
    """The range of values that a column of that integer type can hold."""
    bits = int(dtype.bit_width)
    low = -1 << bits - 1 if pa.types.is_signed_integer(dtype) else 0
    return range(low, low + (1 << bits))


def _mix_one_row(h: int, words: Sequence[int]) -> int:
    """Murmur3 of one row of words."""
    for word in words:
        k = word * 0xCC9E2D51 & _MASK32
        k = (k << 15 | k >> 17) * 0x1B873593 & _MASK32
        h ^= k
        h = ((h << 13 | h >> 19) * 5 + 0xE6546B64) & _MASK32
    return h


def _finish_one_row(h: int, size: int) -> int:
    h ^= size
    h = (h ^ h >> 16) * 0x85EBCA6B & _MASK32
    h = (h ^ h >> 13) * 0xC2B2AE35 & _MASK32
    return h ^ h >> 16


def _hash_one_row(row: bytes) -> int:
    whole = len(row) >> 2
    words = list(struct.unpack_from(f"<{whole}I", row))
    tail = [byte | 0xFFFFFF00 if byte > 127 else byte for byte in row[4 * whole :]]
    return _finish_one_row(_mix_one_row(0, words + tail), len(row))
