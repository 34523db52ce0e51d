"""`weir create` and `weir enable`: where tables come from."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

import weir
from weir.cli import options as o
from weir.cli import schemas, screen, settings, sources


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(
        epilog="Example: [bold]weir create s3://lake/orders -C id:int64 -C total:float64"
        " --key id --bucket id:8[/bold]",
        rich_help_panel="Tables",
    )(create)
    app.command(
        epilog="Example: [bold]weir enable s3://lake/old.lance --key id --bucket id:8[/bold]",
        rich_help_panel="Tables",
    )(enable)


def create(
    uri: o.Uri,
    column: Annotated[
        list[str] | None,
        typer.Option(
            "--column", "-C", metavar="NAME:TYPE", help="A column; 'id:int64!' has no nulls."
        ),
    ] = None,
    like: Annotated[
        str | None, typer.Option("--like", metavar="FILE", help="The columns of this data file.")
    ] = None,
    key: o.Key = None,
    bucket: o.BucketBy = None,
    identity: o.IdentityBy = None,
    wal_uri: o.WalUri = None,
    set_: o.Settings = None,
    option: o.Options = None,
    config: o.Config = None,
    json: o.Json = False,
) -> None:
    """Make an empty table."""
    keys = o.names(key) or []
    if bool(column) == bool(like):
        raise typer.BadParameter("give the columns with --column, or a file with --like")
    found = settings.storage_options(uri, option, config)
    if column:
        schema = schemas.parse(column, keys)
    else:
        assert like is not None
        schema = schemas.require(sources.schema_of(like, found), keys)
    table = weir.create(
        uri,
        schema,
        primary_key=keys or None,
        sharding=o.sharding(bucket, identity),
        wal_uri=wal_uri,
        writer_defaults=o.writer_config(set_),
        storage_options=found,
    )
    _tell(table, "created", json=json)


def enable(
    uri: o.Uri,
    key: o.Key = None,
    bucket: o.BucketBy = None,
    identity: o.IdentityBy = None,
    wal_uri: o.WalUri = None,
    set_: o.Settings = None,
    option: o.Options = None,
    config: o.Config = None,
    json: o.Json = False,
) -> None:
    """Adopt a Lance dataset in place.

    Its rows stay where they are. A key it does not declare yet must be unique and without nulls.
    """
    table = weir.enable(
        uri,
        primary_key=o.names(key),
        sharding=o.sharding(bucket, identity),
        wal_uri=wal_uri,
        writer_defaults=o.writer_config(set_),
        storage_options=settings.storage_options(uri, option, config),
    )
    _tell(table, "enabled", json=json)


def _tell(table: weir.Table, verb: str, *, json: bool) -> None:
    shards = table.shards()
    if json:
        screen.emit(
            {
                "uri": table.uri,
                "primary_key": table.primary_key,
                "sharding": str(table.sharding),
                "shards": len(shards),
                "wal_uri": table.wal_uri,
                "columns": {field.name: str(field.type) for field in table.schema},
            }
        )
        return
    console = screen.out()
    console.print(f"[good]{verb}[/good] {escape(table.uri)}", soft_wrap=True)
    console.print(
        screen.facts(
            {
                "key": ", ".join(table.primary_key) or "none: append-only",
                "shards": len(shards),
                "columns": ", ".join(f"{f.name} {f.type}" for f in table.schema),
                **({"log": table.wal_uri} if table.wal_uri else {}),
                "next": f"weir put {table.uri} FILE",
            }
        )
    )
