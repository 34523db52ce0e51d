"""`weir create` and `weir enable` make tables; `weir expire` sets how long rows live."""

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
    app.command(
        epilog="Example: [bold]weir expire s3://lake/orders ts=30d[/bold]",
        rich_help_panel="Tables",
    )(expire)


def create(
    uri: o.Uri,
    column: Annotated[
        list[str] | None,
        typer.Option(
            "--column", "-C", metavar="NAME:TYPE", help="A column; 'id:int64!' is not nullable."
        ),
    ] = None,
    like: Annotated[
        str | None,
        typer.Option("--like", metavar="FILE", help="Copy the columns of this data file."),
    ] = None,
    key: o.Key = None,
    bucket: o.BucketBy = None,
    identity: o.IdentityBy = None,
    wal_uri: o.WalUri = None,
    expire: Annotated[
        str | None,
        typer.Option("--expire", metavar="COLUMN=TIME", help="When rows expire, e.g. ts=30d."),
    ] = None,
    set_: o.Settings = None,
    option: o.Options = None,
    config: o.Config = None,
    json: o.Json = False,
) -> None:
    """Make an empty table."""
    keys = o.names(key) or []
    if bool(column) == bool(like):
        raise typer.BadParameter("give the columns with either --column or --like")
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
        expire=None if expire is None else _rule(expire, "--expire"),
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
    """Adopt a Lance dataset as a weir table, in place.

    The rows stay where they are. A key that the dataset does not declare yet must be unique and not
    null.
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


def expire(
    uri: o.Uri,
    rule: Annotated[
        str | None,
        typer.Argument(help="A time column and the lifetime from then on.", metavar="COLUMN=TIME"),
    ] = None,
    never: Annotated[bool, typer.Option("--never", help="Rows never expire.")] = False,
    option: o.Options = None,
    config: o.Config = None,
    json: o.Json = False,
) -> None:
    """Show or change when rows expire.

    Reads everywhere apply a new rule at once; compaction drops expired rows. Under a longer rule,
    rows that were hidden but not dropped yet come back. Checkpoints keep their own rule.
    """
    if never and rule is not None:
        raise typer.BadParameter("give a rule or --never, not both", param_hint="COLUMN=TIME")
    table = o.open_table(uri, option, config)
    if never or rule is not None:
        table.set_expire(None if rule is None else _rule(rule, "COLUMN=TIME"))
    now = table.expire
    if json:
        told = None if now is None else {"column": now.column, "after_s": now.after_s}
        screen.emit({"uri": table.uri, "expire": told})
        return
    screen.out().print(_lifetime(now), soft_wrap=True)


def _rule(text: str, hint: str) -> weir.Expire:
    column, separator, after = text.rpartition("=")
    if not separator or not column.strip():
        raise typer.BadParameter("write COLUMN=TIME, e.g. ts=30d", param_hint=hint)
    try:
        return weir.Expire(column.strip(), after=after.strip())
    except weir.InvalidInput as error:
        raise typer.BadParameter(str(error), param_hint=hint) from error


def _lifetime(rule: weir.Expire | None) -> str:
    if rule is None:
        return "rows never expire"
    return f"rows expire {screen.span(rule.after_s)} after {escape(rule.column)}"


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
                **({"expiry": _lifetime(table.expire)} if table.expire else {}),
                "next": f"weir put {table.uri} FILE",
            }
        )
    )
