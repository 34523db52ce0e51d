"""`weir top`: a live view of a table."""

from __future__ import annotations

import contextlib
import dataclasses
import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING
from uuid import UUID

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

import weir
from weir.cli import options as o
from weir.cli import output
from weir.cli.invocation import Invocation, command

if TYPE_CHECKING:
    from weir.read.stats import ShardStats, TableStats

BARS = "▁▂▃▄▅▆▇█"
HEAD_LINES = 6
"""Lines above those of the shards."""


@dataclass(frozen=True)
class Sample:
    """The table at one moment."""

    at: float
    stats: TableStats


@command("top", example="weir top s3://lake/orders --interval 2   (q quits)")
@o.uri
@click.option(
    "--interval",
    "-i",
    type=o.PAUSE,
    default="1s",
    metavar="TIME",
    help="Between refreshes.",
)
@click.option("--once", is_flag=True, help="Measure one interval and print it.")
def top(call: Invocation, uri: str, interval: float, *, once: bool) -> None:
    """Watch throughput, lag and flushes live.

    Quit with q or Ctrl-C. A refresh costs about ten small reads per shard; writers are not
    affected.
    """
    if not (once or call.json or call.out.is_terminal):
        raise click.UsageError("this is no terminal; --once measures one interval and prints it")
    table = call.open(uri)
    samples = [_sample(table)]
    with contextlib.suppress(KeyboardInterrupt):
        if once or call.json:
            time.sleep(interval)
            samples.append(_sample(table))
            rate = round(_rate(*samples), 3)
            now = {"entries_per_second": rate, **dataclasses.asdict(samples[-1].stats)}
            call.out.show(now, picture(samples))
            return
        screen = call.out.screen
        with _keys() as pressed, Live(console=screen, screen=True, auto_refresh=False) as live:
            live.update(picture(samples, lines=screen.height), refresh=True)
            while not pressed(interval):
                samples = [*samples[-59:], _sample(table)]
                live.update(picture(samples, lines=screen.height), refresh=True)


def picture(
    samples: list[Sample], clock: str | None = None, lines: int | None = None
) -> RenderableType:
    """The screen for these samples, the last of which is the present. If not all shards fit into
    `lines`, only the busiest are shown."""
    from weir.colors import GOOD

    now, before = samples[-1], samples[-2] if len(samples) > 1 else samples[-1]
    took = max(now.at - before.at, 1e-9)
    start = {s.shard: s for s in samples[0].stats.shards}
    last = {s.shard: s for s in before.stats.shards}
    rates = [_rate(a, b) for a, b in pairwise(samples)]
    total = rates[-1] if rates else 0.0
    view = output.grid(
        "<shard", ">entries/s", ">lag", ">bytes", ">oldest", ">flushes", ">SSTables", ">epoch"
    )
    shown = _busiest(now.stats.shards, last, lines)
    for s in shown:
        first = start.get(s.shard, s)
        rate = (s.wal_tip - last.get(s.shard, s).wal_tip) / took
        view.add_row(
            Text(output.label(s.shard, s.value)),
            Text(f"{rate:,.0f}", "good" if rate else "dim"),
            f"{s.lag:,}",
            output.size(s.unflushed_bytes),
            output.span(s.oldest_unflushed_seconds),
            f"{max(0, s.next_generation - first.next_generation)}",
            f"{s.generations}",
            _owner(s, first),
        )
    head = Text.assemble(
        ("weir top ", "bold"),
        (now.stats.uri, "mark"),
        (f"  {clock or time.strftime('%H:%M:%S')}", "dim"),
    )
    line = Text.assemble(
        (f"{total:,.0f} entries/s ", f"bold {GOOD}"),
        (sparkline(rates), "good"),
        f"  unflushed {now.stats.lag:,} entries, {output.size(now.stats.unflushed_bytes)}",
    )
    base = Text(
        f"base {now.stats.base_rows:,} rows, version {now.stats.base_version}"
        f" · {output.many(now.stats.generations, 'SSTable')} to compact"
        f" · {output.many(now.stats.checkpoints, 'checkpoint')}",
        style="dim",
    )
    more = len(now.stats.shards) - len(shown)
    rest = [Text(f"and {more:,} more that are less busy", "dim")] if more else []
    return Group(head, line, base, "", view, *rest)


def _busiest(
    shards: Sequence[ShardStats], before: Mapping[UUID, ShardStats], lines: int | None
) -> Sequence[ShardStats]:
    if lines is None or len(shards) + HEAD_LINES <= lines:
        return shards

    def weight(shard: ShardStats) -> tuple[int, int]:
        return shard.wal_tip - before.get(shard.shard, shard).wal_tip, shard.lag

    fit = max(1, lines - HEAD_LINES - 1)
    kept = {s.shard for s in sorted(shards, key=weight, reverse=True)[:fit]}
    return [s for s in shards if s.shard in kept]  # in their order, so that lines do not jump


def sparkline(rates: list[float]) -> str:
    """The most recent rates as a row of small bars."""
    most = max(rates, default=0.0)
    if most <= 0:
        return ""
    return "".join(BARS[min(7, int(rate / most * 7.999))] for rate in rates[-24:])


def _owner(shard: ShardStats, first: ShardStats) -> Text:

    if shard.is_sealed:
        return Text("sealed", "dim")
    if shard.epoch > first.epoch:
        return Text(f"{first.epoch}→{shard.epoch}", "warn")
    return Text(f"{shard.epoch}") if shard.epoch else Text("-", "dim")


def _sample(table: weir.Table) -> Sample:
    return Sample(time.monotonic(), table.stats())


def _rate(before: Sample, after: Sample) -> float:
    return (_tips(after) - _tips(before)) / max(after.at - before.at, 1e-9)


def _tips(sample: Sample) -> int:
    return sum(shard.wal_tip for shard in sample.stats.shards)


def _unseen(seconds: float) -> bool:
    time.sleep(seconds)
    return False


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Yield `pressed(seconds)`, which waits up to that long and returns whether q was pressed."""
    if not output.is_terminal(sys.stdin):
        yield _unseen
        return
    import termios
    import tty

    saved = termios.tcgetattr(sys.stdin)

    def pressed(seconds: float) -> bool:
        ready, _, _ = select.select([sys.stdin], [], [], seconds)
        return bool(ready) and sys.stdin.read(1) in ("q", "Q")

    try:
        tty.setcbreak(sys.stdin)
        yield pressed
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, saved)
