"""Primary keys as comparable values: a single column as it is, several as order-preserving binary.

Composite encoding, column by column in key order: 00 for null, else 01 and the value. Signed
integers are 8 bytes big-endian with the sign bit flipped, unsigned ones 8 bytes big-endian, bool
one byte, text and binary their bytes with 00 escaped as 00ff and terminated by 0000.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.errors import InvalidInput
from weir.format.columns import (
    Bytes1D,
    fixed_binary,
    fixed_values,
    join_bytes,
    plain_array,
)

_SIGN = np.uint64(1 << 63)


def is_key_type(dtype: pa.DataType) -> bool:
    """Whether pylance accepts the type in a primary key; it refuses all others when it creates a
    table's MemWAL."""
    types = pa.types
    return bool(
        types.is_integer(dtype)
        or types.is_boolean(dtype)
        or types.is_string(dtype)
        or types.is_large_string(dtype)
        or types.is_binary(dtype)
        or types.is_large_binary(dtype)
    )


def check_key_type(field: pa.Field) -> None:
    """Raise `InvalidInput` for a column that cannot be part of a primary key."""
    if not is_key_type(field.type):
        raise InvalidInput(
            f"primary key column {field.name!r} is {field.type}; Lance supports only integer, bool,"
            f" utf8 and binary keys.{_instead(field.type)}"
        )


def _instead(dtype: pa.DataType) -> str:
    """Advice on what to use instead of a key of that type."""
    types = pa.types
    if types.is_temporal(dtype):
        return " Store it as int64, counted from 1970, or as text in ISO format: both sort by time"
    if types.is_fixed_size_binary(dtype) or isinstance(dtype, pa.BaseExtensionType):
        return (
            " Declare the column as binary, which holds the same bytes (16 for a UUID), or as text"
        )
    if types.is_dictionary(dtype):
        return f" Declare it as {dtype.value_type}; Lance compresses repeated values by itself"
    if types.is_decimal(dtype):
        return " Store it as int64 in the smallest unit (such as cents), or as text"
    if types.is_floating(dtype):
        return " Computed floats are rarely equal; store it as text, or round it to int64"
    return ""


def plain_key(key_schema: pa.Schema) -> type | None:
    """The Python type whose values compare like `pk_values` of the rows; None if there is none."""
    if len(key_schema) != 1:
        return None
    dtype = key_schema.field(0).type
    if pa.types.is_integer(dtype):
        return int
    if pa.types.is_string(dtype) or pa.types.is_large_string(dtype):
        return str
    if pa.types.is_binary(dtype) or pa.types.is_large_binary(dtype):
        return bytes
    return None


def pk_values(batch: pa.RecordBatch | pa.Table, primary_key: Sequence[str]) -> pa.Array:
    """The key of each row: the key column itself, or the encoded composite."""
    if len(primary_key) == 1:
        column = batch.column(primary_key[0])
        return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return encode_composite_keys([batch.column(name) for name in primary_key])


def pk_type(key_schema: pa.Schema, primary_key: Sequence[str]) -> pa.DataType:
    """The type that `pk_values` returns for rows with these key columns."""
    return pk_values(key_schema.empty_table(), primary_key).type


def encode_composite_keys(columns: Sequence[pa.Array | pa.ChunkedArray]) -> pa.BinaryArray:
    """One binary per row, which compares and orders like the tuple of its `columns`."""
    if not columns:
        raise InvalidInput("a key needs at least one column")
    parts: list[pa.Array | bytes] = []
    for column in columns:
        array = plain_array(column)
        value = _value_parts(array)
        if array.null_count:
            null = pa.scalar(b"\0", pa.binary())
            value = [pc.if_else(array.is_null(), null, join_bytes(value))]
        parts.extend(value)
    return join_bytes(parts)


def _value_parts(array: pa.Array) -> list[pa.Array | bytes]:
    """The parts of a value that is not null."""
    dtype = array.type
    if not is_key_type(dtype):
        raise InvalidInput(f"{dtype} cannot be part of a primary key")
    if pa.types.is_boolean(dtype):
        flags = fixed_values(array.cast(pa.uint8()), np.uint8)
        return [_with_lead(flags.reshape(-1, 1))]
    if pa.types.is_integer(dtype):
        numbers = fixed_values(array, dtype.to_pandas_dtype())
        if pa.types.is_signed_integer(dtype):
            words = numbers.astype(np.int64).view(np.uint64) ^ _SIGN
        else:
            words = numbers.astype(np.uint64)
        return [_with_lead(words.astype(">u8").view(np.uint8).reshape(-1, 8))]
    raw = array.cast(pa.binary())
    return [b"\1", pc.replace_substring(raw, b"\0", b"\0\xff"), b"\0\0"]


def _with_lead(rows: Bytes1D) -> pa.Array:
    out = np.ones((rows.shape[0], rows.shape[1] + 1), np.uint8)
    out[:, 1:] = rows
    return fixed_binary(out)
