"""The arguments and options that several commands share, each defined once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import click

import weir
from weir.durations import seconds
from weir.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa

    from weir import types
    from weir.config import WriterConfig
    from weir.format.sharding import Sharding

F = TypeVar("F", bound=Callable[..., object])


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


SPAN = Duration()
PAUSE = Duration(least=0.1)
"""Between two looks at a store: without one, they would be all that it does."""


class Option(Protocol):
    """Adds an option to a command."""

    def __call__(self, function: F, /) -> F:
        """The function with the option."""


INPUTS: Final = ("parquet", "csv", "jsonl", "arrow", "lance")
"""The formats of rows that `weir put` reads."""
OUTPUTS: Final = ("table", "jsonl", "csv", "arrow", "parquet")
"""Those that `weir scan` writes; a table is for people."""
STDIN: Final = "-"


def flag(name: str, *, about: str) -> Option:
    """A switch."""
    return click.option(name, is_flag=True, help=about)


def text(*names: str, metavar: str, about: str, **more: Any) -> Option:
    """Any text."""
    return click.option(*names, metavar=metavar, help=about, **more)


def number(*names: str, least: int = 0, default: int | None = None, about: str) -> Option:
    """A whole number."""
    kind = click.IntRange(min=least)
    return click.option(*names, type=kind, default=default, metavar="N", help=about)


def time(*names: str, kind: Duration = SPAN, default: str | None = None, about: str) -> Option:
    """A duration."""
    return click.option(*names, type=kind, default=default, metavar="TIME", help=about)


def choice(*names: str, of: Sequence[str], about: str) -> Option:
    """One of some words; the first of them if it is not given."""
    return click.option(*names, type=click.Choice(of), default=of[0], help=about)


def file(*names: str, about: str) -> Option:
    """The name of a file."""
    kind = click.Path(dir_okay=False, path_type=Path)
    return click.option(*names, type=kind, metavar="FILE", help=about)


uri = click.argument("uri", metavar="URI", help="The table: a path, s3://, gs:// or az://.")
freshness = choice(
    "--freshness", of=["durable", "flushed", "base"], about="How new the rows are that are read."
)
checkpoint = text("--checkpoint", metavar="NAME", about="Read this checkpoint.")
columns = text("--columns", "-c", metavar="A,B", about="Columns to read; all if left out.")
filter_ = text("--filter", "-w", "filter_", metavar="SQL", about="Rows to read, e.g. 'v > 0.5'.")
key = text("--key", "-k", metavar="A,B", about="Primary key; append-only if none.")
bucket = text("--bucket", metavar="COLUMN:N", about="N shards by a hash of a column.")
identity = text("--identity", metavar="COLUMN", about="One shard per value of a column.")
per_writer = flag("--per-writer", about="One shard per writer, append-only; as many as you run.")
wal_uri = text("--wal-uri", metavar="URI", about="A second store for the log.")
defaults = text(
    "--set", "set_", multiple=True, metavar="NAME=VALUE", about="A writer default; repeat for more."
)
yes = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
watch = time("--watch", kind=PAUSE, about="Repeat until Ctrl-C, with this pause.")


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
    options = {"--bucket": bucket, "--identity": identity, "--per-writer": per_writer or None}
    given = [name for name, value in options.items() if value is not None]
    if len(given) > 1:
        raise click.UsageError(f"give one of {' and '.join(given)}, not both")
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
