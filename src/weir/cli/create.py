"""`weir create` and `weir enable` make tables; `weir expire` sets how long rows live."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote
from typing import TYPE_CHECKING

import click

import weir
from weir.cli import options as o
from weir.cli import output
from weir.cli.invocation import Invocation, command

if TYPE_CHECKING:
    import pyarrow as pa


@command(
    "create",
    example="weir create s3://lake/orders -C id:int64 -C total:float64 --key id --bucket id:8",
)
@o.uri
@o.text(
    "--column", "-C", multiple=True, metavar="NAME:TYPE", about="A column; 'id:int64!' is not null."
)
@o.text("--like", metavar="FILE", about="Copy the columns of this data file.")
@o.key
@o.bucket
@o.identity
@o.per_writer
@o.wal_uri
@o.text("--expire", metavar="COLUMN=TIME", about="When rows expire, e.g. ts=30d.")
@o.defaults
def create(
    call: Invocation,
    uri: str,
    column: Sequence[str],
    like: str | None,
    key: str | None,
    bucket: str | None,
    identity: str | None,
    per_writer: bool,
    wal_uri: str | None,
    expire: str | None,
    set_: Sequence[str],
) -> None:
    """Make an empty table."""
    if bool(column) == bool(like):
        raise click.UsageError("give the columns with either --column or --like")
    keys = o.names(key) or []
    table = weir.create(
        uri,
        schema_of(call, column, like, keys),
        primary_key=keys or None,
        sharding=o.sharding(bucket, identity, per_writer=per_writer),
        wal_uri=wal_uri,
        expire=None if expire is None else _rule(expire, "--expire"),
        writer_defaults=o.writer_config(set_),
        storage_options=call.storage(uri),
    )
    _tell(call, table, "created")


@command("enable", example="weir enable s3://lake/old.lance --key id --bucket id:8")
@o.uri
@o.key
@o.bucket
@o.identity
@o.per_writer
@o.wal_uri
@o.defaults
def enable(
    call: Invocation,
    uri: str,
    key: str | None,
    bucket: str | None,
    identity: str | None,
    per_writer: bool,
    wal_uri: str | None,
    set_: Sequence[str],
) -> None:
    """Adopt a Lance dataset as a weir table, in place.

    The rows stay where they are. A key that the dataset does not declare yet must be unique and not
    null.
    """
    table = weir.enable(
        uri,
        primary_key=o.names(key),
        sharding=o.sharding(bucket, identity, per_writer=per_writer),
        wal_uri=wal_uri,
        writer_defaults=o.writer_config(set_),
        storage_options=call.storage(uri),
    )
    _tell(call, table, "enabled")


@command("expire", example="weir expire s3://lake/orders ts=30d")
@o.uri
@click.argument(
    "rule",
    required=False,
    metavar="COLUMN=TIME",
    help="A time column and the lifetime from then on.",
)
@o.flag("--never", about="Rows never expire.")
def expire(call: Invocation, uri: str, rule: str | None, *, never: bool) -> None:
    """Show or change when rows expire.

    Reads everywhere apply a new rule at once; compaction drops expired rows. Under a longer rule,
    rows that were hidden but not dropped yet come back. Checkpoints keep their own rule.
    """
    if never and rule is not None:
        raise click.UsageError("give a rule or --never, not both")
    table = call.open(uri)
    if never or rule is not None:
        table.set_expire(None if rule is None else _rule(rule, "COLUMN=TIME"))
    now = table.expire
    told = None if now is None else {"column": now.column, "after_s": now.after_s}
    call.out.show({"uri": table.uri, "expire": told}, output.aside(_lifetime(now)))


def schema_of(
    call: Invocation, columns: Sequence[str], like: str | None, key: Sequence[str]
) -> pa.Schema:
    """The schema of a new table: the columns of --column or --like, without nulls in the key."""
    import pyarrow as pa

    from weir.cli import sources
    from weir.format.type_texts import parse_column

    if like is not None:
        fields = list(sources.schema_of(like, call.storage(like)))
    else:
        with o.usage("--column"):
            fields = [parse_column(text) for text in columns]
    return pa.schema([f.with_nullable(f.nullable and f.name not in key) for f in fields])


def _rule(text: str, hint: str) -> weir.Expire:
    column, separator, after = text.rpartition("=")
    if not separator or not column.strip():
        raise click.BadParameter("write COLUMN=TIME, e.g. ts=30d", param_hint=hint)
    with o.usage(hint):
        return weir.Expire(column.strip(), after=after.strip())


def _lifetime(rule: weir.Expire | None) -> str:
    if rule is None:
        return "rows never expire"
    return f"rows expire {output.span(rule.after_s)} after {rule.column}"


def _tell(call: Invocation, table: weir.Table, verb: str) -> None:
    shards = len(table.shards())
    call.out.show(
        {
            "uri": table.uri,
            "primary_key": table.primary_key,
            "sharding": str(table.sharding),
            "shards": shards,
            "wal_uri": table.wal_uri,
            "columns": {field.name: str(field.type) for field in table.schema},
        },
        output.done(verb, table.uri),
        output.facts(
            {
                "key": ", ".join(table.primary_key) or "none: append-only",
                "shards": shards,
                "columns": ", ".join(f"{f.name} {f.type}" for f in table.schema),
                **({"log": table.wal_uri} if table.wal_uri else {}),
                **({"expiry": _lifetime(table.expire)} if table.expire else {}),
                "next": f"weir put {quote(table.uri)} FILE",
            }
        ),
    )
