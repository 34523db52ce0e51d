"""Rows from CSV and JSON lines, block by block, with the table's own types.

They are read in the calling thread, never by a thread of pyarrow: one that still waits for Python
when the program ends aborts it. A block ends at the end of a line, even inside a quoted CSV field,
like pyarrow's own blocks.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
from collections.abc import Iterator
from datetime import time
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.json as pajson

from weir.errors import InvalidInput

_BLOCK = 1 << 22


def csv(stream: BinaryIO, schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
    """The rows of a CSV stream; cells hold lists, structs and vectors as JSON, bytes as base64."""
    types = None if schema is None else {f.name: _read_as(f.type, deep=False) for f in schema}
    convert = pacsv.ConvertOptions(column_types=types, strings_can_be_null=True)
    names: list[str] | None = None
    for block in _blocks(stream):
        read = pacsv.ReadOptions(column_names=names, block_size=max(len(block), 1))
        found = pacsv.read_csv(pa.BufferReader(block), read_options=read, convert_options=convert)
        if names is None and schema is not None:
            _check_header(found.column_names, schema)
        names = found.column_names
        yield from _decoded(found, schema).to_batches()


def _check_header(names: list[str], schema: pa.Schema) -> None:
    """Check that the first line names columns of the table, even if the file has no rows."""
    unknown = [name for name in names if name not in schema.names]
    if unknown:
        raise InvalidInput(
            f"the table has no column {unknown[0]!r}; the first line of CSV must hold names of its"
            f" columns: {', '.join(schema.names)}"
        )


def json_lines(stream: BinaryIO, schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
    """The rows of a JSON lines stream; bytes are base64, dates and times ISO 8601."""
    options = pajson.ParseOptions()
    if schema is not None:
        # Nullable: the table refuses a missing key column with an error that names it.
        fields = [f.with_nullable(True).with_type(_read_as(f.type, deep=True)) for f in schema]
        options = pajson.ParseOptions(explicit_schema=pa.schema(fields))
    for block in _blocks(stream):
        if block.lstrip().startswith(b"["):
            raise InvalidInput("this is a JSON array; write one object per line (jq -c '.[]')")
        if not block.strip():
            continue
        read = pajson.ReadOptions(block_size=len(block) + 1)
        found = pajson.read_json(pa.BufferReader(block), read_options=read, parse_options=options)
        yield from _decoded(found, schema).to_batches()


def _blocks(stream: BinaryIO) -> Iterator[bytes]:
    """Blocks of whole lines, as many as available, without waiting for more from a slow pipe."""
    read = getattr(stream, "read1", stream.read)
    rest = b""
    while chunk := read(_BLOCK):
        lines, end, tail = chunk.rpartition(b"\n")
        if not end:
            rest += chunk
            continue
        yield rest + lines + end
        rest = tail
    if rest:
        yield rest


def _read_as(dtype: pa.DataType, *, deep: bool) -> pa.DataType:
    """The type to give the pyarrow reader: text if it cannot parse the type itself."""
    if pa.types.is_fixed_size_list(dtype) and deep:
        return pa.list_(dtype.value_type)  # the table accepts lists as vectors
    if pa.types.is_nested(dtype):
        return dtype if deep else pa.string()
    if _is_binary(dtype) or (deep and (pa.types.is_date(dtype) or pa.types.is_time(dtype))):
        return pa.string()
    return dtype


def _decoded(found: pa.Table, schema: pa.Schema | None) -> pa.Table:
    """The same rows with text decoded to the types of the schema."""
    for place, name in enumerate(found.column_names):
        wanted = None if schema is None or name not in schema.names else schema.field(name).type
        column = found.column(place)
        if wanted is None or not pa.types.is_string(column.type) or pa.types.is_string(wanted):
            continue
        if pa.types.is_nested(wanted):
            column = _each(column, json.loads, wanted, name)
        elif _is_binary(wanted):
            column = _each(column, lambda text: base64.b64decode(text, validate=True), wanted, name)
        elif pa.types.is_time(wanted):
            column = _each(column, time.fromisoformat, wanted, name)
        elif pa.types.is_date(wanted):
            column = column.cast(wanted)
        found = found.set_column(place, name, column)
    return found


def _each(column: pa.ChunkedArray, decode: Any, wanted: pa.DataType, name: str) -> pa.Array:
    try:
        values = [None if text is None else decode(text) for text in column.to_pylist()]
    except (ValueError, binascii.Error) as error:
        raise InvalidInput(f"cannot read column {name!r} as {wanted}: {error}") from error
    return pa.array(values, wanted)


def _is_binary(dtype: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(dtype)
        or pa.types.is_large_binary(dtype)
        or pa.types.is_fixed_size_binary(dtype)
    )


def head(stream: BinaryIO, size: int) -> tuple[bytes, BinaryIO]:
    """The first bytes of a stream, and a stream that still returns them."""
    buffered = stream if isinstance(stream, io.BufferedReader) else io.BufferedReader(stream)  # type: ignore[type-var]
    return buffered.peek(size)[:size], buffered
