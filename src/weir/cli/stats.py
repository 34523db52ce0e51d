"""`weir shards` and `weir stats`: the state of a table for the person on call."""

from __future__ import annotations

import typer
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from weir.cli import options as o
from weir.cli import screen
from weir.read.stats import ShardStats, TableStats

WAITING_GENERATIONS = 8
"""A shard with this many waiting SSTables is highlighted: reads slow down until it is compacted."""
OLD_SECONDS = 3600.0
"""Unflushed entries older than this are highlighted: nobody writes, and nobody flushed."""


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(
        epilog="Example: [bold]weir shards s3://lake/orders[/bold]", rich_help_panel="Tables"
    )(shards)
    app.command(
        epilog="Example: [bold]weir stats s3://lake/orders[/bold]", rich_help_panel="Tables"
    )(stats)


def shards(
    uri: o.Uri, option: o.Options = None, config: o.Config = None, json: o.Json = False
) -> None:
    """List the shards with their value, status and epoch."""
    table = o.open_table(uri, option, config)
    found = table.stats().shards
    if json:
        screen.emit(
            [
                {
                    "shard": s.shard,
                    "value": s.value,
                    "status": status(s),
                    "epoch": s.epoch,
                    "manifest_version": s.manifest_version,
                }
                for s in found
            ]
        )
        return
    view = screen.grid("value", "shard", "status", ">epoch", ">manifest")
    for s in found:
        row = (label(s), str(s.shard), status(s), f"{s.epoch}", f"{s.manifest_version}")
        view.add_row(*row, style="dim" if s.is_sealed else None)
    screen.out().print(view)


def stats(
    uri: o.Uri, option: o.Options = None, config: o.Config = None, json: o.Json = False
) -> None:
    """Show the unflushed log, SSTables to compact, and pins.

    For each shard: the epoch of its owner, the tip of its log, sizes and ages. Reads only the
    store; writers are not affected.
    """
    table = o.open_table(uri, option, config)
    found = table.stats()
    if json:
        screen.emit(found)
        return
    screen.out().print(overview(found))


def overview(found: TableStats) -> RenderableType:
    """The whole table on one screen."""
    oldest = found.oldest_unflushed_seconds
    head = screen.facts(
        {
            "table": found.uri,
            "base": f"{found.base_rows:,} rows, version {found.base_version}",
            "log": f"{found.lag:,} entries unflushed, {screen.size(found.unflushed_bytes)}"
            + ("" if oldest is None else f", the oldest {screen.span(oldest)} old"),
            **_where(found),
            "waiting": f"{screen.many(found.generations, 'SSTable')} to compact",
            "pins": screen.many(found.checkpoints, "checkpoint"),
        }
    )
    return Group(head, "", by_shard(found))


def _where(found: TableStats) -> dict[str, str]:
    """Where the log is, unless all of it is beside the data."""
    if found.wal_uri is None and not found.moving:
        return {}
    place = found.wal_uri or "beside the data"
    if found.moving:
        left = screen.many(len(found.moving), "shard")
        place += f", {left} not moved yet: run weir wal move again"
    return {"log at": place}


def by_shard(found: TableStats) -> Table:
    """One line for each shard."""
    view = screen.grid(
        "shard", ">epoch", ">tip", ">lag", ">bytes", ">oldest", ">SSTables", ">rows", ">pins"
    )
    for s in found.shards:
        waiting = f"[warn]{s.generations}[/]" if s.generations >= WAITING_GENERATIONS else None
        age = screen.span(s.oldest_unflushed_seconds)
        old = (s.oldest_unflushed_seconds or 0) > OLD_SECONDS
        view.add_row(
            label(s),
            f"{s.epoch}",
            f"{s.wal_tip:,}",
            f"{s.lag:,}",
            screen.size(s.unflushed_bytes),
            f"[warn]{age}[/]" if old else age,
            waiting or f"{s.generations}",
            screen.brief(s.sstable_rows),
            f"{s.pins}",
            style="dim" if s.is_sealed else None,
        )
    return view


def label(shard: ShardStats) -> str:
    """A short name of a shard: its value, or the first digits of its id."""
    if shard.value is not None:
        return escape(str(shard.value))
    return str(shard.shard)[:8]


def status(shard: ShardStats) -> str:
    """The status of a shard in one word."""
    if shard.is_sealed:
        return "sealed"
    return "active" if shard.is_routed else "foreign"
