"""`weir ls`: the tables in a place."""

from __future__ import annotations

import click
from rich.text import Text

from weir.cli import output
from weir.cli.invocation import Invocation, command


@command("ls", example="weir ls s3://lake")
@click.argument("prefix", metavar="PREFIX", help="A folder: a path, s3://, gs:// or az://.")
def ls(call: Invocation, prefix: str) -> None:
    """List the tables directly in a folder.

    One listing, one for each folder in it, and two requests for each table. Links are not followed.
    The exit status is 1 if a folder could not be searched; the others are listed.
    """
    from weir.keep.discover import tables_in
    from weir.store.open import normalize

    found = tables_in(prefix, call.storage)
    call.out.show(found.tables, *map(Text, found.tables))
    if not found.tables and not call.json:
        output.complain(f"no tables in {normalize(prefix)}")
    for each in found.failed:
        output.complain(f"{each.uri} could not be searched: {each.said}")
    if found.failed:
        raise click.exceptions.Exit(1)
