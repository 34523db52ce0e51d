"""The arguments and options that several commands share, each defined once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

import weir
from weir.durations import seconds
from weir.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa

    from weir import types
    from weir.config import WriterConfig
    from weir.format.sharding import Sharding


@contextmanager
def usage(option: str | None = None) -> Iterator[None]:
    """Turn `InvalidInput` into wrong usage of that option."""
    try:
        yield
    except InvalidInput as error:
        raise click.BadParameter(str(error), param_hint=option) from error


class Duration(click.ParamType[float]):
    """A number of seconds, or a text such as 15m or 7d; at least `least` seconds."""

    name = "time"

    def __init__(self, least: float = 0.0) -> None:
        self.least = least

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number of seconds."""
        try:
            found = seconds(value)
        except InvalidInput:
            self.fail(f"write a time such as 0.5s, 15m or 7d, not {value!r}", param, ctx)
        if found < self.least:
            self.fail(f"{value!r} is less than {self.least:g}s", param, ctx)
        return found


PAUSE = Duration(least=0.1)
"""Between two looks at a store: without one, they would be all that it does."""


uri = click.argument("uri", metavar="URI", help="The table: a path, s3://, gs:// or az://.")
freshness = click.option(
    "--freshness",
    type=click.Choice(["base", "flushed", "durable"]),
    default="durable",
    help="How new the rows are that are read.",
)
checkpoint = click.option("--checkpoint", metavar="NAME", help="Read this checkpoint.")
columns = click.option("--columns", "-c", metavar="A,B", help="Columns to read; all if left out.")
filter_ = click.option(
    "--filter", "-w", "filter_", metavar="SQL", help="Rows to read, e.g. 'v > 0.5'."
)
key = click.option("--key", "-k", metavar="A,B", help="Primary key; append-only if none.")
bucket = click.option("--bucket", metavar="COLUMN:N", help="N shards by a hash of a column.")
identity = click.option("--identity", metavar="COLUMN", help="One shard per value of a column.")
per_writer = click.option(
    "--per-writer", is_flag=True, help="One shard per writer, append-only; as many as you run."
)
wal_uri = click.option("--wal-uri", metavar="URI", help="A second store for the log.")
defaults = click.option(
    "--set", "set_", multiple=True, metavar="NAME=VALUE", help="A writer default; repeat for more."
)
yes = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
watch = click.option(
    "--watch", type=PAUSE, metavar="TIME", help="Repeat until Ctrl-C, with this pause."
)


def names(text: str | None) -> list[str] | None:
    """The column names in a text like 'a,b'; None if it was not given."""
    if text is None:
        return None
    found = [part.strip() for part in text.split(",") if part.strip()]
    if not found:
        raise click.UsageError("name at least one column, or leave the option out")
    return found


def computed(columns: str | None, more: Sequence[str], schema: pa.Schema) -> types.Columns | None:
    """The columns of --columns, or all, followed by the computed columns of --computed."""
    if not more:
        return names(columns)
    asked = {name: name for name in names(columns) or schema.names}
    for text in more:
        name, equals, sql = text.partition("=")
        if not (name.strip() and equals and sql.strip()):
            raise click.BadParameter(f"write --computed as NAME=SQL, not {text!r}")
        asked[name.strip()] = sql.strip()
    return asked


def sharding(
    bucket: str | None, identity: str | None, *, per_writer: bool = False
) -> Sharding | None:
    """The sharding from --bucket, --identity or --per-writer; None if none was given."""
    if (bucket is not None) + (identity is not None) + per_writer > 1:
        raise click.UsageError("give one of --bucket, --identity and --per-writer")
    if per_writer:
        return weir.PerWriter()
    if identity is not None:
        return weir.Identity(identity)
    if bucket is None:
        return None
    from weir.format.sharding import BUCKETS_MAX

    column, separator, number = bucket.rpartition(":")
    if not separator or not number.isdigit() or not 1 <= int(number) <= BUCKETS_MAX:
        text = f"write COLUMN:N, e.g. id:8, with N from 1 to {BUCKETS_MAX}"
        raise click.BadParameter(text, param_hint="--bucket")
    return weir.Bucket(column, int(number))


def writer_config(pairs: Sequence[str]) -> WriterConfig | None:
    """The writer configuration from --set; None if it was not given."""
    if not pairs:
        return None
    from weir.config import WriterConfig

    known = sorted(WriterConfig().to_record().keys() - {"index_configs"})  # which Python sets
    values: dict[str, object] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator or name not in known:
            problem = f"{pair!r}: write NAME=VALUE, with NAME one of {', '.join(known)}"
            raise click.BadParameter(problem, param_hint="--set")
        values[name] = _SPELT.get(text.lower(), int(text) if text.isdecimal() else text)
    with usage("--set"):
        return WriterConfig(**values)  # type: ignore[arg-type]


_SPELT: Final = {"true": True, "false": False, "none": None}
