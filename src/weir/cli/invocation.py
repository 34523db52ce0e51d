"""What all commands share: three options, the table they open, the output; and how one is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec

import click

import weir
from weir.cli import settings
from weir.cli.output import Output
from weir.lazy import Lazy

P = ParamSpec("P")


@dataclass
class Invocation:
    """One call of the command, with its `--json`, `--option` and `--config`."""

    json: bool = False
    option: Sequence[str] = ()
    config: Path | None = None

    @Lazy
    def out(self) -> Output:
        """Where results go."""
        return Output(json=self.json)

    def storage(self, uri: str) -> dict[str, str]:
        """The storage options for that place."""
        return settings.storage_options(uri, self.option, self.config)

    def open(self, uri: str) -> weir.Table:
        """The table there."""
        return weir.open(uri, storage_options=self.storage(uri))


def _keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    call = context.ensure_object(Invocation)
    assert parameter.name is not None
    if value:  # given to the group, or to the command, or to both
        setattr(call, parameter.name, value)


SHARED: Final[list[click.Parameter]] = [
    click.Option(
        ["--option", "-o"],
        multiple=True,
        metavar="NAME=VALUE",
        expose_value=False,
        callback=_keep,
        help="A storage option; repeat for more.",
    ),
    click.Option(
        ["--config"],
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        expose_value=False,
        callback=_keep,
        help="Configuration file.",
    ),
    click.Option(["--json"], is_flag=True, expose_value=False, callback=_keep, help="Print JSON."),
]
"""Accepted by `weir` itself and after every command."""


def command(
    name: str, *, example: str, group: click.Group | None = None, hidden: bool = False
) -> Callable[[Callable[Concatenate[Invocation, P], None]], click.Command]:
    """Make a command of a function: its docstring is the help, its first argument the call."""

    def make(function: Callable[Concatenate[Invocation, P], None]) -> click.Command:
        made = click.command(name, epilog=f"Example: {example}", hidden=hidden)(
            click.make_pass_decorator(Invocation, ensure=True)(function)
        )
        made.params += SHARED
        if group is not None:
            group.add_command(made)
        return made

    return make
