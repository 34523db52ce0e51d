"""One search over all levels of a shard or a table: the query for each level, and the merge.

A vector column is searched by distance, a text column by words. Fresh levels and SSTables of weir
are searched exactly. The base is as exact as its index, and rows it has not indexed yet are
compared one by one, so no row is missed after a compaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeGuard

import numpy as np
import pyarrow as pa

from weir.env import Lock
from weir.format.schema import TOMBSTONE, TOMBSTONE_FIELD, TableSchema
from weir.lake.api import Base
from weir.lake.filters import filter_columns
from weir.lake.index import Dataset, IndexInfo, dataset_indexes, index_of
from weir.lake.sstable.read import LanceSsTable
from weir.merge.levels import Level, MemLevel, MemView, level_schema
from weir.merge.merge import Belongs, output_schema
from weir.search.fresh import MemoryRows, MemoryTexts, MemoryVectors, PassingVectors
from weir.search.lance_texts import LanceTexts, ScannedTexts, UnindexedRows, index_sizes
from weir.search.lance_vectors import (
    EXACT_BYTES,
    PROBES,
    REFINE,
    ROW_ID,
    Ints,
    LanceVectors,
    VectorQuery,
)
from weir.search.lazy import Lazy
from weir.search.memory import SearchCache
from weir.search.options import SearchOptions, queries_of
from weir.search.ranking import LEVELS_AT_ONCE, Best, Ranked, Source, Window, best_of, rows_of
from weir.search.text import TextStats
from weir.search.text_query import TextQuery
from weir.search.vector import METRICS, Matrix
from weir.search.words import Words
from weir.types import require_whole

QUERY_INDEX: Final = "query_index"
"""The column with the number of the query in the batch that a row answers."""


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
    cache: SearchCache,
    options: SearchOptions,
) -> pa.Table:
    """The `k` best rows of `levels` (newest first) over `base`; see `Table.search`."""
    require_whole("k", k, 1)
    target = output_schema(schema, columns)
    plan = Plan(tuple(levels), base, schema, filter, belongs, cache, tuple(target.names))
    asked, is_batch = queries_of(schema, column, query)
    options.check_for(schema, [column])
    found = [plan.search(column, one, k, target, options) for one in asked]
    if not is_batch:
        return found[0]
    numbers = [np.full(part.num_rows, number, np.int32) for number, part in enumerate(found)]
    field = pa.field(QUERY_INDEX, pa.int32())
    return pa.concat_tables(found).append_column(field, pa.array(np.concatenate(numbers)))


@dataclass(frozen=True)
class Plan:
    """The levels and the base that are searched, and which of their rows count."""

    levels: tuple[Level, ...]
    base: Base | None
    schema: TableSchema
    filter: Any
    belongs: Belongs | None
    cache: SearchCache
    wanted: tuple[str, ...] = ()
    """Columns to return of the rows found."""
    _in_memory: dict[int, MemoryRows] = field(default_factory=dict, repr=False)

    def search(
        self, column: str, query: Matrix | Words, k: int, target: pa.Schema, options: SearchOptions
    ) -> pa.Table:
        """The columns of `target` of the `k` best rows, with their distances or scores."""
        ranked, best = self.best(column, query, options.window(k), options)
        best = best.part(slice(options.offset, None))
        name, values = "_distance", best.values
        if not isinstance(query, np.ndarray):
            name, values = "_score", -best.values
        added = pa.field(name, pa.float32())
        column_of_values = pa.array(values.astype(np.float32))
        if not target.names:
            return pa.table([column_of_values], schema=pa.schema([added]))
        return rows_of(ranked, best, target).append_column(added, column_of_values)

    def best(
        self, column: str, query: Matrix | Words, window: Window, options: SearchOptions
    ) -> tuple[list[Ranked], Best]:
        """The best rows, and the sources to read their columns from."""
        filter_columns(self.filter, self.schema.plain.names)  # refuses columns of Lance's own
        if isinstance(query, np.ndarray):
            ranked = self.by_vector(column, query, options)
        else:
            ranked = self.by_text(column, query)
        return ranked, best_of(ranked, window, self.schema.primary_key, self.cache.env)

    def by_vector(self, column: str, vector: Matrix, options: SearchOptions) -> list[Ranked]:
        """A source for each level that ranks its rows by distance to a vector."""
        metric = options.metric or self._metric(column)
        query = VectorQuery(column, vector, metric, exact=options.exact)

        def on_lance(dataset: Dataset, *, is_base: bool) -> LanceVectors:
            asked = self._thoroughly(dataset, query, options, is_base=is_base)
            return LanceVectors(dataset, asked, self._names(dataset), filter=self.filter)

        def on_level(level: Level) -> Source:
            if _is_current(level):
                return on_lance(level.dataset, is_base=False)
            if isinstance(level, MemLevel | MemView):
                return MemoryVectors(self._held(level), query, self._key)

            def read(columns: Sequence[str]) -> MemoryVectors:
                return MemoryVectors(self._passing(level, (column, *columns)), query, columns)

            return PassingVectors(read, self._key, self._turn)

        ranked = [
            Ranked(on_level(level), self.levels[:number])
            for number, level in enumerate(self.levels)
        ]
        if self.base is not None and self.base.is_lance:
            ranked.append(
                Ranked(on_lance(self.base.dataset, is_base=True), self.levels, self.belongs)
            )
        elif self.base is not None:
            rows = MemoryVectors(self._of_base(self.base), query, self._key)
            ranked.append(Ranked(rows, self.levels, self.belongs))
        return ranked

    def _thoroughly(
        self, dataset: Dataset, query: VectorQuery, options: SearchOptions, *, is_base: bool
    ) -> VectorQuery:
        """How to query an index: as the options say; exactly if that is faster than the index."""
        index = index_of(self._indexes(dataset), query.column, "vector")
        if query.exact or index is None or index.metric != query.metric:
            return replace(query, exact=True)
        refine = None if index.is_flat else options.refine_factor or REFINE
        asked = replace(query, probes=options.nprobes or PROBES, refine=refine)
        if options.nprobes is not None or options.refine_factor is not None:
            return asked
        if index.is_flat and not is_base:
            return asked  # its writer made no more partitions than a search probes
        vectors = self.schema.plain.field(query.column).type
        row_bytes = vectors.list_size * (vectors.value_type.bit_width // 8)
        return replace(asked, exact=dataset.count_rows() * row_bytes <= EXACT_BYTES)

    def by_text(self, column: str, words: Words) -> list[Ranked]:
        """A source for each level that ranks its rows by words, all with the same statistics."""
        index = self._base_index(column, "text")
        options = index.analyzer if index is not None else self._sstable_analyzer(column)
        query = TextQuery.of(column, words, self.cache.analyzer(options))
        if not query.terms:
            return []

        sources: list[tuple[Any, Sequence[Level], Belongs | None]] = []
        for number, level in enumerate(self.levels):
            source = self._level_texts(level, query, options)
            sources.append((source, self.levels[:number], None))
        sources.extend(
            (source, self.levels, self.belongs) for source in self._base_texts(query, index)
        )
        # guard: L-1 first test_scores_of_all_levels_compare
        if len(sources) == 1 and isinstance(sources[0][0], LanceTexts) and sources[0][0].is_final:
            return [Ranked(*one) for one in sources]
        common = TextStats()
        for stats in self.cache.env.threads.map(
            lambda one: one[0].stats, sources, workers=LEVELS_AT_ONCE
        ):
            common = common.plus(stats)
        for source, _, _ in sources:
            source.score_by(common)
        return [Ranked(*one) for one in sources]

    def _level_texts(
        self, level: Level, query: TextQuery, options: Any
    ) -> LanceTexts | MemoryTexts | ScannedTexts:
        """By the level's own index, if it has one with the same tokenizer that covers every row."""
        if isinstance(level, MemLevel | MemView):
            return MemoryTexts(self._held(level), query, self._key)
        if not _is_current(level):
            return self._scanned(self._unindexed(level), query, [*self._key, TOMBSTONE])
        index = index_of(self._indexes(level.dataset), query.column, "text")
        if index is None or index.analyzer != options:
            rows = UnindexedRows.of(level.dataset)
            return self._scanned(rows, query, self._names(level.dataset))
        return self._lance_texts(level.dataset, index, query)

    def _unindexed(self, level: Level) -> UnindexedRows:
        """The rows of a level by their number; memory holds one such level at a time (L-10)."""

        def read(columns: Sequence[str]) -> pa.RecordBatchReader:
            names = [name for name in columns if name != TOMBSTONE]
            schema = level_schema(self.schema, names).append(pa.field(ROW_ID, pa.int64()))

            def numbered() -> Iterator[pa.RecordBatch]:
                start = 0
                for batch in level.scan(names):
                    end = start + batch.num_rows
                    yield batch.append_column(schema.field(ROW_ID), pa.array(np.arange(start, end)))
                    start = end

            return pa.RecordBatchReader.from_batches(schema, numbered())

        def take(handles: Ints, columns: Sequence[str]) -> pa.Table:
            with self._turn:
                return self._passing(level, columns).take(handles, columns)

        return UnindexedRows(read, take, self._turn)

    def _scanned(self, rows: UnindexedRows, query: TextQuery, names: Sequence[str]) -> ScannedTexts:
        looked_at = filter_columns(self.filter, self.schema.plain.names)
        return ScannedTexts(rows, query, names, looked_at, filter=self.filter)

    def _base_texts(self, query: TextQuery, index: IndexInfo | None) -> list[Any]:
        if self.base is None:
            return []
        if not self.base.is_lance:
            return [MemoryTexts(self._of_base(self.base), query, self._key)]
        dataset = self.base.dataset
        covered = frozenset() if index is None else index.fragments
        rest = [number for number, _ in self.base.fragments() if number not in covered]
        sources: list[Any] = []
        if index is not None and covered:
            sources.append(self._lance_texts(dataset, index, query))
        if rest:
            rows = UnindexedRows.of(dataset, rest)
            sources.append(self._scanned(rows, query, self._names(dataset)))
        return sources

    def _lance_texts(self, dataset: Dataset, index: IndexInfo, query: TextQuery) -> LanceTexts:
        key = (dataset.uri, dataset.version, index.name)
        return LanceTexts(
            dataset,
            index,
            query,
            self._names(dataset),
            filter=self.filter,
            filter_names=filter_columns(self.filter, self.schema.plain.names),
            sizes=lambda: self.cache.sizes.get_or_make(
                key, lambda: index_sizes(dataset, index.name, query), lambda _: 1
            ),
            known=self.cache.words,
        )

    @property
    def _key(self) -> list[str]:
        """Columns that decide whether a row counts; at least one, else a table has no rows."""
        return list(self.schema.primary_key) or self.schema.plain.names[:1]

    def _names(self, dataset: Dataset) -> list[str]:
        names = self._key
        if self.belongs is not None and not self.schema.primary_key:
            names = list(self.schema.plain.names)
        if not self.levels:
            # The best rows of the base are the result: fetch all columns now, not row by row later.
            names = list(dict.fromkeys((*names, *self.wanted)))
        return [*names, TOMBSTONE] if TOMBSTONE in dataset.schema.names else names

    def _held(self, level: MemLevel | MemView) -> MemoryRows:
        """Rows that stay in memory, for all queries of a batch."""
        if id(level) not in self._in_memory:
            self._in_memory[id(level)] = self._rows(level.batches, level)
        return self._in_memory[id(level)]

    def _passing(self, level: Level, columns: Sequence[str]) -> MemoryRows:
        """Rows of a level on the store, read for one request."""
        looked_at = filter_columns(self.filter, self.schema.plain.names)
        names = dict.fromkeys((*self._key, *looked_at, *columns))
        return self._rows(list(level.scan([name for name in names if name != TOMBSTONE])))

    @Lazy
    def _turn(self) -> Lock:
        return self.cache.env.threads.lock()

    def _of_base(self, base: Base) -> MemoryRows:
        batches = [
            batch.append_column(TOMBSTONE_FIELD, pa.array(np.zeros(batch.num_rows, np.bool_)))
            for batch in base.scan()
        ]
        return self._rows(batches)

    def _rows(
        self, batches: list[pa.RecordBatch], level: MemLevel | MemView | None = None
    ) -> MemoryRows:
        return MemoryRows(batches, self.schema, self.cache.env, filter=self.filter, level=level)

    def _indexes(self, dataset: Dataset) -> list[IndexInfo]:
        key = (dataset.uri, dataset.version)
        return self.cache.known.get_or_make(key, lambda: dataset_indexes(dataset), lambda _: 1)

    def _base_index(self, column: str, kind: str) -> IndexInfo | None:
        if self.base is None or not self.base.is_lance:
            return None
        return index_of(self._indexes(self.base.dataset), column, kind)

    def _metric(self, column: str) -> str:
        index = self._base_index(column, "vector") or self._sstable_index(column, "vector")
        return index.metric if index is not None and index.metric in METRICS else "l2"

    def _sstable_analyzer(self, column: str) -> dict[str, Any]:
        index = self._sstable_index(column, "text")
        return {} if index is None else index.analyzer

    def _sstable_index(self, column: str, kind: str) -> IndexInfo | None:
        """An index that writers maintain in SSTables, but that the base does not have yet."""
        for level in self.levels:
            if _is_current(level):
                found = index_of(self._indexes(level.dataset), column, kind)
                if found is not None:
                    return found
        return None


def _is_current(level: Level) -> TypeGuard[LanceSsTable]:
    """True if Lance can query the level by the current column names."""
    return isinstance(level, LanceSsTable) and level.has_current_names
