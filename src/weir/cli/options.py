"""The options that several commands share, each defined once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer

import weir
from weir import types
from weir.cli import settings
from weir.config import WriterConfig
from weir.durations import seconds
from weir.errors import InvalidInput
from weir.format.sharding import BUCKETS_MAX, Sharding
from weir.read.snapshot import check_freshness

Uri = Annotated[
    str, typer.Argument(help="The table: a path, s3://, gs:// or az://.", metavar="URI")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", metavar="NAME=VALUE", help="A storage option; repeat for more."),
]
Config = Annotated[
    Path | None,
    typer.Option("--config", help="Configuration file.", metavar="FILE", dir_okay=False),
]


def _freshness(value: str) -> str:
    try:
        return check_freshness(value)
    except InvalidInput as error:
        raise typer.BadParameter(str(error)) from error


def duration(value: str | None) -> str | None:
    """Check an option that takes a duration, such as 15m or 7d; a typer callback."""
    try:
        if value is not None:
            seconds(value)
    except InvalidInput as error:
        raise typer.BadParameter(str(error)) from error
    return value


Freshness = Annotated[
    str,
    typer.Option(
        "--freshness", metavar="LEVEL", help="base, flushed or durable.", callback=_freshness
    ),
]
Checkpoint = Annotated[
    str | None,
    typer.Option("--checkpoint", metavar="NAME", help="Read this checkpoint."),
]
Columns = Annotated[
    str | None,
    typer.Option("--columns", "-c", metavar="A,B", help="Columns to read; all if left out."),
]
Computed = Annotated[
    list[str] | None,
    typer.Option(
        "--computed", metavar="NAME=SQL", help="Computed column, e.g. 'total=price * qty'."
    ),
]
Filter = Annotated[
    str | None, typer.Option("--filter", "-w", metavar="SQL", help="Rows to read, e.g. 'v > 0.5'.")
]
Key = Annotated[
    str | None,
    typer.Option("--key", "-k", metavar="A,B", help="Primary key; append-only if none."),
]
BucketBy = Annotated[
    str | None,
    typer.Option("--bucket", metavar="COLUMN:N", help="N shards by a hash of a column."),
]
IdentityBy = Annotated[
    str | None,
    typer.Option("--identity", metavar="COLUMN", help="One shard per value of a column."),
]
WalUri = Annotated[
    str | None, typer.Option("--wal-uri", metavar="URI", help="A second store for the log.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A writer default; repeat for more."),
]


def open_table(uri: str, given: list[str] | None, config: Path | None) -> weir.Table:
    """Open the table at `uri` with the storage options for it."""
    return weir.open(uri, storage_options=settings.storage_options(uri, given, config))


def names(text: str | None) -> list[str] | None:
    """The column names in a text like 'a,b'."""
    if text is None:
        return None
    return [part.strip() for part in text.split(",") if part.strip()]


def computed(
    columns: str | None, more: list[str] | None, schema: pa.Schema
) -> types.Columns | None:
    """The columns of --columns, or all, followed by the computed columns of --computed."""
    if not more:
        return names(columns)
    asked = {name: name for name in names(columns) or schema.names}
    for text in more:
        name, equals, sql = text.partition("=")
        if not (name.strip() and equals and sql.strip()):
            raise typer.BadParameter(f"write --computed as NAME=SQL, not {text!r}")
        asked[name.strip()] = sql.strip()
    return asked


def sharding(bucket: str | None, identity: str | None) -> Sharding | None:
    """The sharding from --bucket or --identity; None if neither was given."""
    if bucket is not None and identity is not None:
        raise typer.BadParameter("give --bucket or --identity, not both", param_hint="--bucket")
    if identity is not None:
        return weir.Identity(identity)
    if bucket is None:
        return None
    column, separator, number = bucket.rpartition(":")
    if not separator or not number.isdigit() or not 1 <= int(number) <= BUCKETS_MAX:
        text = f"write COLUMN:N, e.g. id:8, with N from 1 to {BUCKETS_MAX}"
        raise typer.BadParameter(text, param_hint="--bucket")
    return weir.Bucket(column, int(number))


def writer_config(pairs: list[str] | None) -> WriterConfig | None:
    """The writer configuration from --set; None if it was not given."""
    if not pairs:
        return None
    values: dict[str, object] = {}
    known = WriterConfig().to_record()
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator or name not in known:
            choices = ", ".join(sorted(known))
            raise typer.BadParameter(
                f"{pair!r}: write NAME=VALUE, with NAME one of {choices}", param_hint="--set"
            )
        values[name] = _value(name, text, known[name])
    return WriterConfig(**values)  # type: ignore[arg-type]


def _value(name: str, text: str, default: object) -> object:
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise InvalidInput(f"--set {name}: must be true or false, not {text!r}")
        return text.lower() == "true"
    if isinstance(default, int):
        if not text.isdigit():
            raise InvalidInput(f"--set {name}: must be a whole number, not {text!r}")
        return int(text)
    if isinstance(default, float):
        return float(text) if text.replace(".", "", 1).isdigit() else text
    raise InvalidInput(
        f"--set cannot change {name}; create the table in Python, with writer_defaults"
    )
