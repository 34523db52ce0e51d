"""`weir consumer list|drop`."""

from __future__ import annotations

from dataclasses import asdict

import click

from weir.cli import options as o
from weir.cli import output
from weir.cli.checkpoint import remaining
from weir.cli.invocation import Invocation, command


@click.group(
    "consumer", no_args_is_help=True, epilog="Example: weir consumer list s3://lake/orders"
)
def consumer() -> None:
    """List and drop named consumers of the change feed."""


@command("list", group=consumer, example="weir consumer list s3://lake/orders")
@o.uri
def list_(call: Invocation, uri: str) -> None:
    """List the consumers, and how many log entries are kept for each."""
    table = call.open(uri)
    found = table.stats().consumers
    now = table.core.env.clock.wall()  # only shown; see weir checkpoint list
    rows = [
        (one.name, f"{one.lag:,}", remaining(one.expires - now), "" if one.has_rows else "yes")
        for one in found
    ]
    view = output.grid("consumer", ">behind", "expires", "reads its first rows", rows=rows)
    call.out.show([asdict(one) for one in found], view if found else output.aside("no consumers"))


@command("drop", group=consumer, example="weir consumer drop s3://lake/orders mirror")
@o.uri
@click.argument("name", metavar="NAME", help="Name of the consumer.")
@o.yes
def drop(call: Invocation, uri: str, name: str, *, yes: bool) -> None:
    """End a consumer: nothing is kept for it from now on.

    A process that still reads with this name fails when it saves its place.
    """
    table = call.open(uri)
    question = f"Drop consumer {name}? gc may then delete what it has not read."
    call.out.confirm(question, yes=yes)
    table.drop_consumer(name)
    call.out.show({"dropped": name}, output.done("dropped", f"{name}; weir gc frees the space"))
