"""Terminal output: rows and results go to standard output, progress and messages to standard
error, so that a pipe gets data only."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from weir.colors import THEME

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def out() -> Console:
    """Standard output; rich honours NO_COLOR and TERM=dumb."""
    return Console(highlight=False, soft_wrap=False, theme=THEME)


def err() -> Console:
    """Standard error."""
    return Console(stderr=True, highlight=False, theme=THEME)


def grid(*headers: str, title: str | None = None) -> Table:
    """A table in the house style; a header that begins with '>' marks a column of numbers."""
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        title=title,
        title_justify="left",
        header_style="bold",
        pad_edge=False,
        padding=(0, 1, 0, 0),  # two blanks between columns: nine columns fit in 80 characters
    )
    for header in headers:
        numbers = header.startswith(">")
        # As Text, not markup: a column may have any name, even "[bold]".
        table.add_column(
            Text(header.removeprefix(">")),
            justify="right" if numbers else "left",
            no_wrap=numbers,
            overflow="fold",
        )
    return table


def facts(pairs: Mapping[str, Any]) -> Table:
    """Names and values in two columns, without borders or headers."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in pairs.items():
        table.add_row(name, Text(str(value)))  # not markup: a type may be called timestamp[us]
    return table


def complain(message: str) -> None:
    """Write one line to standard error, without markup or wrapping."""
    sys.stderr.write(f"weir: {' '.join(message.split())}\n")


def emit(value: Any) -> None:
    """Write one line of JSON to standard output."""
    sys.stdout.write(json.dumps(plain(value), default=str) + "\n")
    sys.stdout.flush()


def plain(value: Any) -> Any:
    """Convert to values that JSON can hold: dataclasses as objects, ids and times as text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        as_dict = getattr(value, "to_dict", None)
        if as_dict is not None:
            return plain(as_dict())
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(part) for part in value]
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


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


def remaining(seconds: float | None) -> str:
    """The remaining lifetime in readable form."""
    if seconds is None:
        return "never"
    return f"in {span(seconds)}" if seconds > 0 else "expired"


def moment(seconds: float | None, *, never: str = "never") -> str:
    """A point in time in readable form, in UTC."""
    if seconds is None:
        return never
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


class _Count(ProgressColumn):
    """`3/12`, or `3` if the total is unknown, or nothing before the first."""

    def render(self, task: Task) -> Text:
        """Called by rich."""
        done = f"{task.completed:,.0f}" if task.completed else ""
        return Text(done if task.total is None else f"{done or 0}/{task.total:,.0f}", "mark")


def confirm(question: str) -> None:
    """Ask, and abort unless the answer is yes. Without a terminal it is a usage error."""
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"{question} Confirm with --yes: there is no terminal")
    typer.confirm(question, abort=True, err=True)


@contextmanager
def working(label: str, *, quiet: bool) -> Iterator[Progress]:
    """A transient progress display on standard error; disabled if that is not a terminal."""
    console = err()
    progress = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        _Count(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    )
    with progress:
        progress.add_task(label, total=None)
        yield progress


def progress_callback(
    progress: Progress, label: str | None = None
) -> Callable[[str, int, int], None]:
    """A callback that the library calls with (kind, done, total) while it works. It shows `label`,
    or the kind if there is no label."""

    def tell(kind: str, done: int, total: int) -> None:
        text = label or kind
        progress.update(progress.task_ids[0], description=text, completed=done, total=total)

    return tell
