"""The demo's output: one line for each step, facts below it, a summary at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.panel import Panel
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn
from rich.table import Table
from rich.text import Text


@dataclass
class Step:
    """One step: what it did, and whether its checks held."""

    number: int
    title: str
    facts: list[str] = field(default_factory=list)
    checks: list[tuple[str, bool]] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    bar: Any = None

    def say(self, fact: str, **figures: Any) -> None:
        """Add a fact to print below the step."""
        self.facts.append(fact)
        self.figures.update(figures)

    def check(self, claim: str, held: bool) -> None:  # noqa: FBT001  a claim and its truth
        """Record a claim that must hold, and whether it does."""
        self.checks.append((claim, held))

    def progress(self, done: int, total: int, note: str = "") -> None:
        """Move the bar."""
        if self.bar is not None:
            self.bar(done, total, note)

    @property
    def passed(self) -> bool:
        """True when every check held."""
        return all(held for _, held in self.checks)


def panel_of(step: Step) -> RenderableType:
    """A finished step: what it did, and which checks failed."""
    mark = "[good]✓[/]" if step.passed else "[bad]✗[/]"
    lines: list[RenderableType] = [
        f"{mark} [bold]{step.title}[/] [dim]{step.seconds:.1f} s[/]",
        *(Padding(Text(fact, "dim"), (0, 0, 0, 4)) for fact in step.facts),
        *(f"    [bad]check failed:[/] {escape(claim)}" for claim, held in step.checks if not held),
    ]
    return Group(*lines)


class Show:
    """The steps so far, on a console. Quiet when `console` is."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.steps: list[Step] = []

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Run one step under a progress bar, then print its result."""
        step = Step(len(self.steps) + 1, title)
        self.steps.append(step)
        began = time.monotonic()
        bar = Progress(
            SpinnerColumn(),
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("[dim]{task.fields[note]}"),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        with bar:
            task = bar.add_task(title, total=None, note="")

            def move(done: int, total: int, note: str) -> None:
                bar.update(task, completed=done, total=total, note=note)

            step.bar = move
            yield step
        step.seconds = time.monotonic() - began
        self.console.print(panel_of(step))

    def summary(self, title: str, lines: dict[str, str], hints: dict[str, str]) -> RenderableType:
        """The end: figures, checks, where to look next."""
        checks = [held for step in self.steps for _, held in step.checks]
        held = sum(checks)
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(style="bold", no_wrap=True)
        table.add_column()
        for name, text in lines.items():
            table.add_row(name, text)
        colour = "good" if held == len(checks) else "bad"
        table.add_row("checks", f"[{colour}]{held} of {len(checks)} held[/]")
        seconds = sum(step.seconds for step in self.steps)
        table.add_row("time", f"{seconds:.0f} s")
        panel = Panel(table, title=title, border_style=colour, box=box.ROUNDED, expand=False)
        next_steps = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        next_steps.add_column(style="dim", no_wrap=True)
        next_steps.add_column(overflow="fold")
        for name, text in hints.items():
            next_steps.add_row(name, text)
        return Group("", panel, next_steps)

    @property
    def passed(self) -> bool:
        """True when every check of every step held."""
        return all(step.passed for step in self.steps)
