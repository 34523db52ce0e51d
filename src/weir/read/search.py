"""`Table.search`: one plan over the base, SSTables and the tail of every shard's log.

Keeps
  L-1  every acknowledged row is looked at, from any process, without asking its writer
  L-3  the filter sees newest rows only
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from weir.errors import InvalidInput
from weir.read.reader import SnapshotReader
from weir.read.scan import with_snapshot
from weir.read.snapshot import Freshness, Pinned, check_freshness
from weir.routing.core import Core
from weir.search.plan import SearchOptions, search_levels
from weir.types import Filter, Vector


def search(
    core: Core,
    column: str,
    query: str | Vector,
    *,
    k: int = 10,
    filter: Filter | None = None,
    columns: Sequence[str] | None = None,
    freshness: Freshness = "durable",
    pinned: Pinned | None = None,
    options: SearchOptions,
) -> pa.Table:
    """The `k` rows nearest to a vector, or best for words, best first.

    The columns asked for (all when None), and `_distance` (l2 squared, 1 - cosine, or 1 - dot) or
    `_score` (BM25 by the statistics of all levels together). A row with any of the words is found.
    `filter` is SQL text as in Lance, or a pyarrow expression. `nprobes`, `refine_factor` and
    `exact` say how thoroughly an approximate index is searched; what is fresher is exact.
    Requests: those of a scan's snapshot, then the index pages and rows that are needed.
    """
    check_freshness(freshness)
    if columns is not None and (isinstance(columns, str) or not list(columns)):
        raise InvalidInput(f"columns must be a list of at least one column, got {columns!r}")

    def run(reader: SnapshotReader) -> pa.Table:
        alive = reader.alive
        return search_levels(
            reader.levels(),
            reader.base,
            reader.schema,
            column,
            query,
            k=k,
            filter=filter if alive is None else alive.also(filter),
            columns=columns,
            fresh=core.fresh,
            options=options,
        )

    return with_snapshot(core, freshness, pinned, run)
