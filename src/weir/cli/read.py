"""`weir scan`, `weir get` and `weir search`: read rows of a table."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer

import weir
from weir.cli import options as o
from weir.cli import rows, screen
from weir.errors import InvalidInput

Format = Annotated[
    str, typer.Option("--format", "-f", metavar="F", help="table, jsonl, csv, arrow or parquet.")
]
Output = Annotated[
    Path | None, typer.Option("--output", metavar="FILE", help="Write to this file.")
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(
        epilog="Example: [bold]weir scan s3://lake/orders --filter 'total > 100' -n 10[/bold]",
        rich_help_panel="Rows",
    )(scan)
    app.command(
        epilog="Example: [bold]weir get s3://lake/orders 17 18[/bold]", rich_help_panel="Rows"
    )(get)
    app.command(
        epilog="Example: [bold]weir search s3://lake/docs text 'fresh rows' -k 5[/bold]",
        rich_help_panel="Rows",
    )(search)


def scan(
    uri: o.Uri,
    columns: o.Columns = None,
    computed: o.Computed = None,
    filter: o.Filter = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-n", metavar="N", min=0, help="At most this many rows."),
    ] = None,
    freshness: o.Freshness = "durable",
    checkpoint: o.Checkpoint = None,
    count: Annotated[bool, typer.Option("--count", help="Print only the number of rows.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print only what would be read.")
    ] = False,
    format: Format = "table",
    output: Output = None,
    option: o.Options = None,
    config: o.Config = None,
    json: o.Json = False,
) -> None:
    """Read rows, the newest of each key.

    With freshness durable, shows every acknowledged row, whichever process wrote it.
    """
    kind = rows.check_format(format, as_json=json)
    if output is not None and kind == "table":
        kind = rows.format_of(output)
    table = o.open_table(uri, option, config)
    read = table.scan(
        columns=o.computed(columns, computed, table.schema),
        filter=filter,
        limit=limit,
        freshness=freshness,  # type: ignore[arg-type]
        checkpoint=checkpoint,
    )
    if count:
        number = read.count()
        screen.emit({"rows": number}) if json else print(number)
    elif explain:
        text = read.explain()
        screen.emit({"plan": text.splitlines()}) if json else print(text)
    else:
        rows.write(read.to_reader(), kind, output)


def get(
    uri: o.Uri,
    key: Annotated[
        list[str], typer.Argument(help="Keys; write a key of two columns as a,b.", metavar="KEY")
    ],
    columns: o.Columns = None,
    freshness: o.Freshness = "durable",
    checkpoint: o.Checkpoint = None,
    format: Format = "table",
    option: o.Options = None,
    config: o.Config = None,
    json: o.Json = False,
) -> None:
    """Read the rows with these keys.

    Exit status 1 if one of them is missing.
    """
    kind = rows.check_format(format, as_json=json)
    table = o.open_table(uri, option, config)
    found = table.get(
        _keys(key, table.primary_key, table.schema),
        columns=o.names(columns),
        freshness=freshness,  # type: ignore[arg-type]
        checkpoint=checkpoint,
    )
    rows.write(found.to_reader(), kind)
    if found.num_rows < len(set(key)):
        screen.complain(
            f"{table.uri}: {len(set(key)) - found.num_rows} of {len(set(key))} keys not found"
        )
        raise typer.Exit(1)


def search(
    uri: o.Uri,
    column: Annotated[str, typer.Argument(help="The vector or text column.", metavar="COLUMN")],
    query: Annotated[
        str, typer.Argument(help="Words, or a vector as '[0.1, 0.2]'.", metavar="QUERY")
    ],
    k: Annotated[int, typer.Option("--k", "-k", metavar="N", min=1, help="How many rows.")] = 10,
    offset: Annotated[
        int, typer.Option("--offset", metavar="N", min=0, help="Skip this many of the best rows.")
    ] = 0,
    phrase: Annotated[bool, typer.Option("--phrase", help="Match the words as a phrase.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Match rows with all the words.")] = False,
    columns: o.Columns = None,
    filter: o.Filter = None,
    freshness: o.Freshness = "durable",
    format: Format = "table",
    option: o.Options = None,
    config: o.Config = None,
    json: o.Json = False,
) -> None:
    """Find the rows nearest to a vector or best matching words.

    Also finds rows that were acknowledged a moment ago.
    """
    kind = rows.check_format(format, as_json=json)
    table = o.open_table(uri, option, config)
    found: pa.Table = table.search(
        column,
        _query(query, phrase=phrase, every=every),
        k=k,
        offset=offset,
        filter=filter,
        columns=o.names(columns),
        freshness=freshness,  # type: ignore[arg-type]
    )
    rows.write(found.to_reader(), kind)


def _query(text: str, *, phrase: bool, every: bool) -> weir.Words | list[float]:
    if phrase and every:
        raise InvalidInput(
            "use --phrase or --all, not both: a phrase already matches all of its words"
        )
    if phrase or every:
        return weir.Phrase(text) if phrase else weir.Match(text, operator="and")
    if not text.lstrip().startswith("["):
        return text
    try:
        return [float(number) for number in jsonlib.loads(text)]
    except (ValueError, TypeError) as error:
        raise InvalidInput(
            f"QUERY begins with [ and is not a JSON list of numbers: {error}"
        ) from error


def _keys(texts: list[str], names: tuple[str, ...], schema: pa.Schema) -> pa.Table:
    """The keys, converted to the types of the key columns."""
    if not names:
        raise InvalidInput("the table is append-only and has no key; use weir scan --filter")
    split = [text.split(",") if len(names) > 1 else [text] for text in texts]
    if any(len(parts) != len(names) for parts in split):
        raise InvalidInput(
            f"a key is {', '.join(names)}: write a value for each, separated by commas"
        )
    columns = []
    for place, name in enumerate(names):
        kind = schema.field(name).type
        texts_of = pa.array([parts[place] for parts in split], pa.string())
        try:
            columns.append(texts_of.cast(kind))
        except pa.ArrowInvalid as error:
            raise InvalidInput(f"key column {name!r} is {kind}: {error}") from error
    return pa.table(columns, names=list(names))
