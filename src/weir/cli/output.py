"""Everything that the command prints. Results go to standard output, progress and messages to
standard error, so that a pipe gets data only."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final, TextIO, TypeAlias
from uuid import UUID

import click
from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

from weir.errors import WeirError
from weir.lazy import Lazy

Plain: TypeAlias = "bool | int | float | str | list[Plain] | dict[str, Plain] | None"
"""What JSON can hold."""
UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
NARROWEST: Final = 40
"""Columns: on a narrower terminal lines are broken by the terminal, not squeezed to nothing."""
UNBOUNDED: Final = 1 << 30
"""Columns of what is no terminal: in a pipe or a file nothing is cut or broken."""

# Fixed colours of the 256, not the terminal's own sixteen: those are chosen for one background,
# and yellow on white cannot be read. Each of these has a contrast of 4 against both black and
# white.
GOOD: Final = "color(28)"
WARN: Final = "color(130)"
BAD: Final = "color(161)"
MARK: Final = "color(30)"
GREY: Final = "color(243)"

THEME: Final = Theme(
    {
        "good": GOOD,
        "warn": WARN,
        "bad": BAD,
        "mark": MARK,
        "bar.back": GREY,
        "bar.complete": MARK,
        "bar.finished": GOOD,
        "bar.pulse": MARK,
        "progress.spinner": MARK,
        "progress.percentage": MARK,
        "progress.elapsed": GREY,
    }
)

_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def harmless(text: str) -> str:
    """The text with a '?' for each control character except newline and tab.

    A terminal obeys them: a row, or the name of a folder, could clear the screen, change the title
    of the window, or hide what was printed before.
    """
    return _CONTROLS.sub("?", text)


class Screen(Console):
    """A terminal that shows text and obeys none of it: rows and messages may be a stranger's."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The segments of `renderable`, their text without control characters."""
        for segment in super().render(renderable, options):
            # Rich's own commands, such as moving the cursor, are no text.
            yield segment if segment.control else Segment(harmless(segment.text), segment.style)


class Output:
    """Tables and sentences for people, or one line of JSON for programs."""

    def __init__(self, *, json: bool = False) -> None:
        self.json = json

    @property
    def is_terminal(self) -> bool:
        """Whether results are fitted to a screen; else nothing is cut."""
        return is_terminal(sys.stdout)

    @Lazy
    def screen(self) -> Console:
        """Standard output."""
        return console()

    def show(self, value: object, *shown: RenderableType) -> None:
        """Print a result: `value` as JSON, or else what people see."""
        if self.json:
            sys.stdout.write(json.dumps(plain(value)) + "\n")
        else:
            for part in shown:
                _print(self.screen, part)
        sys.stdout.flush()

    @contextmanager
    def working(
        self, label: str, *, is_shown: bool = True
    ) -> Iterator[Callable[[str, int, int | None], None]]:
        """Show progress on standard error if that is a terminal. The library calls what this
        yields with the kind of work, how much of it is done, and the total if it is known."""
        screen = console(stderr=True)
        progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[count]}", style="mark"),
            TimeElapsedColumn(),
            console=screen,
            transient=True,
            disable=self.json or not is_shown or not screen.is_terminal,
        )
        with progress:
            task = progress.add_task(label, total=None, count="")

            def tell(_kind: str, done: int, total: int | None) -> None:
                progress.update(task, completed=done, total=total, count=_count(done, total))

            yield tell

    def confirm(self, question: str, *, yes: bool) -> None:
        """End the command unless the answer is yes. `--yes` answers it."""
        if yes:
            return
        if not is_terminal(sys.stdin):
            raise click.UsageError(f"{question} Confirm with --yes: there is no terminal")
        if not click.confirm(harmless(question), err=True):
            raise WeirError("not confirmed; nothing was changed")


def console(*, stderr: bool = False) -> Console:
    """A terminal, or a file; rich honours NO_COLOR and TERM=dumb."""
    made = Screen(stderr=stderr, highlight=False, theme=THEME)
    is_fitted = is_terminal(sys.stderr if stderr else sys.stdout)
    made.width = max(made.width, NARROWEST) if is_fitted else UNBOUNDED
    return made


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person reads it, or types into it; None is a stream that the shell closed."""
    return stream is not None and stream.isatty()


def _print(screen: Console, part: RenderableType) -> None:
    if isinstance(part, Text) and part.no_wrap:  # one line of many: what fits on the screen
        screen.print(part, no_wrap=True, overflow="ellipsis")
    else:  # a sentence is as long as it is; a table is fitted to the screen
        screen.print(part, soft_wrap=isinstance(part, str | Text))


def _count(done: int, total: int | None) -> str:
    if total is None:
        return f"{done:,}" if done else ""
    return f"{done:,}/{total:,}"


def done(verb: str, rest: str = "") -> Text:
    """A sentence that begins with what was done."""
    return Text.assemble((verb, "good"), f" {rest}" if rest else "")


def aside(text: str) -> Text:
    """A sentence of less importance."""
    return Text(text, "dim")


def grid(*headers: str, rows: Iterable[Sequence[str | Text]] = ()) -> Table:
    """A table in the house style; a header that begins with '>' marks a column of numbers, and one
    that begins with '<' a column of names. Both stay on one line: on a narrow terminal they share
    the room, and what is cut ends with an ellipsis. Text is shown as it stands, without markup."""
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        header_style="bold",
        pad_edge=False,
        padding=(0, 1, 0, 0),  # two blanks between columns: nine columns fit in 80 characters
    )
    for header in headers:
        numbers, whole = header.startswith(">"), header.startswith((">", "<"))
        table.add_column(
            Text(header[1:] if whole else header),
            justify="right" if numbers else "left",
            no_wrap=whole,
            overflow="ellipsis" if whole else "fold",
        )
    for row in rows:
        table.add_row(*(Text(harmless(cell)) if isinstance(cell, str) else cell for cell in row))
    return table


def facts(pairs: Mapping[str, object]) -> Table:
    """Names and values in two columns, without borders or headers."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in pairs.items():
        table.add_row(name, Text(str(value)))  # not markup: a type may be called timestamp[us]
    return table


def complain(message: str) -> None:
    """Write one line to standard error, without markup or wrapping."""
    sys.stderr.write(f"weir: {harmless(' '.join(message.split()))}\n")


def message_of(error: Exception) -> str:
    """What the error says; an error of the operating system without its number."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


def plain(value: object) -> Plain:
    """Convert to values that JSON can hold: dataclasses as objects, ids and times as text."""
    if isinstance(value, str | int | float) or value is None:
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        as_dict = getattr(value, "to_dict", None)
        if as_dict is not None:
            return plain(as_dict())
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(part) for part in value]
    if isinstance(value, datetime):
        return value.isoformat()
    return value.hex() if isinstance(value, bytes) else str(value)


def label(shard: UUID, value: object) -> str:
    """A short name of a shard: its value, or the first digits of its id."""
    return str(shard)[:8] if value is None else str(value)


def many(count: int, thing: str) -> str:
    """A count with its noun, in the plural unless it is 1."""
    return f"{count:,} {thing}" + ("" if count == 1 else "s")


def brief(count: int) -> str:
    """A large number in five characters."""
    for limit, unit in ((10**9, "G"), (10**6, "M"), (10**5, "k")):
        if count >= limit:
            return f"{count / (limit if limit != 10**5 else 1000):.3g}{unit}"
    return f"{count:,}"


def size(count: float) -> str:
    """A number of bytes in readable form."""
    for unit in UNITS[:-1]:
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} {UNITS[-1]}"


def span(seconds: float | None) -> str:
    """A duration in readable form."""
    if seconds is None:
        return "-"
    if seconds < 1:
        millis = seconds * 1000
        return f"{millis:.0f} ms" if millis >= 10 else f"{millis:.1f} ms"
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "m"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds / 86400:.0f} d"


def moment(seconds: float | None) -> str:
    """A point in time in readable form, in UTC."""
    if seconds is None:
        return "never"
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError):  # a lifetime may be as long as one likes
        return "after the year 9999"
