"""`weir upgrade`: upgrades a table of an older format to the current one."""

from __future__ import annotations

from typing import Annotated

import typer

from weir.cli import options as o
from weir.cli import screen


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(
        epilog="Example: [bold]weir upgrade s3://lake/orders --dry-run[/bold]",
        rich_help_panel="Upkeep",
    )(upgrade)


def upgrade(
    uri: o.Uri,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done; write nothing.")
    ] = False,
    quiet: Annotated[
        str,
        typer.Option(
            "--quiet",
            metavar="TIME",
            help="Refuse if an unflushed entry is younger than this.",
            callback=o.duration,
        ),
    ] = "1m",
    option: o.Options = None,
    config: o.Config = None,
    json: o.Json = False,
) -> None:
    """Upgrade a table of weir 0.1.0 to the format shared with LanceDB.

    Drains every log, folds, verifies rows and keys, then records the new format. Stop the writers
    first. To finish an interrupted upgrade, run it again.
    """
    table = o.open_table(uri, option, config)
    with screen.working("upgrading", quiet=json) as progress:
        report = table.upgrade(
            dry_run=dry_run, quiet=quiet, progress=screen.progress_callback(progress)
        )
    if json:
        screen.emit(report)
        return
    console = screen.out()
    if report.before == report.after:
        console.print(f"[good]nothing to do[/good]: format {report.after} is the newest")
        return
    verb = "would upgrade" if dry_run else "upgraded"
    console.print(
        f"[good]{verb}[/good] from format {report.before} to {report.after}:"
        f" {screen.many(report.rows, 'row')}{'' if dry_run else ' verified'}"
    )
    console.print(
        screen.facts(
            {
                "drained": f"{screen.many(report.shards, 'shard')},"
                f" {screen.many(report.sstables, 'SSTable')},"
                f" {report.entries:,} log entries",
                **(
                    {}
                    if report.checkpoint is None
                    else {
                        "to go back": f"clone checkpoint {report.checkpoint}, kept for seven days"
                    }
                ),
            }
        )
    )
