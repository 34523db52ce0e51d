"""`weir put`: rows into a table."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from weir.cli import options as o
from weir.cli import output
from weir.cli.formats import INPUTS, STDIN
from weir.cli.invocation import Invocation, command
from weir.errors import FencedError, PartialWrite, WeirError

if TYPE_CHECKING:
    import pyarrow as pa


@command("put", example="weir put s3://lake/orders new.parquet more.csv")
@o.uri
@click.argument(
    "file",
    nargs=-1,
    metavar="[FILE]...",
    help="Parquet, CSV, JSON lines, Arrow, Lance; '-' or nothing: standard input.",
)
@click.option(
    "--format", "-f", "format_", type=click.Choice(INPUTS), help="If the name does not say it."
)
@click.option("--delete", is_flag=True, help="The files hold keys; delete their rows.")
@click.option(
    "--batch-rows",
    type=click.IntRange(min=1),
    default=10_000,
    metavar="N",
    help="Rows per put.",
)
def put(
    call: Invocation,
    uri: str,
    file: Sequence[str],
    format_: str | None,
    *,
    delete: bool,
    batch_rows: int,
) -> None:
    """Write rows; they are durable when the command ends.

    Rows with the key of an older row replace it. If the command fails halfway, the rows put before
    the failure are durable. Run it again: with a key, no row is duplicated.
    """
    import pyarrow as pa

    from weir.cli import sources

    table = call.open(uri)
    schema = table.schema
    if delete:
        schema = pa.schema([schema.field(name) for name in table.primary_key])
    rows = puts = 0
    began = time.monotonic()
    files = file or [STDIN]
    if STDIN in files and sys.stdin.isatty():
        output.console(stderr=True).print("[dim]type rows as CSV or JSON lines; end with Ctrl-D[/]")
    total = sources.known_rows(files, format_)
    with call.out.working("rows") as progress, table.writer() as writer:
        for source in files:
            found = sources.batches(source, schema, call.storage(source), format_)
            for batch in _sized(found, batch_rows):
                try:
                    if delete:
                        writer.delete(batch.select(list(table.primary_key)))
                    else:
                        writer.put(batch)
                except (FencedError, PartialWrite) as error:
                    raise _taken_over(error, rows) from error
                rows, puts = rows + batch.num_rows, puts + 1
                progress("rows", rows, total)
    took = time.monotonic() - began
    rate = f", {rows / took:,.0f} rows/s" if took > 0 else ""
    call.out.show(
        {"rows": rows, "puts": puts, "deleted": delete, "seconds": round(took, 3)},
        output.done(
            "deleted" if delete else "put",
            f"{output.many(rows, 'row')} in {output.span(took)}{rate}",
        ),
    )


def _taken_over(error: FencedError | PartialWrite, rows: int) -> WeirError:
    """The message for a fenced writer in the shell; any other failure unchanged."""
    failures = list(error.failures.values()) if isinstance(error, PartialWrite) else [error]
    if not all(isinstance(one, FencedError) for one in failures):
        return error
    return WeirError(
        f"another writer took over {output.many(len(failures), 'shard')} after {rows:,} rows were"
        " put. When it is done, run this command again: with a key, no row is duplicated"
    )


def _sized(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """The same rows in pieces of `rows`: one piece is one entry in each shard's log."""
    import pyarrow as pa

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
