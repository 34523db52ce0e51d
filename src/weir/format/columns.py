"""Arrow columns as numpy arrays, and rows of bytes assembled column by column.

Shared by the key encodings and hashes, which all read the raw values of a column and, for keys of
several columns, concatenate the parts of each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from weir.errors import InvalidInput

Bytes1D = npt.NDArray[np.uint8]
Ints1D = npt.NDArray[np.int64]


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


def null_mask(array: pa.Array) -> npt.NDArray[np.bool_] | None:
    """True where null, or None without nulls."""
    if not array.null_count:
        return None
    mask: npt.NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
    return mask


@dataclass(frozen=True, slots=True)
class VarBytes:
    """Rows of bytes: row i is `data[starts[i] : starts[i] + lengths[i]]`."""

    data: Bytes1D
    starts: Ints1D
    lengths: Ints1D

    def tolist(self) -> list[bytes]:
        """The rows as bytes objects."""
        ends = self.starts + self.lengths
        pairs = zip(self.starts.tolist(), ends.tolist(), strict=True)
        return [self.data[start:end].tobytes() for start, end in pairs]


def var_values(array: pa.Array) -> VarBytes:
    """The bytes of a string or binary array, without a copy; a null is empty."""
    array_type = array.type
    if pa.types.is_string_view(array_type):
        array = array.cast(pa.large_string())
    elif pa.types.is_binary_view(array_type):
        array = array.cast(pa.large_binary())
    large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    if len(array) == 0:
        empty = np.zeros(0, np.int64)
        return VarBytes(np.zeros(0, np.uint8), empty, empty)
    _, offsets_buffer, data_buffer = array.buffers()
    stored: npt.NDArray[Any] = np.frombuffer(offsets_buffer, np.int64 if large else np.int32)
    offsets: Ints1D = stored[array.offset : array.offset + len(array) + 1].astype(np.int64)
    data = np.frombuffer(data_buffer or b"", np.uint8)
    lengths = offsets[1:] - offsets[:-1]
    mask = null_mask(array)
    if mask is not None:
        lengths = np.where(mask, 0, lengths)
    return VarBytes(data, offsets[:-1], lengths)


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
