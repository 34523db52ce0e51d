"""`weir doctor`: checks that the installation is complete and the store keeps its promises."""

from __future__ import annotations

import click
from rich.text import Text

from weir.cli import output
from weir.cli.invocation import Invocation, command
from weir.errors import WeirError


@command("doctor", example="weir doctor s3://lake/orders")
@click.argument("uri", required=False, metavar="URI", help="A table, or the place for a new one.")
def doctor(call: Invocation, uri: str | None) -> None:
    """Check the installation, a store, a table.

    With a URI, checks the store and the table there. Tests put-if-absent with concurrent
    writes under _weir/probe/, and removes what it wrote.
    """
    from weir.cli import checks

    found = list(checks.check_installation(call.config))
    if uri is not None:
        found += checks.check_place(uri, call.storage(uri))
    bad = [finding for finding in found if finding.state == "bad"]
    rows = [(_mark(finding.state), finding.name, finding.detail) for finding in found]
    call.out.show({"ok": not bad, "findings": found}, output.grid("", "what", "found", rows=rows))
    if bad:
        raise WeirError(f"{bad[0].name}: {bad[0].detail}")


def _mark(state: str) -> Text:
    return Text(state, {"ok": "good", "note": "warn"}.get(state, "bad"))
