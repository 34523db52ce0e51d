"""`weir clone`, `weir restore` and `weir drop`: copy, roll back or delete a table."""

from __future__ import annotations

from shlex import quote

import click

import weir
from weir.cli import options as o
from weir.cli import output
from weir.cli.invocation import Invocation, command
from weir.errors import InvalidInput


@command("clone", example="weir clone s3://lake/orders s3://lake/orders-try")
@o.uri
@click.argument("destination", metavar="DESTINATION", help="Where the new table goes.")
@o.text("--checkpoint", metavar="NAME", about="Checkpoint to clone; default: now.")
@o.wal_uri
@o.flag("--deep", about="Copy the base too; share no files.")
def clone(
    call: Invocation,
    uri: str,
    destination: str,
    checkpoint: str | None,
    wal_uri: str | None,
    *,
    deep: bool,
) -> None:
    """Make an independent table from this one or a checkpoint of it.

    The base is shared, not copied, unless --deep is given. Later writes to one of the two tables
    do not affect the other.
    """
    table = call.open(uri)
    storage = call.storage(destination) or None
    if checkpoint is None and weir.exists(destination, storage_options=storage):
        # With a checkpoint, the same clone again is a retry; without one, it means a new moment.
        raise InvalidInput(f"{destination} is a table already; clone to an empty place")
    with call.out.working("copying" if deep else "cloning"):
        copy = table.clone(
            destination, checkpoint=checkpoint, wal_uri=wal_uri, deep=deep, storage_options=storage
        )
    call.out.show(
        {"uri": copy.uri, "from": table.uri, "shards": len(copy.shards())},
        output.done("cloned", f"to {copy.uri}"),
    )


@command("restore", example="weir restore s3://lake/orders nightly")
@o.uri
@click.argument("checkpoint", metavar="CHECKPOINT", help="Name or id of the checkpoint.")
@o.yes
def restore(call: Invocation, uri: str, checkpoint: str, *, yes: bool) -> None:
    """Roll the table back to a checkpoint.

    Rows written since then are no longer part of the table; its writers are fenced.
    """
    from weir.upkeep.checkpoint import find

    table = call.open(uri)
    find(table.core, checkpoint)  # fail before asking for confirmation
    call.out.confirm(f"Roll {table.uri} back to checkpoint {checkpoint!r}?", yes=yes)
    with call.out.working("restoring"):
        undo = table.restore(checkpoint).undo.id
    call.out.show(
        {"uri": table.uri, "restored": checkpoint, "undo": undo},
        output.done("restored", f"{table.uri} to {checkpoint}"),
        output.aside(f"to undo, within seven days: weir restore {quote(table.uri)} {undo}"),
    )


@command("drop", example="weir drop s3://lake/orders-try")
@o.uri
@o.yes
def drop(call: Invocation, uri: str, *, yes: bool) -> None:
    """Delete the table with all its rows, logs and checkpoints.

    This cannot be undone. Its writers are fenced first. A table whose files a clone shares is not
    deleted.
    """
    table = call.open(uri)  # fail before asking for confirmation
    question = f"Delete {table.uri} with all its rows, logs and checkpoints?"
    call.out.confirm(question, yes=yes)
    with call.out.working("dropping"):
        weir.drop(uri, storage_options=call.storage(uri) or None)
    call.out.show({"uri": table.uri, "dropped": True}, output.done("dropped", table.uri))
