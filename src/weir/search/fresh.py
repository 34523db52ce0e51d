"""Search candidates from rows in memory: a MemTable, the tail of the log, or rows just read.

The search is exact: it measures every row. Older versions of a key within the level and deleted
rows are never offered; the filter applies to the remaining rows (L-3).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from weir.env import Env
from weir.format.keys import pk_values
from weir.format.nested import as_type
from weir.format.schema import TOMBSTONE, TableSchema, no_rows
from weir.keys.keyset import newest_rows
from weir.lake.filters import filter_columns, passing
from weir.lazy import Lazy
from weir.merge.levels import MemLevel, MemView, level_schema, shaped
from weir.search.arrays import Floats, Ints, Mask, Matrix
from weir.search.lance_vectors import Candidates, VectorQuery
from weir.search.memory import TextIndex
from weir.search.text import Analyzer, TextBlock, TextStats
from weir.search.text_query import TextQuery, Texts
from weir.search.vector import (
    VectorBlock,
    exact_distances,
    rough_distances,
    slack,
    vectors_of,
)


class MemoryRows:
    """Batches with the columns a search needs, including `_tombstone`, and which rows count."""

    def __init__(
        self,
        batches: Sequence[pa.RecordBatch],
        schema: TableSchema,
        env: Env,
        *,
        filter: Any = None,
        level: MemLevel | MemView | None = None,
    ) -> None:
        """`level` is the one whose batches these are, if they stay in memory."""
        self._env = env
        self._level = level
        self._vectors: dict[str, VectorBlock] = {}
        self.batches = [batch for batch in batches if batch.num_rows]
        self._schema = schema
        self._filter = filter
        self._ends = np.cumsum([batch.num_rows for batch in self.batches])

    @property
    def rows(self) -> int:
        """Rows held, superseded ones included."""
        return int(self._ends[-1]) if len(self._ends) else 0

    @Lazy
    def allowed(self) -> Mask:
        """The newest row of each key, unless it is deleted or fails the filter."""
        if not self.batches:
            return np.zeros(0, np.bool_)
        allowed: Mask = ~self._column(TOMBSTONE).to_numpy(zero_copy_only=False)
        key = self._schema.primary_key
        if key:
            rows = pa.Table.from_batches([batch.select(list(key)) for batch in self.batches])
            newest = np.zeros(self.rows, np.bool_)
            newest[newest_rows(pk_values(rows, key))] = True
            allowed &= newest
        if self._filter is not None:
            allowed &= self._passing()
        return allowed

    def _passing(self) -> Mask:
        known = self._schema.plain.names
        names = filter_columns(self._filter, known) or known[:1]
        columns = {name: self._column(name) for name in names}
        fields = [pa.field(n, self._schema.plain.field(n).type) for n in names]
        table = pa.Table.from_arrays(
            [as_type(columns[f.name], f.type) for f in fields], schema=pa.schema(fields)
        )
        return passing(table, self._filter, known=known)

    def arrays(self, column: str) -> list[pa.Array]:
        """The column, batch by batch."""
        return [batch.column(column) for batch in self.batches]

    def vectors(self, column: str) -> VectorBlock:
        """The vectors of a column, read once for all queries of a batch."""
        if column not in self._vectors:
            self._vectors[column] = vectors_of(self.arrays(column))
        return self._vectors[column]

    def texts(self, column: str, analyzer: Analyzer) -> Sequence[TextBlock]:
        """The postings of a column, perhaps with those of later rows; kept with the level."""
        if self._level is None:
            return TextIndex(analyzer, self._env).blocks(self.arrays(column))
        index = TextIndex.of(self._level, column, analyzer, self._env)
        return index.blocks(self.arrays(column))

    def _column(self, name: str) -> pa.ChunkedArray:
        return pa.chunked_array(self.arrays(name))

    def take(self, handles: Ints, columns: Sequence[str]) -> pa.Table:
        """Columns of rows by row number, in the order of `handles`."""
        target = level_schema(self._schema, columns)
        target = pa.schema(list(target)[: len(target) - 1])
        if not len(handles):
            return no_rows(target)
        numbers = np.searchsorted(self._ends, handles, side="right")
        taken = []
        for number in np.unique(numbers).tolist():
            batch = self.batches[number].select(target.names)
            first = int(self._ends[number]) - batch.num_rows
            taken.append(batch.take(pa.array(handles[numbers == number] - first)))
        found = shaped(pa.concat_batches(taken), target)
        by_batch = np.argsort(numbers, kind="stable")
        return pa.Table.from_batches([found.take(pa.array(np.argsort(by_batch)))], target)


class MemoryVectors:
    """Vectors in memory: a product estimates all distances; near rows are measured exactly."""

    def __init__(self, rows: MemoryRows, query: VectorQuery, names: Sequence[str]) -> None:
        self._rows = rows
        self._query = query
        self._names = list(names)

    @Lazy
    def _rough(self) -> tuple[VectorBlock, Matrix, float]:
        """The vectors, rough distances, and their maximum error."""
        query = self._query
        block = self._rows.vectors(query.column)
        rough = rough_distances(block, query.vector, query.metric)
        rough[~self._rows.allowed] = np.nan
        return block, rough, slack(block, query.vector, query.metric)

    def fetch(self, count: int) -> Candidates:
        """The nearest `count` rows."""
        block, rough, error = self._rough
        (rows,) = np.nonzero(~np.isnan(rough))
        sure = rough[np.isfinite(rough)]
        is_part = count < len(sure)
        if is_part:
            # Measure every row again that could be among the nearest, given the error.
            edge = np.partition(sure, count - 1)[count - 1]
            rows = rows[rough[rows] <= edge + 2 * error]
        values = exact_distances(block.vectors(rows), self._query.vector, self._query.metric)
        rows, values = rows[np.isfinite(values)], values[np.isfinite(values)]
        exhausted = not is_part and count >= len(rows)
        order = np.argsort(values, kind="stable")[:count]
        numbers, values = rows[order], values[order]
        bound = math.inf if exhausted or not len(values) else float(values[-1])
        rows = self._rows.take(numbers, self._names)
        return Candidates(rows, numbers, values, bound, exhausted)


class MemoryTexts:
    """Text in memory: an index with the postings of every row."""

    def __init__(self, rows: MemoryRows, query: TextQuery, names: Sequence[str]) -> None:
        self._rows = rows
        self._query = query
        self._names = list(names)
        self.take = rows.take

    @Lazy
    def _blocks(self) -> Sequence[TextBlock]:
        return self._rows.texts(self._query.column, self._query.analyzer)

    @Lazy
    def stats(self) -> TextStats:
        """The statistics of these rows, superseded ones included, as Lance counts them."""
        total = TextStats()
        for block in self._blocks:
            total = total.plus(block.stats(self._query.terms))
        return total

    def by(self, common: TextStats) -> Callable[[int], Candidates]:
        """Gives the best rows by those statistics."""
        ranking = self._ranking(common)

        def fetch(count: int) -> Candidates:
            numbers, values = ranking
            exhausted = count >= len(numbers)
            numbers, values = numbers[:count], values[:count]
            bound = math.inf if exhausted else float(values[-1])
            rows = self._rows.take(numbers, self._names)
            return Candidates(rows, numbers, values, bound, exhausted)

        return fetch

    def _ranking(self, common: TextStats) -> tuple[Ints, Floats]:
        """The matching rows, best first, and their values."""
        numbers, values = [np.zeros(0, np.int64)], [np.zeros(0)]
        for start, block in _numbered(self._blocks):
            rows, counts = block.matches(list(self._query.terms))
            seen = rows + start < self._rows.rows
            rows, counts = rows[seen], counts[seen]
            matches, scores = self._query.judged(
                common, counts, block.lengths[rows], self._texts_of(rows + start)
            )
            numbers.append(rows[matches] + start)
            values.append(-scores[matches])
        found, ranks = np.concatenate(numbers), np.concatenate(values)
        allowed = self._rows.allowed[found] if len(found) else np.zeros(0, np.bool_)
        found, ranks = found[allowed], ranks[allowed]
        order = np.argsort(ranks, kind="stable")
        return found[order], ranks[order]

    def _texts_of(self, numbers: Ints) -> Texts:
        def texts(at: Ints) -> Sequence[str | None]:
            column = pa.chunked_array(self._rows.arrays(self._query.column))
            found: list[str | None] = column.take(pa.array(numbers[at])).to_pylist()
            return found

        return texts


def _numbered(blocks: Sequence[TextBlock]) -> Iterator[tuple[int, TextBlock]]:
    start = 0
    for block in blocks:
        yield start, block
        start += block.rows
