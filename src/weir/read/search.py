"""`Table.search`: one plan over the base, SSTables and the tail of every shard's log.

Keeps
  L-1  every acknowledged row is searched, from any process, without contacting its writer
  L-3  the filter sees only the newest row of each key
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from weir.read.reader import SnapshotReader
from weir.read.scan import with_snapshot
from weir.read.snapshot import Freshness, Pinned
from weir.routing.core import Core
from weir.search.hybrid import Fusion, fused
from weir.search.memory import SearchCache
from weir.search.options import SearchOptions
from weir.search.plan import Plan
from weir.search.words import Words
from weir.types import Vector


def search(
    core: Core,
    column: str,
    query: Words | Sequence[Words] | Vector | Sequence[Vector],
    options: SearchOptions,
    freshness: Freshness,
    pinned: Pinned | None,
) -> pa.Table:
    """See `Table.search`. Requests: those of a snapshot, then the index pages and rows needed."""

    def run(reader: SnapshotReader) -> pa.Table:
        return _plan(reader, options).answered(column, query)

    return with_snapshot(core, freshness, pinned, run, verb="search")


def hybrid_search(
    core: Core,
    queries: Mapping[str, Words | Vector],
    fusion: Fusion,
    options: SearchOptions,
    freshness: Freshness,
    pinned: Pinned | None,
) -> pa.Table:
    """See `Table.hybrid_search`: all rankings come from one snapshot."""

    def run(reader: SnapshotReader) -> pa.Table:
        plan = replace(_plan(reader, options), takes_found=False)
        return fused(plan, queries, fusion)

    return with_snapshot(core, freshness, pinned, run, verb="search")


def _plan(reader: SnapshotReader, options: SearchOptions) -> Plan:
    cache = reader.core.attached.of(SearchCache)
    asked = options.of_living(reader.alive)
    return Plan(tuple(reader.levels()), reader.base, reader.schema, asked, cache)
