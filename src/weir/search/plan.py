"""One search over all levels of a shard or a table: the query for each level, and the merge.

A vector column is searched by distance, a text column by words. Fresh levels and SSTables of weir
are searched exactly. The base is as exact as its index, and rows it has not indexed yet are
compared one by one, so no row is missed after a compaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeAlias, TypeGuard

import numpy as np
import pyarrow as pa

from weir.env import Lock
from weir.errors import InvalidInput
from weir.format.schema import TOMBSTONE, TOMBSTONE_FIELD, TableSchema
from weir.lake.api import Base
from weir.lake.filters import filter_columns, is_for_lance
from weir.lake.index import Dataset, IndexInfo, dataset_indexes, index_of
from weir.lake.sstable.read import LanceSsTable
from weir.lazy import Lazy
from weir.merge.levels import Level, MemLevel, MemView, level_schema
from weir.merge.merge import Belongs, output_schema
from weir.search.arrays import Ints, Matrix
from weir.search.fresh import MemoryRows, MemoryTexts, MemoryVectors
from weir.search.lance_texts import (
    LanceTexts,
    ScannedTexts,
    UnindexedRows,
    WordRows,
    index_sizes,
)
from weir.search.lance_vectors import (
    EXACT_BYTES,
    GROWTH,
    PROBES,
    REFINE,
    ROW_ID,
    Candidates,
    LanceVectors,
    VectorQuery,
    take_rows,
)
from weir.search.memory import SearchCache
from weir.search.options import DISTANCE, SCORE, SearchOptions, queries_of
from weir.search.ranking import LEVELS_AT_ONCE, Best, Fetch, Ranked, best_of, rows_of
from weir.search.text import TextStats
from weir.search.text_query import TextQuery
from weir.search.vector import METRICS
from weir.search.words import Words

Texts: TypeAlias = LanceTexts | MemoryTexts | ScannedTexts
QUERY_INDEX: Final = "query_index"
"""The column with the number of the query in the batch that a row answers."""


@dataclass(frozen=True)
class Plan:
    """The levels (newest first) and the base that are searched, and what is asked of them."""

    levels: tuple[Level, ...]
    base: Base | None
    schema: TableSchema
    options: SearchOptions
    cache: SearchCache
    belongs: Belongs | None = None
    takes_found: bool = True
    """False if only a few of the rows found are returned."""
    _in_memory: dict[int, MemoryRows] = field(default_factory=dict, repr=False)
    _with_words: dict[tuple[str, int], WordRows] = field(default_factory=dict, repr=False)

    @property
    def target(self) -> pa.Schema:
        """The columns to return."""
        return output_schema(self.schema, self.options.columns)

    def answered(self, column: str, query: Any) -> pa.Table:
        """The best rows of a query, or of each of a batch; see `Table.search`."""
        asked, is_batch = queries_of(self.schema, column, query)
        self.options.check_for(self.schema, [column], *([QUERY_INDEX] if is_batch else []))
        found = [self._answer(column, one) for one in self.compiled(column, asked)]
        if not is_batch:
            return found[0]
        numbers = [np.full(part.num_rows, number, np.int32) for number, part in enumerate(found)]
        field = pa.field(QUERY_INDEX, pa.int32())
        return pa.concat_tables(found).append_column(field, pa.array(np.concatenate(numbers)))

    def compiled(
        self, column: str, asked: Sequence[Matrix | Words]
    ) -> Sequence[Matrix | TextQuery]:
        """The queries of a batch, with words split as the column's index splits them."""
        if not is_for_lance(self.options.filter, self.schema.plain):
            raise InvalidInput(
                f"a search cannot filter by {self.options.filter}: Lance, which searches flushed"
                " rows, cannot evaluate this expression; write it in SQL"
            )
        vectors = [one for one in asked if isinstance(one, np.ndarray)]
        if vectors:
            return vectors
        words = [one for one in asked if not isinstance(one, np.ndarray)]
        return TextQuery.batch(column, words, self.cache.analyzer(self._analyzed(column)))

    def _answer(self, column: str, query: Matrix | TextQuery) -> pa.Table:
        """The columns of the target of the best rows, with their distances or scores."""
        ranked = self.ranked(column, query)
        best = self._page(ranked)
        name, values = DISTANCE, best.values
        if isinstance(query, TextQuery):
            name, values = SCORE, -best.values
        added = pa.field(name, pa.float32())
        column_of_values = pa.array(values.astype(np.float32))
        if not self.target.names:
            return pa.table([column_of_values], schema=pa.schema([added]))
        return rows_of(ranked, best, self.target).append_column(added, column_of_values)

    def _page(self, ranked: Sequence[Ranked]) -> Best:
        """The `k` rows after the `offset` best.

        An approximate index that is asked for more rows may find better ones, so one ranking of
        the length that a page needs would move rows from page to page. The best `k` come first,
        then those among the best four times `k` that were not there yet, and so on.
        """
        k, count = self.options.k, self.options.k + self.options.offset
        depth = k if any(one.is_approximate for one in ranked) else count
        found = self.best(ranked, depth)
        is_all = len(found.values) < depth
        while len(found.values) < count and not is_all:
            depth *= GROWTH
            more = self.best(ranked, depth)
            is_all = len(more.values) < depth
            found = found.followed_by(more)
        return found.part(slice(self.options.offset, count))

    def best(self, ranked: Sequence[Ranked], count: int) -> Best:
        """The best `count` rows, best first."""
        window = self.options.window(count)
        return best_of(ranked, window, self.schema.primary_key, self.cache.env)

    def ranked(self, column: str, query: Matrix | TextQuery) -> list[Ranked]:
        """A source for each level, from which the best rows and their columns are taken."""
        if isinstance(query, TextQuery):
            return self._by_text(query)
        return self._by_vector(column, query)

    def _by_vector(self, column: str, vector: Matrix) -> list[Ranked]:
        """Sources that rank rows by distance to a vector."""
        options = self.options
        metric = options.metric or self._metric(column)
        query = VectorQuery(column, vector, metric, exact=options.exact)

        def on_lance(dataset: Dataset, newer: Sequence[Level], *, is_base: bool) -> Ranked:
            asked = self._thoroughly(dataset, query, is_base=is_base)
            source = LanceVectors(dataset, asked, self._names(dataset), filter=options.filter)
            belongs = self.belongs if is_base else None
            take = partial(take_rows, dataset)
            return Ranked(source.fetch, take, newer, belongs, is_approximate=not asked.exact)

        def on_level(level: Level, newer: Sequence[Level]) -> Ranked:
            if _is_current(level):
                return on_lance(level.dataset, newer, is_base=False)
            if isinstance(level, MemLevel | MemView):
                rows = self._held(level)
                return Ranked(MemoryVectors(rows, query, self._key).fetch, rows.take, newer)

            def fetch(count: int) -> Candidates:
                with self._turn:
                    rows = self._passing(level, (column, *self._key))
                    return MemoryVectors(rows, query, self._key).fetch(count)

            return Ranked(fetch, partial(self._taken, level), newer)

        ranked = [on_level(level, self.levels[:n]) for n, level in enumerate(self.levels)]
        if self.base is not None and self.base.is_lance:
            ranked.append(on_lance(self.base.dataset, self.levels, is_base=True))
        elif self.base is not None:
            rows = self._of_base(self.base)
            vectors = MemoryVectors(rows, query, self._key)
            ranked.append(Ranked(vectors.fetch, rows.take, self.levels, self.belongs))
        return ranked

    def _thoroughly(self, dataset: Dataset, query: VectorQuery, *, is_base: bool) -> VectorQuery:
        """How to query an index: as the options say; exactly if that is faster than the index."""
        options = self.options
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

    def _by_text(self, query: TextQuery) -> list[Ranked]:
        """Sources that rank rows by words, all with the same statistics."""
        if not query.terms:
            return []
        options = self._analyzed(query.column)
        of_levels = [self._level_texts(level, query, options) for level in self.levels]
        of_base = self._base_texts(query)
        sources = [*of_levels, *of_base]
        # guard: L-1 first test_scores_of_all_levels_compare
        if len(sources) == 1 and isinstance(sources[0], LanceTexts) and sources[0].is_final:
            best: list[Fetch] = [sources[0].by_lance]
        else:
            common = TextStats()
            for stats in self.cache.env.threads.map(
                lambda one: one.stats, sources, workers=LEVELS_AT_ONCE
            ):
                common = common.plus(stats)
            best = [source.by(common) for source in sources]
        places: list[tuple[Sequence[Level], Belongs | None]] = [
            (self.levels[:number], None) for number in range(len(of_levels))
        ]
        places += [(self.levels, self.belongs) for _ in of_base]
        return [
            Ranked(fetch, source.take, *place)
            for fetch, source, place in zip(best, sources, places, strict=True)
        ]

    def _level_texts(self, level: Level, query: TextQuery, options: Any) -> Texts:
        """By the level's own index, if it has one with the same tokenizer that covers every row."""
        if isinstance(level, MemLevel | MemView):
            return MemoryTexts(self._held(level), query, self._key)
        if not _is_current(level):
            rows, names = self._unindexed(level), [*self._key, TOMBSTONE]
            return self._scanned(rows, id(level), query, names)
        index = index_of(self._indexes(level.dataset), query.column, "text")
        if index is None or index.analyzer != options:
            rows = UnindexedRows.of(level.dataset)
            return self._scanned(rows, id(level), query, self._names(level.dataset))
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

        return UnindexedRows(read, partial(self._taken, level), self._turn)

    def _scanned(
        self, rows: UnindexedRows, level: int, query: TextQuery, names: Sequence[str]
    ) -> ScannedTexts:
        """Rows of a level without an index, read once for all queries of a batch."""
        known = self._with_words.get((query.column, level))
        if known is None:
            passing = self.options.filter
            looked_at = filter_columns(passing, self.schema.plain.names)
            known = WordRows(rows, query, names, looked_at, filter=passing)
            self._with_words[query.column, level] = known
        return ScannedTexts(known, query)

    def _base_texts(self, query: TextQuery) -> list[Texts]:
        if self.base is None:
            return []
        if not self.base.is_lance:
            return [MemoryTexts(self._of_base(self.base), query, self._key)]
        dataset = self.base.dataset
        index = index_of(self._indexes(dataset), query.column, "text")
        covered = frozenset() if index is None else index.fragments
        rest = [number for number, _ in self.base.fragments() if number not in covered]
        sources: list[Texts] = []
        if index is not None and covered:
            sources.append(self._lance_texts(dataset, index, query))
        if rest:
            rows = UnindexedRows.of(dataset, rest)
            sources.append(self._scanned(rows, id(self.base), query, self._names(dataset)))
        return sources

    def _lance_texts(self, dataset: Dataset, index: IndexInfo, query: TextQuery) -> LanceTexts:
        key = (dataset.uri, dataset.version, index.name)
        return LanceTexts(
            dataset,
            index,
            query,
            self._names(dataset),
            filter=self.options.filter,
            filter_names=filter_columns(self.options.filter, self.schema.plain.names),
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
        if self.takes_found and not self.levels:
            # The best rows of the base are the result: fetch all columns now, not row by row later.
            names = list(dict.fromkeys((*names, *self.target.names)))
        return [*names, TOMBSTONE] if TOMBSTONE in dataset.schema.names else names

    def _held(self, level: MemLevel | MemView) -> MemoryRows:
        """Rows that stay in memory, for all queries of a batch."""
        if id(level) not in self._in_memory:
            self._in_memory[id(level)] = self._rows(level.batches, level)
        return self._in_memory[id(level)]

    def _passing(self, level: Level, columns: Sequence[str]) -> MemoryRows:
        """Rows of a level on the store, read for one request."""
        looked_at = filter_columns(self.options.filter, self.schema.plain.names)
        names = dict.fromkeys((*self._key, *looked_at, *columns))
        return self._rows(list(level.scan([name for name in names if name != TOMBSTONE])))

    def _taken(self, level: Level, handles: Ints, columns: Sequence[str]) -> pa.Table:
        with self._turn:
            return self._passing(level, columns).take(handles, columns)

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
        passing = self.options.filter
        return MemoryRows(batches, self.schema, self.cache.env, filter=passing, level=level)

    def _indexes(self, dataset: Dataset) -> list[IndexInfo]:
        key = (dataset.uri, dataset.version)
        return self.cache.known.get_or_make(key, lambda: dataset_indexes(dataset), lambda _: 1)

    def _index(self, column: str, kind: str) -> IndexInfo | None:
        """That of the base; if it has none yet, one that writers maintain in SSTables."""
        datasets = [level.dataset for level in self.levels if _is_current(level)]
        if self.base is not None and self.base.is_lance:
            datasets.insert(0, self.base.dataset)
        for dataset in datasets:
            found = index_of(self._indexes(dataset), column, kind)
            if found is not None:
                return found
        return None

    def _metric(self, column: str) -> str:
        index = self._index(column, "vector")
        return index.metric if index is not None and index.metric in METRICS else "l2"

    def _analyzed(self, column: str) -> dict[str, Any]:
        """How the text index splits words."""
        index = self._index(column, "text")
        return {} if index is None else index.analyzer


def _is_current(level: Level) -> TypeGuard[LanceSsTable]:
    """True if Lance can query the level by the current column names."""
    return isinstance(level, LanceSsTable) and level.has_current_names
