"""`weir ls`, `weir shards`, `weir stats` and `weir top`: what is there, for the person on call."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final
from uuid import UUID

import click
from rich.console import Group, RenderableType
from rich.text import Text

import weir
from weir.cli import options as o
from weir.cli import output
from weir.cli.invocation import Invocation, command

if TYPE_CHECKING:
    from weir.read.stats import ShardStats, TableStats

BARS: Final = "▁▂▃▄▅▆▇█"
WAITING_GENERATIONS: Final = 8
"""A shard with this many waiting SSTables is highlighted: reads slow down until it is compacted."""
OLD_SECONDS: Final = 3600.0
"""Unflushed entries older than this are highlighted: nobody writes, and nobody flushed."""
SAMPLES_MAX: Final = 60


@dataclass(frozen=True)
class Sample:
    """The table at one moment."""

    at: float
    stats: TableStats


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
        place = normalize(prefix)
        is_table = not found.failed and weir.exists(place, storage_options=call.storage(prefix))
        said = f"{place} is a table itself; weir stats shows it"
        output.complain(said if is_table else f"no tables in {place}")
    for each in found.failed:
        output.complain(f"{each.uri} could not be searched: {each.said}")
    if found.failed:
        raise click.exceptions.Exit(1)


@command("shards", example="weir shards s3://lake/orders")
@o.uri
def shards(call: Invocation, uri: str) -> None:
    """List the shards with their value, status and epoch."""
    found = call.open(uri).stats().shards
    told = [
        {
            "shard": s.shard,
            "value": s.value,
            "status": status(s),
            "epoch": s.epoch,
            "manifest_version": s.manifest_version,
        }
        for s in found
    ]
    rows = [
        (
            output.label(s.shard, s.value),
            str(s.shard),
            status(s),
            f"{s.epoch}",
            f"{s.manifest_version}",
        )
        for s in found
    ]
    call.out.show(told, output.grid("value", "shard", "status", ">epoch", ">manifest", rows=rows))


@command("stats", example="weir stats s3://lake/orders")
@o.uri
def stats(call: Invocation, uri: str) -> None:
    """Show the unflushed log, SSTables to compact, and pins.

    For each shard: the epoch of its owner, the tip of its log, sizes and ages. Reads only the
    store; writers are not affected.
    """
    found = _sample(call.open(uri))
    call.out.show(found.stats, overview([found]))


@command("top", example="weir top s3://lake/orders --interval 2")
@o.uri
@o.time("--interval", "-i", default="1s", kind=o.PAUSE, about="Between refreshes.")
@o.flag("--once", about="Measure one interval and print it.")
def top(call: Invocation, uri: str, interval: float, *, once: bool) -> None:
    """Watch throughput, lag and owners live: weir stats with rates, until Ctrl-C.

    A refresh costs at most 14 small reads per shard; writers are not affected.
    """
    is_live = not (once or call.json)
    if is_live and not call.out.is_terminal:
        raise click.UsageError("this is no terminal; --once measures one interval and prints it")
    table = call.open(uri)
    samples = [_sample(table)]
    with contextlib.suppress(KeyboardInterrupt):
        if is_live:
            from rich.live import Live

            with Live(console=call.out.screen, screen=True, auto_refresh=False) as live:
                while True:
                    view = overview(samples, lines=call.out.screen.height)
                    live.update(view, refresh=True)
                    time.sleep(interval)
                    samples = [*samples[1 - SAMPLES_MAX :], _sample(table)]
        time.sleep(interval)
        samples.append(_sample(table))
        now = {"entries_per_second": round(_rate(*samples), 3), **asdict(samples[-1].stats)}
        call.out.show(now, overview(samples))


def overview(samples: Sequence[Sample], lines: int | None = None) -> RenderableType:
    """The whole table at the last of the samples; with more than one also how fast it is written.

    If not all shards fit into `lines`, only the busiest are shown."""
    found = samples[-1].stats
    oldest = found.oldest_unflushed_seconds
    told = {
        "table": found.uri,
        **_writes(samples),
        "base": f"{found.base_rows:,} rows, version {found.base_version}",
        "log": f"{found.lag:,} entries unflushed, {output.size(found.unflushed_bytes)}"
        + ("" if oldest is None else f", the oldest {output.span(oldest)} old"),
        **_where(found),
        "waiting": f"{output.many(found.generations, 'SSTable')} to compact",
        "pins": output.many(found.checkpoints, "checkpoint"),
        **_consumers(found),
    }
    room = len(found.shards) if lines is None else max(1, lines - len(told) - 4)
    rates = {} if len(samples) == 1 else _rates(*samples[-2:])
    shown = _busiest(found.shards, rates, room)
    more = len(found.shards) - len(shown)
    rest = [output.aside(f"and {more:,} more that are less busy")] if more else []
    return Group(output.facts(told), "", _by_shard(shown, samples[0].stats, rates), *rest)


def _writes(samples: Sequence[Sample]) -> dict[str, str]:
    """How fast entries are written now, and were lately."""
    rates = [_rate(*pair) for pair in pairwise(samples)]
    return {"writes": f"{rates[-1]:,.0f} entries/s {sparkline(rates)}"} if rates else {}


def sparkline(rates: Sequence[float]) -> str:
    """The most recent rates as a row of small bars."""
    most = max(rates, default=0.0)
    if most <= 0:
        return ""
    return "".join(BARS[min(7, int(rate / most * 7.999))] for rate in rates[-24:])


def _where(found: TableStats) -> dict[str, str]:
    """Where the log is, unless all of it is beside the data."""
    if found.wal_uri is None and not found.moving:
        return {}
    place = found.wal_uri or "beside the data"
    if found.moving:
        left = output.many(len(found.moving), "shard")
        place += f", {left} not moved yet: run weir wal move again"
    return {"log at": place}


def _consumers(found: TableStats) -> dict[str, str]:
    told = [f"{one.name} {one.lag:,} behind" for one in found.consumers]
    return {"consumers": ", ".join(told)} if told else {}


def _busiest(
    shards: Sequence[ShardStats], rates: Mapping[UUID, float], room: int
) -> Sequence[ShardStats]:
    """As many shards as there is room for, in their order, so that lines do not jump."""
    busy = sorted(shards, key=lambda s: (rates.get(s.shard, 0.0), s.lag), reverse=True)
    kept = {s.shard for s in busy[:room]}
    return [s for s in shards if s.shard in kept]


def _by_shard(
    shown: Sequence[ShardStats], first: TableStats, rates: Mapping[UUID, float]
) -> RenderableType:
    """One line for each shard; with rates they are shown, and what epochs were at first."""
    epochs = {s.shard: s.epoch for s in first.shards}
    speed = ">entries/s" if rates else ">tip"
    view = output.grid(
        "<shard", ">epoch", speed, ">lag", ">bytes", ">oldest", ">SSTables", ">rows", ">pins"
    )
    for s in shown:
        was = epochs.get(s.shard, s.epoch)
        is_old = (s.oldest_unflushed_seconds or 0) > OLD_SECONDS
        rate = rates.get(s.shard, 0.0)
        view.add_row(
            Text(output.label(s.shard, s.value)),
            f"{s.epoch}" if s.epoch == was else Text(f"{was}→{s.epoch}", "warn"),
            Text(f"{rate:,.0f}", "good" if rate else "dim") if rates else f"{s.wal_tip:,}",
            f"{s.lag:,}",
            output.size(s.unflushed_bytes),
            Text(output.span(s.oldest_unflushed_seconds), "warn" if is_old else ""),
            Text(f"{s.generations}", "warn" if s.generations >= WAITING_GENERATIONS else ""),
            output.brief(s.sstable_rows),
            f"{s.pins}",
            style="dim" if s.is_sealed else None,
        )
    return view


def status(shard: ShardStats) -> str:
    """The status of a shard in one word."""
    if shard.is_sealed:
        return "sealed"
    return "active" if shard.is_routed else "foreign"


def _sample(table: weir.Table) -> Sample:
    return Sample(time.monotonic(), table.stats())


def _rates(before: Sample, after: Sample) -> dict[UUID, float]:
    """The entries a second of each shard."""
    tips = {s.shard: s.wal_tip for s in before.stats.shards}
    took = max(after.at - before.at, 1e-9)
    return {s.shard: (s.wal_tip - tips.get(s.shard, s.wal_tip)) / took for s in after.stats.shards}


def _rate(before: Sample, after: Sample) -> float:
    return sum(_rates(before, after).values())
