"""One search over all levels of a shard or a table: what each level is asked, and the merge.

A column of vectors is searched by distance, one of text by words. Fresh levels and SSTables of weir
are exact; the base is as exact as its index, and rows it has not indexed yet are searched one by
one, so that nothing is missed after a compaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import numpy as np
import pyarrow as pa

from weir.errors import InvalidInput
from weir.format.schema import TOMBSTONE, TOMBSTONE_FIELD, TableSchema
from weir.lake.api import Base
from weir.lake.base.view import LanceBase
from weir.lake.filters import filter_columns
from weir.lake.index import (
    Dataset,
    IndexInfo,
    dataset_indexes,
    index_of,
    is_text_type,
    is_vector_type,
)
from weir.lake.sstable.read import LanceSsTable
from weir.merge.levels import Level, MemLevel, MemView
from weir.merge.merge import Belongs, output_schema
from weir.search.fresh import MemoryRows, MemoryTexts, MemoryVectors
from weir.search.lance import (
    PROBES,
    REFINE,
    LanceTexts,
    LanceVectors,
    ScannedTexts,
    TextQuery,
    VectorQuery,
    index_sizes,
)
from weir.search.memory import FreshIndexes
from weir.search.ranking import LEVELS_AT_ONCE, Ranked, best_rows
from weir.search.text import TextStats
from weir.search.vector import METRICS, query_vector


@dataclass(frozen=True)
class SearchOptions:
    """How thoroughly, and by which measure."""

    metric: str | None = None
    """Distance: "l2", "cosine" or "dot"; None: that of the column's index, or l2."""
    nprobes: int = PROBES
    """Partitions of an approximate index looked at, at least."""
    refine_factor: int = REFINE
    """Candidates per row wanted whose exact distance is computed."""
    exact: bool = False
    """Compare every vector, use no approximate index."""

    def __post_init__(self) -> None:
        if self.metric is not None and self.metric not in METRICS:
            raise InvalidInput(f"metric must be one of {list(METRICS)}, got {self.metric!r}")
        for name in ("nprobes", "refine_factor"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidInput(f"{name} must be a whole number above 0, got {value!r}")


def search_levels(
    levels: Sequence[Level],
    base: Base | None,
    schema: TableSchema,
    column: str,
    query: Any,
    *,
    k: int,
    filter: Any = None,
    columns: Sequence[str] | None = None,
    belongs: Belongs | None = None,
    fresh: FreshIndexes,
    options: SearchOptions,
) -> pa.Table:
    """The `k` best rows of `levels` (newest first) over `base`; see `Table.search`."""
    if type(k) is not int or k < 1:
        raise InvalidInput(f"k must be a whole number above 0, got {k!r}")
    if column not in schema.plain.names:
        raise InvalidInput(f"the table has no column {column!r}; it has {schema.plain.names}")
    target = output_schema(schema, columns)
    plan = _Plan(tuple(levels), base, schema, column, filter, belongs, fresh)
    dtype = schema.plain.field(column).type
    if is_vector_type(dtype):
        vector = query_vector(query, dtype, column)
        ranked = plan.by_vector(vector, options)
        return best_rows(ranked, k, schema, target, lambda values: values, "_distance", fresh.env)
    if not is_text_type(dtype):
        raise InvalidInput(
            f"column {column!r} is {dtype}; a search needs text, or a fixed-size list of floats"
        )
    if not isinstance(query, str):
        raise InvalidInput(f"a search in text column {column!r} takes words, got {query!r}")
    ranked = plan.by_text(query)
    return best_rows(ranked, k, schema, target, lambda values: -values, "_score", fresh.env)


@dataclass(frozen=True)
class _Plan:
    levels: tuple[Level, ...]
    base: Base | None
    schema: TableSchema
    column: str
    filter: Any
    belongs: Belongs | None
    fresh: FreshIndexes

    def by_vector(self, vector: Any, options: SearchOptions) -> list[Ranked]:
        """What to ask of each level for a vector."""
        metric = options.metric or self._metric()
        query = VectorQuery(
            self.column, vector, metric, options.nprobes, options.refine_factor, options.exact
        )

        def on_lance(dataset: Dataset) -> LanceVectors:
            index = index_of(self._indexes(dataset), self.column, "vector")
            asked = query
            if index is not None and index.metric != metric:
                asked = replace(query, exact=True)
            elif index is not None and index.is_flat:
                asked = replace(query, refine=None)
            return LanceVectors(dataset, asked, self._names(dataset), filter=self.filter)

        def in_memory(rows: MemoryRows) -> MemoryVectors:
            return MemoryVectors(rows, query, self._key, self.fresh)

        ranked = [
            Ranked(
                on_lance(level.dataset) if _is_current(level) else in_memory(self._memory(level)),
                self.levels[:number],
            )
            for number, level in enumerate(self.levels)
        ]
        if isinstance(self.base, LanceBase):
            ranked.append(Ranked(on_lance(self.base.dataset), self.levels, self.belongs))
        elif self.base is not None:
            rows = self._of_base(self.base)
            ranked.append(Ranked(in_memory(rows), self.levels, self.belongs))
        return ranked

    def by_text(self, text: str) -> list[Ranked]:
        """What to ask of each level for words, all by the same statistics."""
        index = self._base_index("text")
        options = index.analyzer if index is not None else self._sstable_analyzer()
        analyzer = self.fresh.analyzer(options)
        query = TextQuery(self.column, text, analyzer.terms(text), analyzer)
        if not query.terms:
            return []
        sources: list[tuple[Any, Sequence[Level], Belongs | None]] = []
        for number, level in enumerate(self.levels):
            indexed = self._indexed_text(level, query, options)
            source = indexed or MemoryTexts(self._memory(level), query, self._key, self.fresh)
            sources.append((source, self.levels[:number], None))
        sources.extend(
            (source, self.levels, self.belongs) for source in self._base_texts(query, index)
        )
        common = TextStats()
        for stats in self.fresh.env.threads.map(
            lambda one: one[0].stats, sources, workers=LEVELS_AT_ONCE
        ):
            common = common.plus(stats)
        for source, _, _ in sources:
            source.score_by(common)
        return [Ranked(*one) for one in sources]

    def _indexed_text(self, level: Level, query: TextQuery, options: Any) -> LanceTexts | None:
        """The level's own index, when it has one that cuts words alike and covers every row."""
        if not _is_current(level):
            return None
        index = index_of(self._indexes(level.dataset), self.column, "text")
        if index is None or index.analyzer != options:
            return None
        return self._lance_texts(level.dataset, index, query)

    def _base_texts(self, query: TextQuery, index: IndexInfo | None) -> list[Any]:
        if self.base is None:
            return []
        if not isinstance(self.base, LanceBase):
            return [MemoryTexts(self._of_base(self.base), query, self._key, self.fresh)]
        dataset = self.base.dataset
        covered = frozenset() if index is None else index.fragments
        rest = [number for number, _ in self.base.fragments() if number not in covered]
        sources: list[Any] = []
        if index is not None and covered:
            sources.append(self._lance_texts(dataset, index, query))
        if rest:
            looked_at = filter_columns(self.filter, self.schema.plain.names)
            sources.append(
                ScannedTexts(
                    dataset, rest, query, self._names(dataset), looked_at, filter=self.filter
                )
            )
        return sources

    def _lance_texts(self, dataset: Dataset, index: IndexInfo, query: TextQuery) -> LanceTexts:
        key = (dataset.uri, dataset.version, index.name)
        return LanceTexts(
            dataset,
            index.name,
            query,
            self._names(dataset),
            filter=self.filter,
            sizes=lambda: self.fresh.sizes.get_or_make(
                key, lambda: index_sizes(dataset, index.name, query), lambda _: 1
            ),
        )

    @property
    def _key(self) -> list[str]:
        """The columns that tell whether a row counts; never none, a table of none has no rows."""
        return list(self.schema.primary_key) or self.schema.plain.names[:1]

    def _names(self, dataset: Dataset) -> list[str]:
        names = self._key
        if self.belongs is not None and not self.schema.primary_key:
            names = list(self.schema.plain.names)
        return [*names, TOMBSTONE] if TOMBSTONE in dataset.schema.names else names

    def _memory(self, level: Level) -> MemoryRows:
        batches = level.batches if isinstance(level, MemLevel | MemView) else list(level.scan())
        return MemoryRows(batches, self.schema, filter=self.filter)

    def _of_base(self, base: Base) -> MemoryRows:
        batches = [
            batch.append_column(TOMBSTONE_FIELD, pa.array(np.zeros(batch.num_rows, np.bool_)))
            for batch in base.scan()
        ]
        return MemoryRows(batches, self.schema, filter=self.filter)

    def _indexes(self, dataset: Dataset) -> list[IndexInfo]:
        key = (dataset.uri, dataset.version)
        return self.fresh.known.get_or_make(key, lambda: dataset_indexes(dataset), lambda _: 1)

    def _base_index(self, kind: str) -> IndexInfo | None:
        if not isinstance(self.base, LanceBase):
            return None
        return index_of(self._indexes(self.base.dataset), self.column, kind)

    def _metric(self) -> str:
        index = self._base_index("vector") or self._sstable_index("vector")
        return index.metric if index is not None and index.metric in METRICS else "l2"

    def _sstable_analyzer(self) -> dict[str, Any]:
        index = self._sstable_index("text")
        return {} if index is None else index.analyzer

    def _sstable_index(self, kind: str) -> IndexInfo | None:
        """Of a table whose writers keep an index that the base does not have yet."""
        for level in self.levels:
            if _is_current(level):
                found = index_of(self._indexes(level.dataset), self.column, kind)
                if found is not None:
                    return found
        return None


def _is_current(level: Level) -> TypeGuard[LanceSsTable]:
    """True when Lance can be asked about the level by today's names."""
    return isinstance(level, LanceSsTable) and level.has_current_names
