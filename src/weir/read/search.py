"""`Table.search`: one plan over the base, SSTables and the tail of every shard's log.

Keeps
  L-1  every acknowledged row is searched, from any process, without contacting its writer
  L-3  the filter sees only the newest row of each key
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from weir.errors import InvalidInput
from weir.merge.merge import output_schema
from weir.read.reader import SnapshotReader
from weir.read.scan import with_snapshot
from weir.read.snapshot import Freshness, Pinned, check_freshness
from weir.routing.core import Core
from weir.search.hybrid import Fusion, fused
from weir.search.memory import SearchCache
from weir.search.options import SearchOptions
from weir.search.plan import Plan, search_levels
from weir.search.words import Words
from weir.types import Filter, Vector


def search(
    core: Core,
    column: str,
    query: Words | Sequence[Words] | Vector | Sequence[Vector],
    *,
    k: int = 10,
    filter: Filter | None = None,
    columns: Sequence[str] | None = None,
    freshness: Freshness = "durable",
    pinned: Pinned | None = None,
    options: SearchOptions,
) -> pa.Table:
    """See `Table.search`. Requests: those of a snapshot, then the index pages and rows needed."""
    columns = _checked(freshness, columns)

    def run(reader: SnapshotReader) -> pa.Table:
        return search_levels(
            reader.levels(),
            reader.base,
            reader.schema,
            column,
            query,
            k=k,
            filter=_alive_too(reader, filter),
            columns=columns,
            cache=core.attached.of(SearchCache),
            options=options,
        )

    return with_snapshot(core, freshness, pinned, run)


def hybrid_search(
    core: Core,
    queries: Mapping[str, Words | Vector],
    *,
    k: int,
    filter: Filter | None,
    columns: Sequence[str] | None,
    freshness: Freshness,
    pinned: Pinned | None,
    fusion: Fusion,
    options: SearchOptions,
) -> pa.Table:
    """See `Table.hybrid_search`: all rankings come from one snapshot."""
    columns = _checked(freshness, columns)

    def run(reader: SnapshotReader) -> pa.Table:
        target = output_schema(reader.schema, columns)
        levels = tuple(reader.levels())
        passing = _alive_too(reader, filter)
        cache = core.attached.of(SearchCache)
        plan = Plan(levels, reader.base, reader.schema, passing, None, cache)
        return fused(plan, queries, k, target, fusion, options)

    return with_snapshot(core, freshness, pinned, run)


def _checked(freshness: Freshness, columns: Sequence[str] | None) -> Sequence[str] | None:
    check_freshness(freshness)
    if columns is not None and (isinstance(columns, str) or not list(columns)):
        raise InvalidInput(f"columns must be a list of at least one column, got {columns!r}")
    return columns


def _alive_too(reader: SnapshotReader, filter: Filter | None) -> Filter | None:
    """`filter`, and the condition that rows have not expired."""
    return filter if reader.alive is None else reader.alive.also(filter)
