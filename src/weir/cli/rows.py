"""Rows on standard output or in a file: a table for people, other formats for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
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
from weir.cli.options import OUTPUTS
from weir.cli.output import Output
from weir.cli.sources import SUFFIXES

SHOWN: Final = 50
_WIDE: Final = 48
_PAGE: Final = 1000


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


def write(
    reader: pa.RecordBatchReader, format: str, out: Output, target: Path | None = None
) -> None:
    """Write all rows; format "table" shows only the first ones on a terminal."""
    if format == "table":
        _table(reader, out)
        return
    if format in ("parquet", "arrow") and target is None and out.is_terminal:
        raise click.BadParameter(
            f"{format} is not for a terminal; write it to a file with --output, or into a pipe",
            param_hint="--format",
        )
    with _target(target) as sink, _writer(format, sink, reader.schema) as write_batch:
        for batch in reader:
            write_batch(batch)


@contextmanager
def _writer(
    format: str, sink: BinaryIO, schema: pa.Schema
) -> Iterator[Callable[[pa.RecordBatch], object]]:
    if format == "jsonl":
        yield lambda batch: sink.write(_lines(batch))
    elif format == "csv":
        with pacsv.CSVWriter(sink, _cells(_no_rows(schema)).schema) as cells:
            yield lambda batch: cells.write_batch(_cells(batch))
    else:
        made = pq.ParquetWriter if format == "parquet" else paipc.new_stream
        with made(sink, schema) as writer:
            yield writer.write_batch


def objects(batch: pa.RecordBatch) -> list[dict[str, values.Json]]:
    """The rows in a form that JSON can hold."""
    names = batch.schema.names
    columns = [values.to_json(column) for column in batch.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def cell(item: values.Json, out: Output) -> Text:
    """A value for people: on a terminal only the beginning of a long one."""
    if item is None:
        return Text("null", "dim")
    text = output.harmless(_text(item, is_brief=out.is_terminal))  # before its width is measured
    return Text(text if len(text) <= _WIDE or not out.is_terminal else text[: _WIDE - 1] + "…")


def _text(item: values.Json, *, is_brief: bool) -> str:
    if isinstance(item, str):
        return item
    if is_brief and isinstance(item, float):
        return f"{item:.6g}"
    if is_brief and isinstance(item, list) and len(item) > 4:
        parts = [_text(part, is_brief=True) for part in item[:3]]
        return f"{', '.join(parts)}, … ({len(item)})"
    return json.dumps(item, ensure_ascii=False)


def _lines(batch: pa.RecordBatch) -> bytes:
    lines = [json.dumps(row, allow_nan=False) + "\n" for row in objects(batch)]
    return "".join(lines).encode()


def _cells(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [values.to_cells(column) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in schema], schema=schema)


def _table(reader: pa.RecordBatchReader, out: Output) -> None:
    """A table for people: on a terminal the first rows, in a pipe all of them, page by page."""
    numeric = [pa.types.is_integer(f.type) or pa.types.is_floating(f.type) for f in reader.schema]
    headers = [">" + f.name if n else f.name for f, n in zip(reader.schema, numeric, strict=True)]
    count = 0
    for page in sized(reader, SHOWN if out.is_terminal else _PAGE):
        if count and out.is_terminal:
            more = "--format jsonl, csv, arrow or parquet prints all of them"
            out.show(None, output.aside(f"the first {SHOWN} rows; {more}"))
            return
        found = (row.values() for batch in page.to_batches() for row in objects(batch))
        rows = [[cell(value, out) for value in row] for row in found]
        out.show(None, output.grid(*headers, rows=rows))
        count += len(rows)
    if not count:
        out.show(None, output.grid(*headers))
    out.show(None, output.aside(output.many(count, "row")))


def sized(batches: Iterable[pa.RecordBatch], rows: int, skip: int = 0) -> Iterator[pa.Table]:
    """The same rows without the first `skip`, in pieces of `rows` with the same columns."""
    waiting: list[pa.RecordBatch] = []
    room = rows
    for batch in batches:
        start, skip = min(skip, batch.num_rows), max(0, skip - batch.num_rows)
        if waiting and batch.schema != waiting[0].schema:  # another file
            yield pa.Table.from_batches(waiting)
            waiting, room = [], rows
        while start < batch.num_rows:
            part = batch.slice(start, room)
            waiting.append(part)
            start, room = start + part.num_rows, room - part.num_rows
            if not room:
                yield pa.Table.from_batches(waiting)
                waiting, room = [], rows
    if waiting:
        yield pa.Table.from_batches(waiting)


@contextmanager
def _target(target: Path | None) -> Iterator[BinaryIO]:
    if target is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with target.open("wb") as file:
        yield file
