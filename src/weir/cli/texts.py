"""Rows from CSV and JSON lines, block by block, with the table's own types.

They are read in the calling thread, never by a thread of pyarrow: one that still waits for Python
when the program ends aborts it, and pyarrow's streaming reader has such a thread even with
`use_threads=False`. A block ends with a record, and is not waited for: rows of a slow pipe are
there at once.
"""

from __future__ import annotations

import io
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import partial
from typing import BinaryIO, Final, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.json as pajson

from weir.cli import values
from weir.errors import InvalidInput

T = TypeVar("T", pa.Array, list[values.Json])
Place: TypeAlias = Callable[[int], str]
"""How a row, counted from 0, is named in a message."""
_BLOCK = 1 << 22
_SMALL: Final = 1 << 16
_QUOTED_OR_LINE_END: Final = re.compile(rb'(?:\A|(?<=[,\r\n]))"(?:[^"]|"")*+(?:"|\Z)|\n')
"""A quoted field, which begins with its field and may hold line breaks; or the end of a record."""
_ROW: Final = re.compile(r"Row #(\d+)")


def csv(stream: BinaryIO, schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
    """The rows of a CSV stream; an empty cell is null, a quoted one holds the empty text."""
    types = None if schema is None else {field.name: pa.string() for field in schema}
    # With types, each cell is text as it stands: a country may be called NA.
    convert = pacsv.ConvertOptions(
        column_types=types,
        null_values=None if types is None else [""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=types is None,
    )
    wrong: list[pacsv.InvalidRow] = []

    def refuse(row: pacsv.InvalidRow) -> str:
        wrong.append(row)
        return "error"

    parse = pacsv.ParseOptions(newlines_in_values=True, invalid_row_handler=refuse)
    names: list[str] | None = None
    records = 0  # the header is the first
    for block in _blocks(stream, _records_end):
        read = pacsv.ReadOptions(
            column_names=names, block_size=max(len(block), 1), use_threads=False
        )
        try:
            found = pacsv.read_csv(
                pa.BufferReader(block),
                read_options=read,
                parse_options=parse,
                convert_options=convert,
            )
        except pa.ArrowInvalid as error:
            # Arrow's own messages count from the beginning of the block.
            if not wrong:
                raise ValueError(_ROW.sub(partial(_later, records), str(error))) from error
            cells = f"{wrong[0].actual_columns} cells, not {wrong[0].expected_columns}"
            raise ValueError(f"record {records + wrong[0].number}: {cells}") from error
        if names is None:
            records = 1
            if schema is not None:
                _check_names(found.column_names, schema)
        names = found.column_names
        yield from typed(found, schema, partial(_record, records + 1)).to_batches()
        records += len(found)


def _record(first: int, row: int) -> str:
    return f"record {first + row}"


def _later(records: int, row: re.Match[str]) -> str:
    return f"record {records + int(row[1])}"


def _check_names(names: list[str], schema: pa.Schema) -> None:
    """Check that these are columns of the table, even if the file has no rows."""
    unknown = [name for name in names if name not in schema.names]
    if unknown:
        raise InvalidInput(
            f"the table has no column {unknown[0]!r}; the first line of CSV, and the names in JSON,"
            f" must be names of its columns: {', '.join(schema.names)}"
        )


def typed(found: pa.Table, schema: pa.Schema | None, place: Place) -> pa.Table:
    """The cells, parsed as the types of the schema; `ValueError` for one that does not fit."""
    if schema is None:
        return found
    fields = [schema.field(name).with_nullable(True) for name in found.column_names]
    columns = []
    for field, texts in zip(fields, found.columns, strict=True):
        columns.append(_column(field, values.from_text, texts.combine_chunks(), place))
    return pa.table(columns, schema=pa.schema(fields))


def json_lines(stream: BinaryIO, schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
    """The rows of a JSON lines stream."""
    line = 0
    for block in _blocks(stream, _lines_end):
        if block.lstrip().startswith(b"["):
            raise InvalidInput("this is a JSON array; write one object per line (jq -c '.[]')")
        if not block.strip():
            line += block.count(b"\n")
            continue
        if schema is None:
            read = pajson.ReadOptions(block_size=len(block) + 1, use_threads=False)
            yield from pajson.read_json(pa.BufferReader(block), read_options=read).to_batches()
        else:
            yield _of_objects(block, line, schema)
        line += block.count(b"\n")


def _of_objects(block: bytes, line: int, schema: pa.Schema) -> pa.RecordBatch:
    """The rows of whole lines, of which `line` came before."""
    rows: list[dict[str, values.Json]] = []
    lines: list[int] = []
    for number, text in enumerate(block.split(b"\n"), line + 1):
        if not text.strip():
            continue
        try:
            row = values.loads(text)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
        if not isinstance(row, dict):
            raise ValueError(f"line {number} is not a JSON object")  # noqa: TRY004
        rows.append(row)
        lines.append(number)
    _check_names(list({name: None for row in rows for name in row}), schema)
    # Nullable: the table refuses a missing key column with an error that names it.
    fields = [field.with_nullable(True) for field in schema]
    columns = [
        _column(
            f, values.from_json, [row.get(f.name) for row in rows], lambda row: f"line {lines[row]}"
        )
        for f in fields
    ]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _column(
    field: pa.Field, parse: Callable[[T, pa.DataType], pa.Array], given: T, place: Place
) -> pa.Array:
    """The values as an array; `ValueError` says which is the first that does not fit."""
    try:
        return parse(given, field.type)
    except (ValueError, pa.ArrowException) as error:
        ends = range(1, len(given) + 1)
        row = bisect_left(ends, True, key=lambda end: _fails(parse, given[:end], field))
        raise ValueError(f"{place(row)}: column {field.name!r}, {field.type}: {error}") from error


def _fails(parse: Callable[[T, pa.DataType], pa.Array], given: T, field: pa.Field) -> bool:
    try:
        parse(given, field.type)
    except (ValueError, pa.ArrowException):
        return True
    return False


def _blocks(stream: BinaryIO, end_of: Callable[[bytes], int]) -> Iterator[bytes]:
    """Blocks of whole records, as many as available, without waiting for more from a slow pipe."""
    read = getattr(stream, "read1", stream.read)
    rest: list[bytes] = []
    size = wanted = 0
    while chunk := read(_BLOCK):
        rest.append(chunk)
        size += len(chunk)
        if size < wanted:
            continue  # a record of many chunks is looked through a few times, not once for each
        data = b"".join(rest)
        end = end_of(data)
        if end:
            yield data[:end]
        rest, size = [data[end:]], len(data) - end
        wanted = 0 if end or size < _SMALL else 2 * size
    if size:
        yield b"".join(rest)


def _lines_end(data: bytes) -> int:
    """Where the last whole line ends."""
    return data.rfind(b"\n") + 1


def _records_end(data: bytes) -> int:
    """Where the last whole record of CSV ends: at a line break that is in no quoted field."""
    if b'"' not in data:
        return _lines_end(data)
    ends = [found.end() for found in _QUOTED_OR_LINE_END.finditer(data) if found[0] == b"\n"]
    return ends[-1] if ends else 0


def head(stream: BinaryIO, size: int) -> tuple[bytes, BinaryIO]:
    """The first bytes of a stream, and a stream that still returns them."""
    buffered = stream if isinstance(stream, io.BufferedReader) else io.BufferedReader(stream)  # type: ignore[type-var]
    return buffered.peek(size)[:size], buffered
