"""`weir checkpoint` and `weir consumer`: what holds on to older rows and log entries."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click
from rich.text import Text

from weir.cli import options as o
from weir.cli import output
from weir.cli.invocation import Invocation, command
from weir.errors import CheckpointNotFound

if TYPE_CHECKING:
    from weir.records.checkpoints import Checkpoint, Scope

_reference = click.argument("reference", metavar="CHECKPOINT", help="Name or id.")
_ttl = o.time("--ttl", about="Lifetime, e.g. 7d; default: no expiry.")


@click.group(
    "checkpoint",
    no_args_is_help=True,
    epilog="Example: weir checkpoint create s3://lake/orders --ttl 7d",
)
def checkpoint() -> None:
    """Create, list, extend and delete checkpoints."""


@command(
    "create",
    group=checkpoint,
    example="weir checkpoint create s3://lake/orders --name nightly --ttl 7d",
)
@o.uri
@o.text("--name", metavar="NAME", about="Name of the checkpoint.")
@_ttl
@o.choice("--scope", of=["durable", "all"], about="All rows as they are, or claim and flush first.")
def create(call: Invocation, uri: str, name: str | None, ttl: float | None, scope: Scope) -> None:
    """Pin the table as it is now.

    Scope durable holds every acknowledged row and disturbs no writer. Scope all flushes first, so
    that no log is needed to read it; a writer with unflushed rows in another process is fenced.
    """
    table = call.open(uri)
    with call.out.working("flushing" if scope == "all" else "pinning"):
        made = table.checkpoint(scope=scope, name=name, ttl=ttl)
    call.out.show(
        _about(made),
        output.done("pinned", f"{made.id}" + (f" {made.name}" if made.name else "")),
        _until(made),
    )


@command("list", group=checkpoint, example="weir checkpoint list s3://lake/orders")
@o.uri
def list_(call: Invocation, uri: str) -> None:
    """List the checkpoints, oldest first."""
    table = call.open(uri)
    found = table.checkpoints()
    now = table.core.env.clock.wall()  # to read the store's clock takes a write; this is only shown
    rows = [
        (
            one.name or str(one.id),  # other commands accept either
            one.scope,
            f"{output.span(max(0.0, now - one.created))} ago",
            remaining(None if one.expires is None else one.expires - now),
            one.owner or "",
        )
        for one in found
    ]
    view = output.grid("checkpoint", "scope", "created", "expires", "held by", rows=rows)
    call.out.show([_about(one) for one in found], view if found else output.aside("no checkpoints"))


@command(
    "refresh",
    group=checkpoint,
    example="weir checkpoint refresh s3://lake/orders nightly --ttl 7d",
)
@o.uri
@_reference
@_ttl
def refresh(call: Invocation, uri: str, reference: str, ttl: float | None) -> None:
    """Extend the lifetime of a checkpoint; never shorten it."""
    found = call.open(uri).refresh_checkpoint(reference, ttl=ttl)
    call.out.show(_about(found), output.done("refreshed", found.name or ""), _until(found))


@command("delete", group=checkpoint, example="weir checkpoint delete s3://lake/orders nightly")
@o.uri
@_reference
def delete(call: Invocation, uri: str, reference: str) -> None:
    """Delete a checkpoint, or all checkpoints with that name."""
    table = call.open(uri)
    if not any(reference in (one.name, str(one.id)) for one in table.checkpoints()):
        raise CheckpointNotFound(
            f"{table.uri} has no checkpoint {reference!r}; weir checkpoint list shows all"
        )
    table.delete_checkpoint(reference)
    call.out.show(
        {"deleted": reference}, output.done("deleted", f"{reference}; weir gc frees the space")
    )


@command(
    "release",
    group=checkpoint,
    example="weir checkpoint release s3://lake/orders s3://lake/orders-try",
)
@o.uri
@click.argument("clone", metavar="CLONE", help="URI of the deleted clone.")
@o.yes
def release(call: Invocation, uri: str, clone: str, *, yes: bool) -> None:
    """Release the files that a deleted clone still holds.

    Collection never assumes that a clone it cannot see was deleted: its disk may not be mounted
    here. If the clone still exists, it loses files it shares with this table at the next gc.
    """
    table = call.open(uri)
    question = f"Release the files of {clone}? If it still exists, it loses them."
    call.out.confirm(question, yes=yes)
    released = table.release_clone(clone)
    call.out.show(
        {"released": released},
        output.done("released", f"the files of {clone}; weir gc frees the space"),
    )


@click.group(
    "consumer", no_args_is_help=True, epilog="Example: weir consumer list s3://lake/orders"
)
def consumer() -> None:
    """List and drop named consumers of the change feed."""


@command("list", group=consumer, example="weir consumer list s3://lake/orders")
@o.uri
def list_consumers(call: Invocation, uri: str) -> None:
    """List the consumers, and how many log entries are kept for each."""
    table = call.open(uri)
    found = table.stats().consumers
    now = table.core.env.clock.wall()  # only shown, as above
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
def drop_consumer(call: Invocation, uri: str, name: str, *, yes: bool) -> None:
    """End a consumer: nothing is kept for it from now on.

    A process that still reads with this name fails when it saves its place.
    """
    table = call.open(uri)
    question = f"Drop consumer {name}? gc may then delete what it has not read."
    call.out.confirm(question, yes=yes)
    table.drop_consumer(name)
    call.out.show({"dropped": name}, output.done("dropped", f"{name}; weir gc frees the space"))


def remaining(seconds: float | None) -> str:
    """The remaining lifetime in readable form."""
    if seconds is None:
        return "never"
    return f"in {output.span(seconds)}" if seconds > 0 else "expired"


def _until(one: Checkpoint) -> Text:
    until = "does not expire; delete it with weir checkpoint delete"
    return output.aside(until if one.expires is None else f"expires {output.moment(one.expires)}")


def _about(one: Checkpoint) -> dict[str, object]:
    return {
        "id": one.id,
        "name": one.name,
        "scope": one.scope,
        "created": one.created,
        "expires": one.expires,
        "base_version": one.base_version,
        "owner": one.owner,
        "shards": len(one.shards),
    }
