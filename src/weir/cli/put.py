"""`weir put`: rows into a table."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import click

from weir.cli import options as o
from weir.cli import output
from weir.cli.invocation import Invocation, command
from weir.errors import FencedError, InvalidInput, PartialWrite, WeirError


@command("put", example="weir put s3://lake/orders new.parquet more.csv")
@o.uri
@click.argument(
    "file",
    nargs=-1,
    metavar="[FILE]...",
    help="Parquet, CSV, JSON lines, Arrow, Lance; '-' or nothing: standard input.",
)
@click.option(
    "--format", "-f", "format_", type=click.Choice(o.INPUTS), help="If the name does not say it."
)
@o.flag("--delete", about="Delete the rows with the keys in the files.")
@o.number("--batch-rows", least=1, default=10_000, about="Rows per put.")
@o.number("--skip", default=0, about="Leave out the first N rows; a run that failed says how many.")
def put(
    call: Invocation,
    uri: str,
    file: Sequence[str],
    format_: str | None,
    *,
    delete: bool,
    batch_rows: int,
    skip: int,
) -> None:
    """Write rows; they are durable when the command ends.

    Rows with the key of an older row replace it. If the command fails halfway, it says how many
    rows are durable: run it again with --skip to put the others.
    """
    from weir.cli import rows, sources

    files = file or [o.STDIN]
    if o.STDIN in files and sys.stdin is None:
        raise click.UsageError("standard input is closed; name a file")
    table = call.open(uri)
    key = table.primary_key
    if delete and not key:
        raise click.UsageError(f"--delete: {table.uri} is append-only, and has no key")
    schema = table.schema
    kinds = [sources.kind_of(source, format_) for source in files]  # before anything is written
    is_typed = o.STDIN in files and output.is_terminal(sys.stdin)
    if is_typed:
        output.console(stderr=True).print("[dim]type rows as CSV or JSON lines; end with Ctrl-D[/]")
    total = sources.known_rows(files, format_)
    count = puts = 0
    began = time.monotonic()
    found = (
        batch
        for source, kind in zip(files, kinds, strict=True)
        for batch in sources.batches(source, schema, call.storage(source), kind)
    )
    with (
        _telling(lambda: skip + count, has_key=bool(key)),
        call.out.working("rows", is_shown=not is_typed) as progress,
        table.writer() as writer,
    ):
        for batch in rows.sized(found, batch_rows, skip):
            if delete:
                writer.delete(batch)
            else:
                writer.put(batch)
            count, puts = count + batch.num_rows, puts + 1
            progress("rows", skip + count, total)
    took = time.monotonic() - began
    rate = f", {count / took:,.0f} rows/s" if took > 0 else ""
    call.out.show(
        {"rows": count, "puts": puts, "deleted": delete, "seconds": round(took, 3)},
        output.done(
            "deleted" if delete else "put",
            f"{output.many(count, 'row')} in {output.span(took)}{rate}",
        ),
    )


@contextmanager
def _telling(durable: Callable[[], int], *, has_key: bool) -> Iterator[None]:
    """Let a failure say how many rows of the input are durable, and how to put the others."""
    try:
        yield
    except (KeyboardInterrupt, WeirError, OSError) as error:
        rows = durable()
        is_refused = isinstance(error, InvalidInput)
        # Without a key nothing tells which rows of the put that failed are there.
        more = "" if has_key or is_refused else " (some of the next ones may be durable, too)"
        how = f"{output.many(rows, 'row')} durable{more}: run it again with --skip {rows}"
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(how) from None
        said = _taken_over(error) or output.message_of(error)
        raise WeirError(f"{said}; {how}" if rows or not is_refused else said) from error


def _taken_over(error: WeirError | OSError) -> str | None:
    """What a writer was fenced by, in the shell's words; None for any other failure."""
    failures = list(error.failures.values()) if isinstance(error, PartialWrite) else [error]
    if not all(isinstance(one, FencedError) for one in failures):
        return None
    return f"another writer took over {output.many(len(failures), 'shard')}; wait until it is done"
