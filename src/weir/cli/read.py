"""`weir scan`, `weir get` and `weir search`: read rows of a table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

import weir
from weir.cli import options as o
from weir.cli import output
from weir.cli.invocation import Invocation, command
from weir.errors import InvalidInput, WeirError

if TYPE_CHECKING:
    import pyarrow as pa

    from weir.read.snapshot import Freshness

_format = o.choice(
    "--format", "-f", "format_", of=o.OUTPUTS, about="Of the rows; --json means jsonl."
)


@command("scan", example="weir scan s3://lake/orders --filter 'total > 100' -n 10")
@o.uri
@o.columns
@o.text(
    "--computed", multiple=True, metavar="NAME=SQL", about="Computed column: 'total=price * qty'."
)
@o.filter_
@o.number("--limit", "-n", about="At most this many rows.")
@o.freshness
@o.checkpoint
@o.flag("--count", about="Print only the number of rows.")
@o.flag("--explain", about="Print only what would be read.")
@_format
@o.file("--output", "target", about="Write to this file.")
def scan(
    call: Invocation,
    uri: str,
    columns: str | None,
    computed: Sequence[str],
    filter_: str | None,
    limit: int | None,
    freshness: Freshness,
    checkpoint: str | None,
    *,
    count: bool,
    explain: bool,
    format_: str,
    target: Path | None,
) -> None:
    """Read rows, the newest of each key.

    With freshness durable, shows every acknowledged row, whichever process wrote it.
    """
    from weir.cli import rows

    kind = rows.kind_of(format_, target, as_json=call.json)
    table = call.open(uri)
    read = table.scan(
        columns=o.computed(columns, computed, table.schema),
        filter=filter_,
        limit=limit,
        freshness=freshness,
        checkpoint=checkpoint,
    )
    if count:
        number = read.count()
        call.out.show({"rows": number}, str(number))
    elif explain:
        text = read.explain()
        call.out.show({"plan": text.splitlines()}, output.aside(text))
    else:
        rows.write(read.to_reader(), kind, call.out, target)


@command("get", example="weir get s3://lake/orders 17 18")
@o.uri
@click.argument(
    "key", nargs=-1, required=True, metavar="KEY...", help="Keys; one of two columns is a,b."
)
@o.columns
@o.freshness
@o.checkpoint
@_format
def get(
    call: Invocation,
    uri: str,
    key: Sequence[str],
    columns: str | None,
    freshness: Freshness,
    checkpoint: str | None,
    format_: str,
) -> None:
    """Read the rows with these keys.

    Exit status 1 if one of them is missing.
    """
    from weir.cli import rows

    kind = rows.kind_of(format_, None, as_json=call.json)
    table = call.open(uri)
    asked = _keys(key, table.primary_key, table.schema)
    found = table.get(asked, columns=o.names(columns), freshness=freshness, checkpoint=checkpoint)
    rows.write(found.to_reader(), kind, call.out)
    wanted = asked.group_by(list(table.primary_key)).aggregate([]).num_rows
    if found.num_rows < wanted:
        raise WeirError(f"{table.uri}: {wanted - found.num_rows} of {wanted} keys not found")


@command("search", example="weir search s3://lake/docs text 'fresh rows' -k 5")
@o.uri
@click.argument("column", metavar="COLUMN", help="The vector or text column.")
@click.argument("query", metavar="QUERY", help="Words, or a vector as '[0.1, 0.2]'.")
@o.number("--k", "-k", least=1, default=10, about="How many rows.")
@o.number("--offset", default=0, about="Skip this many of the best rows.")
@o.flag("--phrase", about="Match the words as a phrase.")
@click.option("--all", "every", is_flag=True, help="Match rows with all the words.")
@o.columns
@o.filter_
@o.freshness
@_format
def search(
    call: Invocation,
    uri: str,
    column: str,
    query: str,
    k: int,
    offset: int,
    *,
    phrase: bool,
    every: bool,
    columns: str | None,
    filter_: str | None,
    freshness: Freshness,
    format_: str,
) -> None:
    """Find the rows nearest to a vector or best matching words.

    Also finds rows that were acknowledged a moment ago.
    """
    from weir.cli import rows

    kind = rows.kind_of(format_, None, as_json=call.json)
    found: pa.Table = call.open(uri).search(
        column,
        _query(query, phrase=phrase, every=every),
        k=k,
        offset=offset,
        filter=filter_,
        columns=o.names(columns),
        freshness=freshness,
    )
    rows.write(found.to_reader(), kind, call.out)


def _query(text: str, *, phrase: bool, every: bool) -> weir.Words | list[float]:
    if phrase and every:
        raise click.UsageError("use --phrase or --all, not both: a phrase matches all its words")
    if phrase or every:
        return weir.Phrase(text) if phrase else weir.Match(text, operator="and")
    if not text.lstrip().startswith("["):
        return text
    try:
        return [float(number) for number in json.loads(text)]
    except (ValueError, TypeError) as error:
        raise InvalidInput(
            f"QUERY begins with [ and is not a JSON list of numbers: {error}"
        ) from error


def _keys(given: Sequence[str], names: Sequence[str], schema: pa.Schema) -> pa.Table:
    """The keys, converted to the types of the key columns."""
    import pyarrow as pa

    from weir.cli import texts

    if not names:
        raise InvalidInput("the table is append-only and has no key; use weir scan --filter")
    split = [text.split(",") if len(names) > 1 else [text] for text in given]
    if any(len(parts) != len(names) for parts in split):
        raise InvalidInput(
            f"a key is {', '.join(names)}: write a value for each, separated by commas"
        )
    schema = pa.schema([schema.field(name).with_nullable(True) for name in names])
    cells = pa.table([pa.array(parts) for parts in zip(*split, strict=True)], names=list(names))
    try:
        return texts.typed(cells, schema, lambda row: f"key {row + 1}")
    except ValueError as error:
        raise InvalidInput(str(error)) from error
