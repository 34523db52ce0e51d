"""`weir tail`: the change feed, in the style of `tail -f`."""

from __future__ import annotations

import contextlib
import json as jsonlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated
from uuid import UUID

import pyarrow as pa
import typer
from rich.markup import escape

import weir
from weir.cli import options as o
from weir.cli import rows, screen
from weir.errors import InvalidInput
from weir.format.sharding import Value
from weir.read.changes import Changes


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(
        epilog="Example: [bold]weir tail s3://lake/orders --new[/bold]", rich_help_panel="Rows"
    )(tail)


def tail(
    uri: o.Uri,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", "-f", help="Wait for changes until Ctrl-C.")
    ] = True,
    new: Annotated[bool, typer.Option("--new", help="Only changes from now on.")] = False,
    expired: Annotated[bool, typer.Option("--expired", help="Also show rows that expire.")] = False,
    bookmark: Annotated[
        Path | None,
        typer.Option("--bookmark", metavar="FILE", help="Resume from this file; update it."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", metavar="N", min=0, help="Stop after N rows.")
    ] = None,
    poll: Annotated[
        float, typer.Option("--poll", metavar="S", help="Seconds between polls.")
    ] = 0.5,
    option: o.Options = None,
    config: o.Config = None,
    json: o.Json = False,
) -> None:
    """Show puts and deletes as they become durable.

    In order within a shard. Entries that gc deleted are not shown; read the table with `weir scan`
    first.
    """
    table = o.open_table(uri, option, config)
    since = None
    if bookmark is not None and not bookmark.absolute().parent.is_dir():
        raise InvalidInput(f"--bookmark {bookmark}: the folder does not exist; make it first")
    if bookmark is not None and bookmark.exists():
        since = weir.Bookmark.from_json(bookmark.read_text(encoding="utf-8"))
    elif new:
        since = weir.Bookmark({shard.shard: shard.wal_tip for shard in table.stats().shards})
    changes = table.changes(since=since, follow=follow, poll=poll, expired=expired)
    labels = {shard.id: shard.value for shard in table.shards()}
    left = limit
    with contextlib.suppress(KeyboardInterrupt):
        for change in changes:
            _keep(bookmark, changes)  # in case the process is killed rather than stopped by Ctrl-C
            batch = change.batch if left is None else change.batch.slice(0, left)
            _show(change, batch, labels, json=json)
            if left is not None:
                left -= batch.num_rows
                if left <= 0:
                    break
    _keep(bookmark, changes)


def _keep(bookmark: Path | None, changes: Changes) -> None:
    """Save the bookmark; everything before the current change has been shown."""
    if bookmark is None:
        return
    written = bookmark.with_name(f".{bookmark.name}.new")
    written.write_text(changes.bookmark.to_json() + "\n", encoding="utf-8")
    written.replace(bookmark)


def _show(
    change: weir.Change, batch: pa.RecordBatch, labels: Mapping[UUID, Value], *, json: bool
) -> None:
    found = batch.to_pylist()
    if json:
        about = {
            "shard": str(change.shard),
            "position": change.position,
            "epoch": change.epoch,
            "kind": change.kind,
        }
        lines = [jsonlib.dumps({**about, "row": row}, default=rows.value) + "\n" for row in found]
        sys.stdout.write("".join(lines))
        sys.stdout.flush()
        return
    is_put = change.kind == "put"
    mark, style = ("+", "good") if is_put else ("-", "bad")
    value = labels.get(change.shard)
    label = escape(str(change.shard)[:8] if value is None else str(value))
    console = screen.out()
    for row in found:
        cells = "  ".join(
            f"[dim]{escape(name)}=[/dim]{rows.short(cell)}" for name, cell in row.items()
        )
        console.print(
            f"[{style}]{mark}[/] [dim]{label:>4} {change.position:>6}[/]  {cells}",
            style=None if is_put else "bad",
            no_wrap=True,
            overflow="ellipsis",
            crop=True,
        )
