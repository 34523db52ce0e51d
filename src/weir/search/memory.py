"""Exact indexes over rows in memory, extended as rows arrive and kept as long as the rows are.

Vectors are stored contiguously with their lengths, text becomes postings. A BTree or bitmap index
has no counterpart here: a vectorized filter over a MemTable's columns takes less than keeping it
sorted (docs/guides/search.md has the figures). A kept index is found by the memory address of the
column's first values, which belong to the very rows it was built from, so a reader whose tail grew
by one entry indexes that entry alone.

Keeps
  M-1  a search indexes the rows that are not indexed yet, so a row is found when its put returns
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

import pyarrow as pa

from weir.config import WriterConfig
from weir.durations import seconds
from weir.env import Env, Thread
from weir.format.schema import TableSchema
from weir.lake.api import Lake
from weir.lake.cache import ByteCache
from weir.lake.index import IndexInfo, index_builder, index_of, maintained_indexes
from weir.merge.levels import MemLevel
from weir.search.lance_vectors import Effort
from weir.search.text import Analyzer, TextBlock
from weir.search.text import join_blocks as join_texts
from weir.search.vector import VectorBlock, in_parts, vector_block
from weir.search.vector import join_blocks as join_vectors

FRESH_BYTES: Final = 512 << 20
"""Maximum memory of all indexes over fresh rows of one table handle."""
GROUP_ROWS: Final = 16_384
"""Maximum rows gathered into one block; a larger batch is its own block, and not copied."""
SYNC_ROWS: Final = 1_024
"""Maximum rows that a synchronous writer leaves for the next search to index."""


class Block(Protocol):
    """An index over some rows."""

    @property
    def rows(self) -> int:
        """Number of rows."""

    @property
    def nbytes(self) -> int:
        """Memory held."""


B = TypeVar("B", bound=Block)


class GrowingIndex(Generic[B]):
    """Blocks over a column that grows batch by batch. Safe to share between threads.

    The lock is held while rows are indexed, so that they are indexed once; blocks themselves are
    immutable and are read without it.
    """

    def __init__(
        self,
        make: Callable[[Sequence[pa.Array]], B],
        join: Callable[[Sequence[B]], B],
        env: Env,
    ) -> None:
        self._make = make
        self._join = join
        self._lock = env.threads.lock()
        self._blocks: list[B] = []
        # References that keep the memory they are identified by from being reused for other rows.
        self._first: pa.Array | None = None
        self._last: pa.Array | None = None
        self.taken = 0
        """Number of batches that are in the blocks."""

    def starts(self, arrays: Sequence[pa.Array]) -> bool:
        """True if these batches begin with the indexed ones, or the other way round."""
        if self._last is None or len(arrays) < self.taken:
            return True
        return memory_of(arrays[self.taken - 1]) == memory_of(self._last)

    def blocks(self, arrays: Sequence[pa.Array]) -> tuple[B, ...]:
        """Blocks of the rows of `arrays`, in their order; indexes the new rows.

        The blocks may continue with rows that another reader added: skip those by row number.
        """
        with self._lock:
            group: list[pa.Array] = []
            rows = 0
            for array in arrays[self.taken :]:
                if group and rows + len(array) > GROUP_ROWS:
                    self._add(group)
                    group, rows = [], 0
                group.append(array)
                rows += len(array)
            if group:
                self._add(group)
            if len(arrays) > self.taken:
                self.taken = len(arrays)
                self._first, self._last = arrays[0], arrays[-1]
            return tuple(self._blocks)

    def _add(self, group: list[pa.Array]) -> None:
        self._blocks.append(self._make(group))
        # Keeps few blocks, each several times the size of the next: O(log n) copies of a row.
        while len(self._blocks) > 1:
            older, newer = self._blocks[-2:]
            if older.rows >= 4 * newer.rows or older.rows + newer.rows > GROUP_ROWS:
                break
            self._blocks[-2:] = [self._join([older, newer])]

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return sum(block.nbytes for block in self._blocks)


class FreshIndexes:
    """The indexes and caches that one table handle or writer keeps between searches."""

    def __init__(self, env: Env) -> None:
        self.env = env
        self._column_indexes: ByteCache[GrowingIndex[Any]] = ByteCache(FRESH_BYTES, env)
        self.sizes: ByteCache[tuple[int, int]] = ByteCache(4096, env)
        """Number of rows and words of text indexes on the store, by dataset, version and name."""
        self.words: ByteCache[int] = ByteCache(65_536, env)
        """Number of rows with a word, by dataset, version, index and word."""
        self.efforts: ByteCache[Effort] = ByteCache(4096, env)
        """How thoroughly approximate indexes must be searched, by dataset, version and column."""
        self.known: ByteCache[list[IndexInfo]] = ByteCache(4096, env)
        """Indexes of datasets on the store, by dataset and version."""
        self._lock = env.threads.lock()
        self._analyzers: dict[str, Analyzer] = {}

    def analyzer(self, options: dict[str, Any]) -> Analyzer:
        """The tokenizer with those settings."""
        key = repr(sorted(options.items()))
        with self._lock:
            return self._analyzers.setdefault(key, Analyzer(options, self.env))

    def vectors(self, arrays: Sequence[pa.Array]) -> tuple[VectorBlock, ...]:
        """The vectors of a column, batch by batch."""
        return self._blocks("vector", arrays, _vectors, join_vectors)

    def texts(self, arrays: Sequence[pa.Array], analyzer: Analyzer) -> tuple[TextBlock, ...]:
        """The postings of a column, batch by batch."""
        return self._blocks(
            id(analyzer), arrays, lambda group: analyzer.block(_one(group)), join_texts
        )

    def forget(self, level: MemLevel, columns: Sequence[str]) -> None:
        """Drop the indexes over a level's rows, which are in an SSTable now."""
        batches = level.batches
        for column in columns if batches else ():
            first = memory_of(batches[0].column(column))
            for kind in ("vector", *map(id, list(self._analyzers.values()))):
                self._column_indexes.drop((kind, first))

    def _blocks(
        self,
        kind: object,
        arrays: Sequence[pa.Array],
        make: Callable[[Sequence[pa.Array]], B],
        join: Callable[[Sequence[B]], B],
    ) -> tuple[B, ...]:
        if not arrays:
            return ()
        first = memory_of(arrays[0])
        if first is None:
            return GrowingIndex(make, join, self.env).blocks(arrays)
        key = (kind, first)
        grown: GrowingIndex[B] | None = self._column_indexes.get(key)
        if grown is None or not grown.starts(arrays):
            grown = GrowingIndex(make, join, self.env)
        blocks = grown.blocks(arrays)
        self._column_indexes.put(key, grown, grown.nbytes + 1024)
        return blocks


def _one(group: Sequence[pa.Array]) -> pa.Array:
    return group[0] if len(group) == 1 else pa.concat_arrays(group)


def _vectors(group: Sequence[pa.Array]) -> VectorBlock:
    return join_vectors([vector_block(_one(some)) for some in in_parts(group)])


def memory_of(array: pa.Array) -> tuple[int, int, int] | None:
    """The memory of an array's values, valid while the array is referenced; None if empty."""
    buffers = array.buffers()
    address = next((b.address for b in reversed(buffers) if b is not None and b.size), None)
    return None if address is None else (address, array.offset, len(array))


class WriterIndexes:
    """Maintains the indexes of one writer's MemTables, within each put or asynchronously.

    Synchronously, small puts are indexed together once they reach `SYNC_ROWS` rows, and a search
    indexes the rest. Asynchronously, a thread indexes the rows gathered so far.
    """

    def __init__(
        self, env: Env, config: WriterConfig, indexes: Sequence[IndexInfo], name: str
    ) -> None:
        self._env = env
        self._config = config
        self.indexes = tuple(indexes)
        self.build = index_builder(self.indexes, where=name)
        """Builds the indexes into an SSTable; None if there are no indexes."""
        self.fresh = FreshIndexes(env)
        self._name = name
        self._kept = [i for i in indexes if i.kind in ("vector", "text")]
        self._waiting = 0
        self._changed = env.threads.condition()
        self._level: MemLevel | None = None
        self._thread: Thread | None = None
        self._stopping = False

    @classmethod
    def plan(
        cls, lake: Lake, schema: TableSchema, config: WriterConfig, *, env: Env, name: str
    ) -> WriterIndexes:
        """The indexes that a writer maintains; `InvalidInput` if one does not fit the table.

        No request if the base has no index, else at most one. A WAL-only writer has nothing to
        index (M-2).
        """
        if not config.enable_memtable:
            return cls(env, config, (), name)
        indexes = maintained_indexes(lake.open_base(), config.index_configs, schema)
        return cls(env, config, indexes, name)

    def metric(self, column: str) -> str | None:
        """The metric of the vector index maintained on that column."""
        index = index_of(self.indexes, column, "vector")
        return None if index is None else index.metric

    def rows_added(self, level: MemLevel, rows: int) -> None:
        """Called after rows were put into `level`, without holding a lock of the writer."""
        if not self._kept or rows == 0:
            return
        if self._config.sync_indexed_write:
            if rows + self._waiting < SYNC_ROWS:
                self._waiting += rows  # a hint: if threads race, the search indexes more
                return
            self._waiting = 0
            self._take_in(level)
            return
        with self._changed:
            self._level = level
            self._waiting += rows
            if self._thread is None and not self._stopping:
                # None if no thread can be started: searches do the work then (F-16).
                self._thread = self._env.threads.start(self._run, name=f"weir-index-{self._name}")
            if self._waiting >= self._config.async_index_buffer_rows:
                self._changed.notify()

    def published(self, level: MemLevel) -> None:
        """Called when the level's rows are in an SSTable."""
        self.fresh.forget(level, [index.column for index in self._kept])

    def stop(self) -> None:
        """Stop the thread and wait for it."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        interval = seconds(self._config.async_index_interval)
        while True:
            with self._changed:
                if not self._stopping and self._waiting < self._config.async_index_buffer_rows:
                    self._changed.wait(interval)
                if self._stopping:
                    return
                level, self._waiting = self._level, 0
            if level is not None:
                self._take_in(level)

    def _take_in(self, level: MemLevel) -> None:
        batches = level.batches
        for index in self._kept:
            arrays = [batch.column(index.column) for batch in batches]
            if index.kind == "vector":
                self.fresh.vectors(arrays)
            else:
                self.fresh.texts(arrays, self.fresh.analyzer(index.analyzer))
