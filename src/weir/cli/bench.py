"""`weir bench`: measures durable writes and reads on the user's own store."""

from __future__ import annotations

from typing import Annotated

import typer

from weir.bench.quick import run
from weir.cli import options as o
from weir.cli import screen, settings


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(
        epilog="Example: [bold]weir bench s3://lake/scratch --seconds 10[/bold]",
        rich_help_panel="Upkeep",
    )(bench)


def bench(
    uri: Annotated[
        str, typer.Argument(help="A folder for a scratch table, deleted at the end.", metavar="URI")
    ],
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="S", min=0.1, help="Seconds per measurement.")
    ] = 5.0,
    putters: Annotated[
        int, typer.Option("--putters", metavar="N", min=1, help="Concurrent threads that put.")
    ] = 8,
    rows: Annotated[int, typer.Option("--rows", metavar="N", min=1, help="Rows per put.")] = 10,
    option: o.Options = None,
    config: o.Config = None,
    json: o.Json = False,
) -> None:
    """Measure puts and fresh reads on your own store.

    `make bench` in the repository compares weir with other systems.
    """
    with screen.working("measuring", quiet=json):
        report = run(
            uri,
            storage_options=settings.storage_options(uri, option, config),
            seconds=seconds,
            putters=putters,
            rows=rows,
        )
    if json:
        screen.emit(report)
        return
    view = screen.grid("measured", ">per second", ">median", ">99 %", ">99.9 %")
    for line in report.lines:
        view.add_row(
            line.name,
            f"{line.per_second:,.0f}",
            *(screen.span(share) for share in (line.p50, line.p99, line.p999)),
        )
    screen.out().print(view)
