"""Rows on standard output or in a file: a table for people, other formats for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

import click
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.ipc as paipc
import pyarrow.parquet as pq
from rich.text import Text

from weir.cli import output, values
from weir.cli.formats import OUTPUTS, SUFFIXES
from weir.cli.output import Output

SHOWN: Final = 50
_WIDE: Final = 48


def kind_of(format: str, target: Path | None, *, as_json: bool) -> str:
    """The format to write: of `--format`, or `--json`, or the suffix of the file."""
    if as_json:
        return "jsonl"
    if target is None or format != "table":
        return format
    kind = SUFFIXES.get(target.suffix.lower(), "")
    if kind not in OUTPUTS:
        raise click.BadParameter(
            f"{target}: unknown suffix; choose a format with --format ({', '.join(OUTPUTS[1:])})",
            param_hint="--output",
        )
    return kind


def write(reader: pa.RecordBatchReader, format: str, target: Path | None = None) -> int:
    """Write all rows and return their number; format "table" shows only the first ones."""
    if format == "table":
        return _table(reader)
    if format in ("parquet", "arrow") and target is None and sys.stdout.isatty():
        raise click.BadParameter(
            f"{format} is not for a terminal; write it to a file with --output, or into a pipe",
            param_hint="--format",
        )
    with _target(target) as sink:
        if format == "parquet":
            with pq.ParquetWriter(sink, reader.schema) as writer:
                return _each(reader, writer.write_batch)
        if format == "arrow":
            with paipc.new_stream(sink, reader.schema) as writer:
                return _each(reader, writer.write_batch)
        if format == "csv":
            flat = _cells(_no_rows(reader.schema)).schema
            with pacsv.CSVWriter(sink, flat) as writer:
                return _each(reader, lambda batch: writer.write_batch(_cells(batch)))
        return _each(reader, lambda batch: sink.write(_lines(batch)))


def objects(batch: pa.RecordBatch) -> list[dict[str, values.Json]]:
    """The rows in a form that JSON can hold."""
    names = batch.schema.names
    columns = [values.to_json(column) for column in batch.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def cell(item: object) -> Text:
    """A value for a cell of a table."""
    if item is None:
        return Text("null", "dim")
    text = output.harmless(_short(item))  # before its width is measured
    return Text(text if len(text) <= _WIDE else text[: _WIDE - 1] + "…")


def _short(item: object) -> str:
    if isinstance(item, float):
        return f"{item:.6g}"
    if isinstance(item, bytes):
        return item.hex()
    if isinstance(item, list) and len(item) > 4:
        return f"{', '.join(_short(part) for part in item[:3])}, … ({len(item)})"
    return json.dumps(item, default=str) if isinstance(item, dict | list) else str(item)


def _each(reader: pa.RecordBatchReader, put: Callable[[pa.RecordBatch], object]) -> int:
    rows = 0
    for batch in reader:
        put(batch)
        rows += batch.num_rows
    return rows


def _lines(batch: pa.RecordBatch) -> bytes:
    lines = [json.dumps(row, allow_nan=False) + "\n" for row in objects(batch)]
    return "".join(lines).encode()


def _cells(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [values.to_cells(column) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in schema], schema=schema)


def _table(reader: pa.RecordBatchReader) -> int:
    numeric = [pa.types.is_integer(f.type) or pa.types.is_floating(f.type) for f in reader.schema]
    headers = zip(reader.schema.names, numeric, strict=True)
    found: list[dict[str, object]] = []
    for batch in reader:
        found += batch.slice(0, SHOWN + 1 - len(found)).to_pylist()
        if len(found) > SHOWN:
            break
    rows = [[cell(item) for item in row.values()] for row in found[:SHOWN]]
    more = f"the first {SHOWN} rows; --format jsonl, csv, arrow or parquet prints all of them"
    note = more if len(found) > SHOWN else output.many(len(rows), "row")
    names = [">" + name if number else name for name, number in headers]
    Output().show(None, output.grid(*names, rows=rows), output.aside(note))
    return len(rows)


@contextmanager
def _target(target: Path | None) -> Iterator[BinaryIO]:
    if target is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with target.open("wb") as file:
        yield file
