"""`weir clone`, `weir restore` and `weir drop`: copy, roll back or delete a table."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

import weir
from weir.cli import options as o
from weir.cli import screen, settings
from weir.errors import InvalidInput
from weir.upkeep.checkpoint import find


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(
        epilog="Example: [bold]weir clone s3://lake/orders s3://lake/orders-try[/bold]",
        rich_help_panel="Upkeep",
    )(clone)
    app.command(
        epilog="Example: [bold]weir restore s3://lake/orders nightly[/bold]",
        rich_help_panel="Upkeep",
    )(restore)
    app.command(
        epilog="Example: [bold]weir drop s3://lake/orders-try[/bold]",
        rich_help_panel="Upkeep",
    )(drop)


def clone(
    uri: o.Uri,
    destination: Annotated[
        str, typer.Argument(help="Where the new table goes.", metavar="DESTINATION")
    ],
    checkpoint: Annotated[
        str | None,
        typer.Option("--checkpoint", metavar="NAME", help="Checkpoint to clone; default: now."),
    ] = None,
    wal_uri: o.WalUri = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Copy the base too; share no files.")
    ] = False,
    option: o.Options = None,
    config: o.Config = None,
    json: o.Json = False,
) -> None:
    """Make an independent table from this one or a checkpoint of it.

    The base is shared, not copied, unless --deep is given. Later writes to one of the two tables
    do not affect the other.
    """
    table = o.open_table(uri, option, config)
    found = settings.storage_options(destination, option, config) or None
    if checkpoint is None and _stands(destination, found):
        # With a checkpoint, the same clone again is a retry; without one, it means a new moment.
        raise InvalidInput(f"{destination} is a table already; clone to an empty place")
    with screen.working("copying" if deep else "cloning", quiet=json):
        copy = table.clone(
            destination,
            checkpoint=checkpoint,
            wal_uri=wal_uri,
            deep=deep,
            storage_options=found,
        )
    if json:
        screen.emit({"uri": copy.uri, "from": table.uri, "shards": len(copy.shards())})
    else:
        screen.out().print(f"[good]cloned[/good] to {escape(copy.uri)}", soft_wrap=True)


def _stands(uri: str, options: dict[str, str] | None) -> bool:
    try:
        weir.open(uri, storage_options=options)
    except weir.WeirError:
        return False  # nothing, or an unfinished clone: the library handles both
    return True


def restore(
    uri: o.Uri,
    checkpoint: Annotated[
        str, typer.Argument(help="Name or id of the checkpoint.", metavar="CHECKPOINT")
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    option: o.Options = None,
    config: o.Config = None,
    json: o.Json = False,
) -> None:
    """Roll the table back to a checkpoint.

    Rows written since then are no longer part of the table; its writers are fenced.
    """
    table = o.open_table(uri, option, config)
    find(table.core, checkpoint)  # fail before asking for confirmation
    if not yes and not json:
        screen.confirm(f"Roll {table.uri} back to checkpoint {checkpoint!r}?")
    with screen.working("restoring", quiet=json):
        undo = table.restore(checkpoint).undo.id
    if json:
        screen.emit({"uri": table.uri, "restored": checkpoint, "undo": undo})
        return
    console = screen.out()
    console.print(
        f"[good]restored[/good] {escape(table.uri)} to {escape(checkpoint)}", soft_wrap=True
    )
    console.print(
        f"[dim]to undo, within seven days: weir restore {escape(table.uri)} {undo}[/dim]",
        soft_wrap=True,
    )


def drop(
    uri: o.Uri,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    option: o.Options = None,
    config: o.Config = None,
    json: o.Json = False,
) -> None:
    """Delete the table with all its rows, logs and checkpoints.

    This cannot be undone. Its writers are fenced first. A table whose files a clone shares is not
    deleted.
    """
    table = o.open_table(uri, option, config)  # fail before asking for confirmation
    if not yes and not json:
        screen.confirm(f"Delete {table.uri} with all its rows, logs and checkpoints?")
    with screen.working("dropping", quiet=json):
        weir.drop(uri, storage_options=settings.storage_options(uri, option, config) or None)
    if json:
        screen.emit({"uri": table.uri, "dropped": True})
    else:
        screen.out().print(f"[good]dropped[/good] {escape(table.uri)}", soft_wrap=True)
