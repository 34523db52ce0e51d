"""What searches keep: the postings of rows in memory, and what is known of indexes on the store.

Postings belong to the level whose rows they are made of, so a reader whose tail grew by one entry
indexes that entry alone. Vectors need no index: comparing every one takes as long as keeping one.
A BTree or bitmap has no counterpart here either: a vectorized filter over a MemTable's columns
takes less than keeping it sorted (docs/guides/search.md has the figures).

Keeps
  M-1  a search indexes the rows that are not indexed yet, so a row is found when its put returns
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from weir.config import WriterConfig
from weir.env import Env
from weir.format.schema import TableSchema
from weir.lake.api import Lake
from weir.lake.cache import ByteCache
from weir.lake.index import IndexInfo, index_builder, index_of, maintained_indexes
from weir.merge.levels import MemLevel, MemView
from weir.search.text import Analyzer, TextBlock, join_blocks

GROUP_ROWS: Final = 16_384
"""Maximum rows gathered into one block; a larger batch is its own block, and not copied."""
SYNC_ROWS: Final = 1_024
"""Maximum rows that a synchronous writer leaves for the next search to index."""


class TextIndex:
    """The postings of a column that grows batch by batch. Safe to share between threads.

    The lock is held while rows are indexed, so that they are indexed once; blocks themselves are
    immutable and are read without it.
    """

    def __init__(self, analyzer: Analyzer, env: Env) -> None:
        self._analyzer = analyzer
        self._lock = env.threads.lock()
        self._numbers: dict[str, int] = {}
        """The numbers of the tokens, which grow with the rows and go with them."""
        self._made: tuple[int, tuple[TextBlock, ...]] = (0, ())
        """Number of batches indexed, and their blocks: replaced together, so that an interrupt
        leaves what was there before (F-16)."""

    @property
    def taken(self) -> int:
        """Number of batches that are in the blocks."""
        return self._made[0]

    @staticmethod
    def of(level: MemLevel | MemView, column: str, analyzer: Analyzer, env: Env) -> TextIndex:
        """The index of a level's column, which is kept with the level."""
        return level.derived((column, analyzer), lambda: TextIndex(analyzer, env))

    def blocks(self, arrays: Sequence[pa.Array]) -> tuple[TextBlock, ...]:
        """Blocks of the rows of `arrays`, in their order; indexes the new rows.

        The blocks may continue with rows that another reader added: skip those by row number.
        """
        with self._lock:
            taken, made = self._made
            blocks = list(made)
            for texts in _grouped(arrays[taken:]):
                _add(blocks, self._analyzer.block(texts, self._numbers))
            self._made = max(taken, len(arrays)), tuple(blocks)
            return self._made[1]


def _grouped(arrays: Sequence[pa.Array]) -> Iterator[pa.Array]:
    """Small arrays joined to at most `GROUP_ROWS` rows; a larger one as it is."""
    group: list[pa.Array] = []
    rows = 0
    for array in arrays:
        if group and rows + len(array) > GROUP_ROWS:
            yield _joined(group)
            group, rows = [], 0
        group.append(array)
        rows += len(array)
    if group:
        yield _joined(group)


def _joined(group: list[pa.Array]) -> pa.Array:
    return group[0] if len(group) == 1 else pa.concat_arrays(group)


def _add(blocks: list[TextBlock], block: TextBlock) -> None:
    """Append a block; keep few blocks, each several times the size of the next: O(log n) copies of
    a row."""
    blocks.append(block)
    while len(blocks) > 1:
        older, newer = blocks[-2:]
        if older.rows >= 4 * newer.rows or older.rows + newer.rows > GROUP_ROWS:
            break
        blocks[-2:] = [join_blocks([older, newer])]


class SearchCache:
    """What one table handle or writer knows of indexes on the store, and its tokenizers."""

    def __init__(self, env: Env) -> None:
        self.env = env
        self.sizes: ByteCache[tuple[int, int]] = ByteCache(4096, env)
        """Number of rows and words of text indexes on the store, by dataset, version and name."""
        self.words: ByteCache[int] = ByteCache(65_536, env)
        """Number of rows with a word, by dataset, version, index and word."""
        self.known: ByteCache[list[IndexInfo]] = ByteCache(4096, env)
        """Indexes of datasets on the store, by dataset and version."""
        self._lock = env.threads.lock()
        self._analyzers: dict[str, Analyzer] = {}

    def analyzer(self, options: dict[str, Any]) -> Analyzer:
        """The tokenizer with those settings."""
        key = repr(sorted(options.items()))
        with self._lock:
            return self._analyzers.setdefault(key, Analyzer(options, self.env))


class WriterIndexes:
    """Maintains the indexes of one writer: the postings of its MemTables, and those of SSTables.

    With `sync_indexed_write`, small puts are indexed together once they reach `SYNC_ROWS` rows. A
    search indexes the rest.
    """

    def __init__(
        self, env: Env, config: WriterConfig, indexes: Sequence[IndexInfo], name: str
    ) -> None:
        self.indexes = tuple(indexes)
        self.build = index_builder(self.indexes, label=name)
        """Builds the indexes into an SSTable; None if there are no indexes."""
        self.cache = SearchCache(env)
        self._texts = [i for i in indexes if i.kind == "text" and config.sync_indexed_write]
        self._waiting = 0

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
        if not self._texts:
            return
        self._waiting += rows  # a hint: if threads race, the search indexes more
        if self._waiting < SYNC_ROWS:
            return
        self._waiting = 0
        batches = level.batches
        for index in self._texts:
            analyzer = self.cache.analyzer(index.analyzer)
            kept = TextIndex.of(level, index.column, analyzer, self.cache.env)
            kept.blocks([batch.column(index.column) for batch in batches])
