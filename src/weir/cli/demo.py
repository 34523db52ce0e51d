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
        str, typer.Option("--store", metavar="KIND", help="local, or s3 (starts a SeaweedFS).")
    ] = "local",
    rows: Annotated[
        int, typer.Option("--rows", metavar="N", min=1000, help="Events in the stream.")
    ] = 60_000,
    spark: Annotated[
        bool, typer.Option("--spark/--no-spark", help="Use Spark, or only this process.")
    ] = True,
    keep: Annotated[
        Path | None,
        typer.Option("--keep", metavar="FOLDER", help="Keep the table there (local only)."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the stream.")] = 7,
    json: o.Json = False,
) -> None:
    """Show all of weir at work in two minutes.

    Streams orders into a table, kills a writer, fences and replays, compacts, clones, and collects
    garbage. Checks the results against the generated stream.
    """
    if store not in ("local", "s3"):
        raise typer.BadParameter(f"must be local or s3, not {store!r}", param_hint="--store")
    from weir.demo.run import run  # imports Spark's parts, so only when the command runs

    passed = run(store=store, rows=rows, use_spark=spark, keep=keep, seed=seed, as_json=json)
    if not passed:
        raise typer.Exit(1)
