"""`weir demo`: the main job from end to end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weir.cli import options as o


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(epilog="Example: [bold]weir demo --store s3[/bold]", rich_help_panel="Tables")(demo)


def demo(
    store: Annotated[
        str, typer.Option("--store", metavar="KIND", help="local, or s3: starts a SeaweedFS.")
    ] = "local",
    rows: Annotated[
        int, typer.Option("--rows", metavar="N", min=1000, help="Events in the stream.")
    ] = 60_000,
    spark: Annotated[
        bool, typer.Option("--spark/--no-spark", help="With Spark, or without.")
    ] = True,
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="FOLDER", help="Leave the table there.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Of the generated stream.")] = 7,
    json: o.Json = False,
) -> None:
    """Show all of weir at work in two minutes.

    Streams, kills a writer, fences and replays, compacts, clones, collects. Uses a table of
    orders on local disk, and checks every count against the generator.
    """
    if store not in ("local", "s3"):
        raise typer.BadParameter("local or s3", param_hint="--store")
    from weir.demo.run import run  # imports Spark's parts, so only when the command runs

    passed = run(store=store, rows=rows, use_spark=spark, keep=keep, seed=seed, as_json=json)
    if not passed:
        raise typer.Exit(1)
