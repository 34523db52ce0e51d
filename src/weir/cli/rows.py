"""Rows on standard output or in a file: a table for people, other formats for programs."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.ipc as paipc
import pyarrow.parquet as pq
import typer
from rich.markup import escape

from weir.cli import screen, sources

FORMATS = ("table", "jsonl", "csv", "arrow", "parquet")
SHOWN = 50
_WIDE = 48


def check_format(format: str, *, as_json: bool) -> str:
    """The format to use; `--json` selects JSON lines."""
    if format not in FORMATS:
        raise typer.BadParameter(
            f"{format!r} is not one of {', '.join(FORMATS)}", param_hint="--format"
        )
    return "jsonl" if as_json else format


def format_of(output: Path) -> str:
    """The format of an output file, by the suffix of its name."""
    kind = sources.SUFFIXES.get(output.suffix.lower(), "")
    if kind not in FORMATS:
        raise typer.BadParameter(
            f"{output}: unknown suffix; choose a format with --format ({', '.join(FORMATS[1:])})",
            param_hint="--output",
        )
    return kind


def write(reader: pa.RecordBatchReader, format: str, output: Path | None = None) -> int:
    """Write all rows and return their number; format "table" shows only the first ones."""
    if format == "table":
        return _table(reader)
    with _target(output) as target:
        if format == "parquet":
            with pq.ParquetWriter(target, reader.schema) as sink:
                return _each(reader, sink.write_batch)
        if format == "arrow":
            with paipc.new_stream(target, reader.schema) as sink:
                return _each(reader, sink.write_batch)
        if format == "csv":
            flat = _flat_schema(reader.schema)
            with pacsv.CSVWriter(target, flat) as sink:
                return _each(reader, lambda batch: sink.write_batch(_flatten(batch, flat)))
        return _each(reader, lambda batch: target.write(_lines(batch)))


def value(item: Any) -> Any:
    """A value in a form that JSON can hold: bytes in base64, times in ISO 8601."""
    if isinstance(item, bytes):
        return base64.b64encode(item).decode()
    return item.isoformat() if hasattr(item, "isoformat") else str(item)


def short(item: Any) -> str:
    """A value for a cell of a table."""
    if item is None:
        return "[dim]null[/dim]"
    if isinstance(item, float):
        return f"{item:.6g}"
    if isinstance(item, list) and len(item) > 4:
        head = ", ".join(short(part) for part in item[:3])
        return f"{head}, … ({len(item)})"
    if isinstance(item, dict | list):
        item = json.dumps(item, default=value)
    text = item.hex() if isinstance(item, bytes) else str(item)
    return escape(text if len(text) <= _WIDE else text[: _WIDE - 1] + "…")


def _each(reader: pa.RecordBatchReader, put: Any) -> int:
    rows = 0
    for batch in reader:
        put(batch)
        rows += batch.num_rows
    return rows


def _lines(batch: pa.RecordBatch) -> bytes:
    lines = [json.dumps(row, default=value) + "\n" for row in batch.to_pylist()]
    return "".join(lines).encode()


def _table(reader: pa.RecordBatchReader) -> int:
    numeric = [pa.types.is_integer(f.type) or pa.types.is_floating(f.type) for f in reader.schema]
    headers = zip(reader.schema.names, numeric, strict=True)
    table = screen.grid(*(">" + name if number else name for name, number in headers))
    rows, more = 0, False
    for batch in reader:
        for row in batch.slice(0, SHOWN - rows).to_pylist():
            table.add_row(*(short(cell) for cell in row.values()))
        more = rows + batch.num_rows > SHOWN
        rows = min(SHOWN, rows + batch.num_rows)
        if more:
            break
    console = screen.out()
    console.print(table)
    note = f"the first {rows} rows; --format jsonl, csv, arrow or parquet prints all of them"
    note = note if more else screen.many(rows, "row")
    console.print(f"[dim]{note}[/dim]")
    return rows


def _flat_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([f.with_type(pa.string()) if _is_deep(f.type) else f for f in schema])


def _is_deep(dtype: pa.DataType) -> bool:
    return bool(
        pa.types.is_nested(dtype) or pa.types.is_binary(dtype) or pa.types.is_large_binary(dtype)
    )


def _flatten(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert lists and structs to JSON text and bytes to base64, since CSV has no such types."""
    columns = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if _is_deep(field.type):
            texts = [None if v is None else _cell(v) for v in column.to_pylist()]
            columns.append(pa.array(texts, pa.string()))
        else:
            columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cell(item: Any) -> str:
    return str(value(item)) if isinstance(item, bytes) else json.dumps(item, default=value)


@contextmanager
def _target(output: Path | None) -> Iterator[BinaryIO]:
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with output.open("wb") as file:
        yield file
