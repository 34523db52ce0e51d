"""Arrow columns as numpy arrays, and rows of bytes assembled column by column.

For keys: of one column its raw values, of several the parts of each row, concatenated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from weir.errors import InvalidInput

Bytes1D = npt.NDArray[np.uint8]


def plain_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """One array of plain values: chunks joined, dictionaries and extension types unpacked."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    return array


def fixed_values(array: pa.Array, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """The values of a fixed-width array, without a copy; the value under a null is arbitrary."""
    values = np.frombuffer(array.buffers()[1] or b"", dtype=dtype)
    return values[array.offset : array.offset + len(array)]


def fixed_binary(rows: Bytes1D) -> pa.Array:
    """The rows of a two-dimensional byte array as a binary array."""
    count, width = rows.shape
    data = pa.py_buffer(np.ascontiguousarray(rows))
    return pa.Array.from_buffers(pa.binary(width), count, [None, data]).cast(pa.binary())


def join_bytes(parts: Sequence[pa.Array | bytes]) -> pa.BinaryArray:
    """The parts of each row concatenated; a part given as bytes is the same in all rows."""
    if len(parts) == 1:
        return parts[0]
    try:
        return pc.binary_join_element_wise(*parts, b"")
    except (pa.ArrowInvalid, pa.ArrowCapacityError) as error:
        raise InvalidInput("the keys of one batch exceed 2 GiB; write it in parts") from error
