"""Files with rows: Parquet, CSV, JSON lines, Arrow, a Lance dataset or weir table, standard input.

Each is read as a stream of record batches. Text is parsed with the table's own types.
"""

from __future__ import annotations

import io
import sys
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Final

import pyarrow as pa
import pyarrow.ipc as paipc
import pyarrow.parquet as pq

import weir
from weir.cli import texts
from weir.cli.options import STDIN
from weir.errors import InvalidInput, NotAWeirTable
from weir.lake.base.adopt import find_dataset
from weir.store.api import ObjectMissing
from weir.store.open import lance_options, normalize, open_store

SUFFIXES: Final = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".json": "jsonl",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".ipc": "arrow",
    ".feather": "arrow",
    ".lance": "lance",
}
"""The format of a file, by the end of its name."""


def batches(
    source: str,
    schema: pa.Schema | None,
    storage_options: Mapping[str, str],
    format: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of `source` ('-': standard input), with text parsed according to `schema`."""
    kind = kind_of(source, format)
    if kind == "lance":
        yield from _dataset(source, storage_options)
        return
    where = "standard input" if source == STDIN else source
    with ExitStack() as stack:
        if source == STDIN:
            stream, kind = _standard_input(kind)
        else:
            stream = stack.enter_context(_file(source, storage_options))
        try:
            yield from _read(kind, stream, schema)
        except InvalidInput as error:
            raise InvalidInput(f"{where}: {error}") from error
        except (pa.ArrowException, ValueError) as error:
            raise InvalidInput(f"cannot read {where} as {kind}: {error}") from error


def known_rows(files: Sequence[str], format: str | None = None) -> int | None:
    """The number of rows, if it is known before reading, as for Parquet; else None."""
    if any(
        source == STDIN or "://" in source or kind_of(source, format) != "parquet"
        for source in files
    ):
        return None
    try:
        return sum(int(pq.read_metadata(source).num_rows) for source in files)
    except (pa.ArrowInvalid, OSError):
        return None  # reading the file will raise an error that names it


def schema_of(source: str, storage_options: Mapping[str, str]) -> pa.Schema:
    """The columns of a file, from its first batch."""
    for batch in batches(source, None, storage_options):
        for field in batch.schema:
            if pa.types.is_null(field.type):
                raise InvalidInput(
                    f"{source}: column {field.name!r} holds nulls only, so its type is unknown; use"
                    " --column for each column"
                )
        return batch.schema.remove_metadata()
    raise InvalidInput(f"{source} has no rows to infer columns from; use --column")


def kind_of(source: str, named: str | None) -> str | None:
    """The format of a file, by its name; None for standard input, which its first bytes say."""
    if named is not None or source == STDIN:
        return named
    kind = SUFFIXES.get(Path(source).suffix.lower())
    if "://" in source:
        return kind or "lance"
    if Path(source).is_dir():
        return "lance"
    if not Path(source).exists():
        raise InvalidInput(f"there is no file {source}")
    if kind is None:
        raise InvalidInput(
            f"{source}: its name does not say its format; rename it ({', '.join(SUFFIXES)}), or use"
            " the option --format of weir put"
        )
    return kind


def _file(source: str, storage_options: Mapping[str, str]) -> BinaryIO:
    """A local file, or an object of a store, read into memory."""
    place = normalize(source) if "://" in source else source
    if "://" not in place:
        try:
            return Path(place).open("rb")  # the caller chose it: it may be a link, or large
        except FileNotFoundError:
            raise InvalidInput(f"there is no file {source}") from None
    folder, _, name = source.rpartition("/")
    try:
        return io.BytesIO(open_store(folder, storage_options).get(name).data)
    except ObjectMissing:
        raise InvalidInput(f"there is no object {source}") from None


def _standard_input(kind: str | None) -> tuple[BinaryIO, str]:
    head, stream = texts.head(sys.stdin.buffer, 8)
    if not head:
        return io.BytesIO(), kind or "csv"  # a terminal would wait for another Ctrl-D
    if kind is None:
        if head.startswith(b"PAR1"):
            kind = "parquet"
        elif head.startswith((b"ARROW1", b"\xff\xff\xff\xff")):
            kind = "arrow"
        else:
            kind = (
                "jsonl" if head.removeprefix(BOM_UTF8).lstrip().startswith((b"{", b"[")) else "csv"
            )
    if kind == "parquet" or head.startswith(b"ARROW1"):
        return io.BytesIO(stream.read()), kind  # both formats have a footer, so read all of it
    return stream, kind


def _read(kind: str | None, stream: BinaryIO, schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
    if kind == "parquet":
        yield from pq.ParquetFile(stream).iter_batches()
    elif kind == "arrow":
        head, stream = texts.head(stream, 6)
        if head.startswith(b"ARROW1"):
            reader = paipc.open_file(stream)
            yield from (reader.get_batch(i) for i in range(reader.num_record_batches))
        else:
            yield from paipc.open_stream(stream)
    elif kind == "csv":
        yield from texts.csv(stream, schema)
    else:
        yield from texts.json_lines(stream, schema)


def _dataset(uri: str, storage_options: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    try:
        yield from weir.open(uri, storage_options=storage_options).scan().to_batches()
    except NotAWeirTable:
        dataset = find_dataset(uri, lance_options(uri, storage_options))
        if dataset is None:
            raise InvalidInput(f"{uri} holds neither a weir table nor a Lance dataset") from None
        yield from dataset.to_batches()
