"""`weir checkpoint create|list|refresh|delete|release`."""

from __future__ import annotations

from typing import Annotated, Any, cast

import typer
from rich.markup import escape

from weir.cli import options as o
from weir.cli import screen
from weir.errors import CheckpointNotFound
from weir.records.checkpoints import Scope

Ref = Annotated[str, typer.Argument(help="Name or id of the checkpoint.", metavar="CHECKPOINT")]
Ttl = Annotated[
    str | None,
    typer.Option(
        "--ttl", metavar="TIME", help="Lifetime, e.g. 7d; default: no expiry.", callback=o.duration
    ),
]
_PANEL = "Upkeep"


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode="rich",
        help="Create, list, extend and delete checkpoints.",
        epilog="Example: [bold]weir checkpoint create s3://lake/orders --ttl 7d[/bold]",
    )
    uri = "s3://lake/orders"
    for command, example in (
        (create, f"weir checkpoint create {uri} --name nightly --ttl 7d"),
        (list_, f"weir checkpoint list {uri}"),
        (refresh, f"weir checkpoint refresh {uri} nightly --ttl 7d"),
        (delete, f"weir checkpoint delete {uri} nightly"),
        (release, f"weir checkpoint release {uri} s3://lake/orders-try"),
    ):
        name = command.__name__.rstrip("_")
        group.command(name, epilog=f"Example: [bold]{example}[/bold]")(command)
    app.add_typer(group, name="checkpoint", rich_help_panel=_PANEL)


def create(
    uri: o.Uri,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Name of the checkpoint.")
    ] = None,
    ttl: Ttl = None,
    scope: Annotated[
        str,
        typer.Option(
            "--scope", metavar="SCOPE", help="durable, or all (claims and flushes first)."
        ),
    ] = "durable",
    option: o.Options = None,
    config: o.Config = None,
    json: o.Json = False,
) -> None:
    """Pin the table as it is now.

    Scope durable holds every acknowledged row and disturbs no writer. Scope all flushes first, so
    that no log is needed to read it; a writer with unflushed rows in another process is fenced.
    """
    table = o.open_table(uri, option, config)
    with screen.working("flushing" if scope == "all" else "pinning", quiet=json):
        made = table.checkpoint(scope=cast("Scope", scope), name=name, ttl=ttl)
    if json:
        screen.emit(about(made))
        return
    console = screen.out()
    console.print(
        f"[good]pinned[/good] {made.id}" + (f" [bold]{escape(made.name)}[/]" if made.name else "")
    )
    console.print(
        f"[dim]expires {screen.moment(made.expires)}[/dim]"
        if made.expires
        else "[dim]does not expire; delete it with weir checkpoint delete[/dim]"
    )


def list_(
    uri: o.Uri, option: o.Options = None, config: o.Config = None, json: o.Json = False
) -> None:
    """List the checkpoints, oldest first."""
    table = o.open_table(uri, option, config)
    found = table.checkpoints()
    if json:
        screen.emit([about(one) for one in found])
        return
    now = table.core.env.clock.wall()  # to read the store's clock takes a write; this is only shown
    view = screen.grid("checkpoint", "scope", "created", "expires", "held by")
    for one in found:
        left = None if one.expires is None else one.expires - now
        view.add_row(
            # Other commands accept the name or the id.
            escape(one.name) if one.name else f"[dim]{one.id}[/]",
            one.scope,
            f"{screen.span(max(0.0, now - one.created))} ago",
            screen.remaining(left),
            escape(one.owner or ""),
        )
    screen.out().print(view if found else "[dim]no checkpoints[/dim]")


def refresh(
    uri: o.Uri,
    checkpoint: Ref,
    ttl: Ttl = None,
    option: o.Options = None,
    config: o.Config = None,
    json: o.Json = False,
) -> None:
    """Extend the lifetime of a checkpoint; never shorten it."""
    found = o.open_table(uri, option, config).refresh_checkpoint(checkpoint, ttl=ttl)
    if json:
        screen.emit(about(found))
    else:
        screen.out().print(f"[good]refreshed[/good], expires {screen.moment(found.expires)}")


def delete(
    uri: o.Uri,
    checkpoint: Ref,
    option: o.Options = None,
    config: o.Config = None,
    json: o.Json = False,
) -> None:
    """Delete a checkpoint, or all checkpoints with that name."""
    table = o.open_table(uri, option, config)
    if not any(checkpoint in (one.name, str(one.id)) for one in table.checkpoints()):
        raise CheckpointNotFound(
            f"{table.uri} has no checkpoint {checkpoint!r}; weir checkpoint list shows all"
        )
    table.delete_checkpoint(checkpoint)
    if json:
        screen.emit({"deleted": checkpoint})
    else:
        screen.out().print(f"[good]deleted[/good] {escape(checkpoint)}; weir gc frees the space")


def release(
    uri: o.Uri,
    clone: Annotated[str, typer.Argument(help="URI of the deleted clone.", metavar="CLONE")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    option: o.Options = None,
    config: o.Config = None,
    json: o.Json = False,
) -> None:
    """Release the files that a deleted clone still holds.

    Collection never assumes that a clone it cannot see was deleted: its disk may not be mounted
    here. If the clone still exists, it loses files it shares with this table at the next gc.
    """
    table = o.open_table(uri, option, config)
    if not yes and not json:
        screen.confirm(f"Release the files of {clone}? If it still exists, it loses them.")
    released = table.release_clone(clone)
    if json:
        screen.emit({"released": released})
    else:
        screen.out().print(
            f"[good]released[/good] the files of {escape(clone)}; weir gc frees the space",
            soft_wrap=True,
        )


def about(one: Any) -> dict[str, Any]:
    """A checkpoint as JSON output."""
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
