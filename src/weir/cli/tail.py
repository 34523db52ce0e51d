"""`weir tail`: the change feed, in the style of `tail -f`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import click
from rich.text import Text

import weir
from weir.cli import options as o
from weir.cli import output
from weir.cli.invocation import Invocation, command
from weir.cli.output import Output
from weir.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa

    from weir.format.sharding import Value


@command("tail", example="weir tail s3://lake/orders --new")
@o.uri
@click.option("--follow/--no-follow", "-f", default=True, help="Wait for changes until Ctrl-C.")
@o.flag("--new", about="Only changes from now on.")
@o.flag("--rows", about="First the rows of now, then the changes.")
@o.flag("--expired", about="Also show rows that expire.")
@o.text(
    "--consumer",
    metavar="NAME",
    about="Go on where this consumer was; its place is kept on the store, and gc waits for it.",
)
@o.file("--bookmark", about="Resume from this file; update it.")
@o.number(
    "--limit",
    "-n",
    least=1,
    about="Stop after N rows; with --bookmark or --consumer, after the change with the last one.",
)
@o.time("--poll", kind=o.PAUSE, default="0.5s", about="Between polls.")
def tail(
    call: Invocation,
    uri: str,
    *,
    follow: bool,
    new: bool,
    rows: bool,
    expired: bool,
    consumer: str | None,
    bookmark: Path | None,
    limit: int | None,
    poll: float,
) -> None:
    """Show puts and deletes as they become durable.

    In order within a shard. Entries that gc deleted are not shown; begin with --rows, which shows
    the rows of now first.
    """
    if new and rows:
        raise click.UsageError("--new and --rows exclude each other")
    table = call.open(uri)
    since: weir.Bookmark | str | None = "now" if new else None
    if bookmark is not None and not bookmark.absolute().parent.is_dir():
        raise InvalidInput(f"--bookmark {bookmark}: the folder does not exist; make it first")
    if bookmark is not None and bookmark.exists():
        try:
            since = weir.Bookmark.from_json(bookmark.read_text(encoding="utf-8", errors="replace"))
        except InvalidInput as error:
            raise InvalidInput(f"--bookmark {bookmark}: {error}") from error
    if rows:
        changes = table.follow(consumer, since, once=not follow, poll=poll, expired=expired)
    else:
        changes = table.changes(since, follow, poll=poll, expired=expired, consumer=consumer)
    labels = {shard.id: shard.value for shard in table.shards()}
    left = limit
    is_shown = True
    _keep(bookmark, changes.bookmark)
    with contextlib.suppress(KeyboardInterrupt):
        for change in changes:
            # A place is between two changes, so what it passes is shown whole.
            whole = left is None or bookmark is not None or consumer is not None
            batch = change.batch if whole else change.batch.slice(0, left)
            is_shown = False
            _show(change, batch, labels, call.out)
            is_shown = True
            _keep(bookmark, change.bookmark)
            if left is not None:
                left -= batch.num_rows
                if left <= 0:
                    break
        else:
            _keep(bookmark, changes.bookmark)
    if consumer is not None and is_shown:
        changes.commit()


def _keep(bookmark: Path | None, at: weir.Bookmark) -> None:
    """Save the bookmark after each change, in case the process is killed."""
    if bookmark is None:
        return
    written = bookmark.with_name(f".{bookmark.name}.new")
    written.write_text(at.to_json() + "\n", encoding="utf-8")
    written.replace(bookmark)


def _show(
    change: weir.Change, batch: pa.RecordBatch, labels: Mapping[UUID, Value], out: Output
) -> None:
    from weir.cli import rows

    mark, style, rest = ("+", "good", "") if change.kind == "put" else ("-", "bad", "bad")
    label = output.label(change.shard, labels.get(change.shard))
    for row in rows.objects(batch):
        told = {
            "shard": change.shard,
            "position": change.position,
            "epoch": change.epoch,
            "kind": change.kind,
            "row": row,
        }
        cells = [
            part for n, item in row.items() for part in ((f"  {n}=", "dim"), rows.cell(item, out))
        ]
        head = (mark, style), (f" {label:>4} {change.position:>6}", "dim")
        # One line for each: a terminal shows what fits, a pipe gets all of it.
        line = Text.assemble(*head, *cells, style=rest, no_wrap=True)
        out.show(told, line)
