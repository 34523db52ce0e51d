"""`weir shards` and `weir stats`: the state of a table for the person on call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from weir.cli import options as o
from weir.cli import output
from weir.cli.invocation import Invocation, command

if TYPE_CHECKING:
    from weir.read.stats import ShardStats, TableStats

WAITING_GENERATIONS: Final = 8
"""A shard with this many waiting SSTables is highlighted: reads slow down until it is compacted."""
OLD_SECONDS: Final = 3600.0
"""Unflushed entries older than this are highlighted: nobody writes, and nobody flushed."""


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
            str(s.epoch),
            str(s.manifest_version),
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
    found = call.open(uri).stats()
    call.out.show(found, overview(found))


def overview(found: TableStats) -> RenderableType:
    """The whole table on one screen."""
    oldest = found.oldest_unflushed_seconds
    head = output.facts(
        {
            "table": found.uri,
            "base": f"{found.base_rows:,} rows, version {found.base_version}",
            "log": f"{found.lag:,} entries unflushed, {output.size(found.unflushed_bytes)}"
            + ("" if oldest is None else f", the oldest {output.span(oldest)} old"),
            **_where(found),
            "waiting": f"{output.many(found.generations, 'SSTable')} to compact",
            "pins": output.many(found.checkpoints, "checkpoint"),
            **_consumers(found),
        }
    )
    return Group(head, "", by_shard(found))


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


def by_shard(found: TableStats) -> Table:
    """One line for each shard."""
    view = output.grid(
        "<shard", ">epoch", ">tip", ">lag", ">bytes", ">oldest", ">SSTables", ">rows", ">pins"
    )
    for s in found.shards:
        is_old = (s.oldest_unflushed_seconds or 0) > OLD_SECONDS
        view.add_row(
            Text(output.label(s.shard, s.value)),
            f"{s.epoch}",
            f"{s.wal_tip:,}",
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
