"""`weir put`: rows into a table."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated

import pyarrow as pa
import typer

import weir
from weir.cli import options as o
from weir.cli import screen, settings, sources
from weir.errors import FencedError, PartialWrite, WeirError

BATCH_ROWS = 10_000


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(
        epilog="Example: [bold]weir put s3://lake/orders new.parquet more.csv[/bold]",
        rich_help_panel="Rows",
    )(put)


def put(
    uri: o.Uri,
    file: Annotated[
        list[str] | None,
        typer.Argument(
            help="Parquet, CSV, JSON lines, Arrow, Lance; '-' or nothing: standard input.",
            metavar="FILE",
        ),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option("--format", "-f", metavar="F", help="parquet, csv, jsonl, arrow or lance."),
    ] = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="The files hold keys; delete their rows.")
    ] = False,
    batch_rows: Annotated[
        int, typer.Option("--batch-rows", metavar="N", min=1, help="Rows per put.")
    ] = BATCH_ROWS,
    option: o.Options = None,
    config: o.Config = None,
    json: o.Json = False,
) -> None:
    """Write rows; they are durable when the command ends.

    Rows with the key of an older row replace it. If the command fails halfway, the rows put before
    the failure are durable. Run it again: with a key, no row is duplicated.
    """
    table = o.open_table(uri, option, config)
    schema = table.schema
    if delete:
        schema = pa.schema([schema.field(name) for name in table.primary_key])
    rows = puts = 0
    began = time.monotonic()
    files = file or [sources.STDIN]
    if sources.STDIN in files and sys.stdin.isatty():
        screen.err().print("[dim]type rows as CSV or JSON lines; end with Ctrl-D[/]")
    with screen.working("rows", quiet=json) as progress, _closing(table.writer()) as writer:
        progress.update(progress.task_ids[0], total=sources.known_rows(files, format))
        for source in files:
            found = settings.storage_options(source, option, config)
            for batch in _sized(sources.batches(source, schema, found, format), batch_rows):
                try:
                    if delete:
                        writer.delete(batch.select(list(table.primary_key)))
                    else:
                        writer.put(batch)
                except (FencedError, PartialWrite) as error:
                    raise _taken_over(error, rows) from error
                rows, puts = rows + batch.num_rows, puts + 1
                progress.update(progress.task_ids[0], completed=rows)
    took = time.monotonic() - began
    if json:
        screen.emit({"rows": rows, "puts": puts, "deleted": delete, "seconds": round(took, 3)})
    else:
        verb = "deleted" if delete else "put"
        rate = f", {rows / took:,.0f} rows/s" if took > 0 else ""
        screen.out().print(
            f"[good]{verb}[/good] {screen.many(rows, 'row')} in {screen.span(took)}{rate}"
        )


@contextmanager
def _closing(writer: weir.TableWriter) -> Iterator[weir.TableWriter]:
    """Close the writer at the end. If another writer took a shard over since the last put, it has
    all durable rows, so that is a failure only if some rows were still buffered."""
    with ExitStack() as stack:
        stack.push(writer)  # closes the writer if the work fails
        yield writer
        stack.pop_all()
    try:
        writer.close()
    except (FencedError, PartialWrite) as error:
        lost = error.unacknowledged
        if not _fenced(error) or any(lost.values() if isinstance(lost, dict) else lost):
            raise


def _fenced(error: FencedError | PartialWrite) -> int:
    """The number of shards that were taken over; 0 if there were other failures."""
    failures = error.failures.values() if isinstance(error, PartialWrite) else [error]
    return len(failures) if all(isinstance(one, FencedError) for one in failures) else 0


def _taken_over(error: FencedError | PartialWrite, rows: int) -> WeirError:
    """The message for a fenced writer in the shell; any other failure unchanged."""
    shards = _fenced(error)
    if not shards:
        return error
    return WeirError(
        f"another writer took over {screen.many(shards, 'shard')} after {rows:,} rows were put."
        " When it is done, run this command again: with a key, no row is duplicated"
    )


def _sized(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """The same rows in pieces of `rows`: one piece is one entry in each shard's log."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        for start in range(0, batch.num_rows, rows):
            part = batch.slice(start, rows)
            if waiting and (count + part.num_rows > rows or part.schema != waiting[0].schema):
                yield pa.Table.from_batches(waiting)
                waiting, count = [], 0
            waiting.append(part)
            count += part.num_rows
    if waiting:
        yield pa.Table.from_batches(waiting)
