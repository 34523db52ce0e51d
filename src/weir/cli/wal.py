"""`weir wal move`."""

from __future__ import annotations

import click

from weir.cli import options as o
from weir.cli import output
from weir.cli.invocation import Invocation, command

_EXAMPLE = "weir wal move s3://lake/orders /nvme/orders-wal"


@click.group("wal", no_args_is_help=True, epilog=f"Example: {_EXAMPLE}")
def wal() -> None:
    """Choose where a table stores its log."""


@command("move", group=wal, example=_EXAMPLE)
@o.uri
@click.argument("destination", required=False, metavar="WAL_URI", help="The log's new store.")
@click.option("--beside", is_flag=True, help="Move the log back beside the data.")
@click.option(
    "--accept-loss", is_flag=True, help="Give up a log that is gone, and the rows only it held."
)
def move(
    call: Invocation, uri: str, destination: str | None, *, beside: bool, accept_loss: bool
) -> None:
    """Move the log of all shards to another store.

    Claims, flushes and switches each shard. Writers in other processes are fenced, and use the new
    store when they are opened again. Readers and change feeds follow by themselves. To finish an
    interrupted move, run it again.
    """
    if beside == (destination is not None):
        raise click.UsageError("give either a WAL_URI or --beside")
    table = call.open(uri)
    with call.out.working("moving the log") as progress:
        report = table.move_wal(destination, accept_loss=accept_loss, progress=progress)
    place = "beside the data" if report.wal_uri is None else f"to {report.wal_uri}"
    moved, there = (output.many(len(s), "shard") for s in (report.moved, report.already_there))
    told = [output.done("moved", f"the log {place}: {moved}")]
    if report.already_there:
        told.append(output.aside(f"{there} already there"))
    call.out.show(report, *told)
