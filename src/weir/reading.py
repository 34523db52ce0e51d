"""`TableReads`: the verbs of `Table` that read. They claim nothing and write nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from weir.read.changes import Bookmark, Changes
from weir.read.lookup import get_rows
from weir.read.scan import OrderBy, Scan
from weir.read.search import hybrid_search, search
from weir.read.snapshot import Freshness, Snapshot, take_snapshot
from weir.routing.core import Core
from weir.search.hybrid import RANK_CONSTANT, Fusion
from weir.search.options import SearchOptions
from weir.search.words import Words
from weir.types import Columns, Filter, Keys, Vector
from weir.upkeep import checkpoint as checkpoints
from weir.upkeep.checkpoint import Moment


class TableReads:
    """Scans, lookups, searches and the change feed of one table."""

    core: Core

    def scan(
        self,
        columns: Columns | None = None,
        filter: Filter | None = None,
        limit: int | None = None,
        freshness: Freshness = "durable",
        checkpoint: Moment | None = None,
        *,
        batch_size: int | None = None,
        offset: int = 0,
        order_by: OrderBy | None = None,
    ) -> Scan:
        """A read of the newest row of each key; nothing is read before the scan is consumed.

        `columns` are names, or a dict of names and SQL: `{"id": "id", "total": "price * qty"}`,
        computed by Lance for the rows of every level.
        `filter` is SQL text as in Lance, or a pyarrow expression; it sees newest rows only (L-3).
        `freshness`: "base", "flushed" (+ SSTables) or "durable" (+ every acknowledged row).
        `checkpoint`: the table as it was then; see `Moment`. The order of rows is unspecified,
        unless `order_by` sorts them, in memory. Requests: those of `take_snapshot`.
        """
        return Scan(
            self.core,
            columns=columns,
            filter=filter,
            limit=limit,
            freshness=freshness,
            pinned=checkpoints.pinned(self.core, checkpoint),
            batch_size=batch_size,
            offset=offset,
            order_by=order_by,
        )

    def count(
        self,
        filter: Filter | None = None,
        freshness: Freshness = "durable",
        checkpoint: Moment | None = None,
    ) -> int:
        """The number of rows that pass the filter; see `Scan.count`."""
        return self.scan(filter=filter, freshness=freshness, checkpoint=checkpoint).count()

    def get(
        self,
        keys: Keys,
        columns: Sequence[str] | None = None,
        freshness: Freshness = "durable",
        checkpoint: Moment | None = None,
    ) -> pa.Table:
        """The newest rows of `keys`, in the order of `keys`, each once; missing keys are left out.

        `keys`: values, tuples, dicts, or Arrow. Only sources that can hold one of them are read.
        """
        return get_rows(
            self.core,
            keys,
            columns=columns,
            freshness=freshness,
            pinned=checkpoints.pinned(self.core, checkpoint),
        )

    def changes(
        self,
        since: Bookmark | str | None = None,
        follow: bool = False,  # noqa: FBT001, FBT002  the contract's spelling
        *,
        poll: float = 0.1,
        stop: Callable[[], bool] = lambda: False,
        expired: bool = False,
    ) -> Changes:
        """The log of all shards as an iterator of `Change`, from `since` (a `Bookmark`) on.

        None starts at the oldest entry that still exists. With `follow` it waits for more until
        `stop()` is true. Raises `SnapshotExpired` when entries after the bookmark were collected.
        `expired` also reports rows that expire, found by a scan by time at the end, or every 10 s
        with `follow`. Rows that a compaction drops before that scan are not reported.
        """
        return Changes(self.core, since, follow=follow, poll=poll, stop=stop, expired=expired)

    def snapshot(self, freshness: Freshness = "durable") -> Snapshot:
        """A consistent cut, for the planners of other engines."""
        return take_snapshot(self.core, freshness)

    def search(
        self,
        column: str,
        query: Words | Sequence[Words] | Vector | Sequence[Vector],
        k: int = 10,
        filter: Filter | None = None,
        columns: Sequence[str] | None = None,
        freshness: Freshness = "durable",
        checkpoint: Moment | None = None,
        *,
        metric: str | None = None,
        nprobes: int | None = None,
        refine_factor: int | None = None,
        exact: bool = False,
        offset: int = 0,
        distance_range: tuple[float | None, float | None] | None = None,
    ) -> pa.Table:
        """The `k` rows nearest to a vector, or matching text best, best first.

        Returns `columns` (all when None), and `_distance` (l2 squared, 1 - cosine, or 1 - dot) or
        `_score` (BM25 by the statistics of all levels). Plain text finds rows with any of its
        words; `Match`, `Phrase` and `Boolean` say more. Several queries, a list or a matrix, are
        answered from one snapshot, `k` rows each, and `query_index` says which query a row answers.
        `offset` skips the best rows; `distance_range` is (lower, upper), the upper bound excluded.
        `nprobes`, `refine_factor` and `exact` say how thoroughly an approximate index is searched;
        by default, as thoroughly as the query turns out to need. Rows newer than the index are
        searched exactly. Requests: a scan's snapshot, then the index pages and rows needed.
        """
        return search(
            self.core,
            column,
            query,
            k=k,
            filter=filter,
            columns=columns,
            freshness=freshness,
            pinned=checkpoints.pinned(self.core, checkpoint),
            options=SearchOptions(metric, nprobes, refine_factor, exact, offset, distance_range),
        )

    def hybrid_search(
        self,
        queries: Mapping[str, Words | Vector],
        k: int = 10,
        filter: Filter | None = None,
        columns: Sequence[str] | None = None,
        freshness: Freshness = "durable",
        checkpoint: Moment | None = None,
        *,
        weights: Mapping[str, float] | None = None,
        rank_constant: int = RANK_CONSTANT,
        depth: int | None = None,
        offset: int = 0,
        metric: str | None = None,
        nprobes: int | None = None,
        refine_factor: int | None = None,
        exact: bool = False,
    ) -> pa.Table:
        """The `k` best rows of several rankings of one snapshot, fused by key.

        `queries` has a query for each column, as `search` takes them. A row gets
        `weight / (rank_constant + rank)` from each ranking that has it among its first `depth` rows
        (by default four times `k + offset`, at least 100); `_relevance_score` is the sum.
        `InvalidInput` for an append-only table. Requests: those of a search for each column, with
        one snapshot.
        """
        return hybrid_search(
            self.core,
            queries,
            k=k,
            filter=filter,
            columns=columns,
            freshness=freshness,
            pinned=checkpoints.pinned(self.core, checkpoint),
            fusion=Fusion(weights, rank_constant, depth),
            options=SearchOptions(metric, nprobes, refine_factor, exact, offset),
        )
