"""Keys as integers."""

from __future__ import annotations

from itertools import chain
from typing import Final

import numpy as np
import pyarrow as pa

from weir.format.columns import fixed_values
from weir.keys.slots import Codes

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
