"""`weir wal move`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from weir.cli import options as o
from weir.cli import screen

_PANEL = "Upkeep"


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode="rich",
        help="Choose where a table stores its log.",
        epilog="Example: [bold]weir wal move s3://lake/orders /nvme/orders-wal[/bold]",
    )
    example = "weir wal move s3://lake/orders /nvme/orders-wal"
    group.command("move", epilog=f"Example: [bold]{example}[/bold]")(move)
    # Without a callback, typer would turn a group with a single command into that command.
    group.callback()(lambda: None)
    app.add_typer(group, name="wal", rich_help_panel=_PANEL)


def move(
    uri: o.Uri,
    destination: Annotated[
        str | None, typer.Argument(help="The new store for the log.", metavar="WAL_URI")
    ] = None,
    beside: Annotated[
        bool, typer.Option("--beside", help="Move the log back beside the data.")
    ] = False,
    option: o.Options = None,
    config: o.Config = None,
    json: o.Json = False,
) -> None:
    """Move the log of all shards to another store.

    Claims, flushes and switches each shard. Writers in other processes are fenced, and use the new
    store when they are opened again. Readers and change feeds follow by themselves. To finish an
    interrupted move, run it again.
    """
    if beside == (destination is not None):
        raise typer.BadParameter("give either a WAL_URI or --beside", param_hint="WAL_URI")
    table = o.open_table(uri, option, config)
    with screen.working("moving the log", quiet=json) as progress:
        report = table.move_wal(destination, progress=screen.progress_callback(progress))
    if json:
        screen.emit(report)
        return
    place = "beside the data" if report.wal_uri is None else f"to {escape(report.wal_uri)}"
    moved, there = len(report.moved), len(report.already_there)
    screen.out().print(f"[good]moved[/good] the log {place}: {screen.many(moved, 'shard')}")
    if there:
        screen.out().print(f"[dim]{screen.many(there, 'shard')} already there[/dim]")
