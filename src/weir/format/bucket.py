"""The bucket of a row: Lance's variant of Murmur3, vectorized.

Murmur3 x86 32 with seed 0, except that each byte after the last whole word of a string is mixed in
as a word of its own, sign-extended. A null hashes to 0. The result decides which shard a row goes
to, so it equals `lance.evaluate_sharding_spec` bit for bit and never changes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.errors import InvalidInput
from weir.format.columns import VarBytes, fixed_values, null_mask, plain_array, var_values

Hashes = npt.NDArray[np.uint32]

_C1 = np.uint32(0xCC9E2D51)
_C2 = np.uint32(0x1B873593)
_N = np.uint32(0xE6546B64)
_MASK32 = 0xFFFFFFFF
_CHUNK = 1 << 15  # a chunk and its temporaries stay in the second-level cache
_FEW_ROWS = 4
_BUCKETS_MAX = 2**31 - 1


def bucket(array: pa.Array | pa.ChunkedArray, num_buckets: int) -> npt.NDArray[np.int32]:
    """The bucket of each row, 0 to `num_buckets` - 1; `InvalidInput` for a type without a hash."""
    if not 1 <= num_buckets <= _BUCKETS_MAX:
        raise InvalidInput(f"num_buckets is {num_buckets}; it must be from 1 to {_BUCKETS_MAX}")
    hashes = bucket_hash(array)
    hashes &= np.uint32(0x7FFFFFFF)
    hashes %= np.uint32(num_buckets)
    return hashes.view(np.int32)


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


def bucket_hash(column: pa.Array | pa.ChunkedArray) -> Hashes:
    """The 32-bit hash of each row; a fresh array."""
    if isinstance(column, pa.ChunkedArray):
        parts = [bucket_hash(chunk) for chunk in column.chunks]
        return np.concatenate(parts) if parts else np.zeros(0, np.uint32)
    array = plain_array(column)
    dtype = array.type
    types = pa.types
    if types.is_string(dtype) or types.is_large_string(dtype) or types.is_string_view(dtype):
        hashes = _hash_bytes(var_values(array))
    elif types.is_floating(dtype) and dtype.bit_width >= 32:
        hashes = _hash_words(_float_words(array))
    else:
        hashes = _hash_words(_integer_words(array))
    mask = null_mask(array)
    if mask is not None:
        hashes[mask] = 0
    return hashes


def _integer_words(array: pa.Array) -> npt.NDArray[Any]:
    dtype = array.type
    types = pa.types
    if types.is_boolean(dtype):
        return fixed_values(array.cast(pa.int8()), np.int8).astype(np.int32).view(np.uint32)
    if types.is_integer(dtype):
        values = fixed_values(array, dtype.to_pandas_dtype())
    elif types.is_date32(dtype) or types.is_time32(dtype):
        values = fixed_values(array, np.int32)
    elif types.is_timestamp(dtype) or types.is_time64(dtype):
        values = fixed_values(array, np.int64)
    else:
        raise InvalidInput(
            f"a column of type {dtype} cannot be bucketed; use integers, bool, floats, date32,"
            " times, timestamps or utf8"
        )
    if values.dtype.itemsize == 8:
        return values.view(np.uint64)
    return values.astype(np.int32).view(np.uint32) if values.dtype != np.uint32 else values


def _float_words(array: pa.Array) -> npt.NDArray[Any]:
    wide = array.type.bit_width == 64
    values = fixed_values(array, np.float64 if wide else np.float32).copy()
    values[values == 0] = 0.0  # both zeros are one value
    words = values.view(np.uint64 if wide else np.uint32)
    words[np.isnan(values)] = 0x7FF8000000000000 if wide else 0x7FC00000
    return words


def _hash_words(values: npt.NDArray[Any]) -> Hashes:
    """Murmur3 of one 32-bit word, or of a 64-bit word as its low and high half."""
    wide = values.dtype.itemsize == 8
    halves = values.view(np.uint32).reshape(-1, 2) if wide else values.reshape(-1, 1)
    if len(values) <= _FEW_ROWS:
        size = 8 if wide else 4
        few = [_finish_one_row(_mix_one_row(0, row), size) for row in halves.tolist()]
        return np.array(few, np.uint32)
    out = np.zeros(len(values), np.uint32)
    k = np.empty(min(_CHUNK, len(values)), np.uint32)
    scratch = np.empty_like(k)
    for start in range(0, len(values), _CHUNK):
        h = out[start : start + _CHUNK]
        for i in range(2 if wide else 1):
            word = k[: len(h)]
            word[:] = halves[start : start + _CHUNK, i]
            _mix(h, word, scratch[: len(h)])
        h ^= np.uint32(8 if wide else 4)
        _finish(h, scratch[: len(h)])
    return out


def _mix(h: Hashes, k: Hashes, scratch: Hashes) -> None:
    """Mix one word per row into `h`, in place; overwrites `k`."""
    k *= _C1
    np.right_shift(k, np.uint32(17), out=scratch)
    k <<= np.uint32(15)
    k |= scratch
    k *= _C2
    h ^= k
    np.right_shift(h, np.uint32(19), out=scratch)
    h <<= np.uint32(13)
    h |= scratch
    h *= np.uint32(5)
    h += _N


def _finish(h: Hashes, scratch: Hashes) -> None:
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 0)):
        np.right_shift(h, np.uint32(shift), out=scratch)
        h ^= scratch
        if factor:
            h *= np.uint32(factor)


def _hash_bytes(rows: VarBytes) -> Hashes:
    """Murmur3 of rows of bytes, computed word by word over all rows, the longest first."""
    count = len(rows.lengths)
    if count <= _FEW_ROWS:
        return np.array([_hash_one_row(row) for row in rows.tolist()], np.uint32)
    order = np.argsort(-rows.lengths, kind="stable")
    starts, lengths = rows.starts[order], rows.lengths[order]
    h = np.zeros(count, np.uint32)
    scratch = np.empty(count, np.uint32)
    # A view with a 32-bit word at every byte, since the words of a row may begin anywhere.
    words: Hashes = np.ndarray((max(len(rows.data) - 3, 0),), "<u4", rows.data, strides=(1,))
    whole = lengths >> 2
    steps = np.searchsorted(-whole, -np.arange(int(whole[0]) if count else 0), side="left")
    for step, active in enumerate(steps):
        if active <= _FEW_ROWS:
            for row in range(active):
                rest = words[starts[row] + 4 * step : starts[row] + 4 * int(whole[row]) : 4]
                h[row] = _mix_one_row(int(h[row]), rest.tolist())
            break
        _mix(h[:active], words[starts[:active] + 4 * step], scratch[:active])
    for i in range(3):
        tail = np.flatnonzero((lengths & 3) > i)
        at = starts[tail] + (lengths[tail] & ~3) + i
        k = rows.data[at].view(np.int8).astype(np.int32).view(np.uint32)
        part = h[tail]
        _mix(part, k, scratch[: len(tail)])
        h[tail] = part
    h ^= lengths.astype(np.uint32)
    _finish(h, scratch)
    out = np.empty(count, np.uint32)
    out[order] = h
    return out


def _mix_one_row(h: int, words: Sequence[int]) -> int:
    """`_mix` for one row of few; plain integers are faster than arrays of length 1."""
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
