"""Text search in Lance datasets, through an inverted index or by scanning unindexed rows."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
from lance.file import LanceFileReader
from lance.query import MatchQuery

from weir.lake.cache import ByteCache
from weir.lake.filters import lance_scanner, passing
from weir.lake.index import IndexInfo
from weir.lake.lance_errors import lance_errors
from weir.lake.shared import SharedDataset
from weir.lazy import Lazy
from weir.search.arrays import Floats, Ints
from weir.search.lance_vectors import ROW_ID, Candidates, take_rows
from weir.search.text import TextStats, term_weights
from weir.search.text_query import TextQuery

_SAMPLE_ROWS: Final = 256


class LanceTexts:
    """Text of a Lance dataset through its inverted index; rows not in the index are left out.

    Lance ranks by the statistics of this dataset alone. Candidates are scored again with those of
    all levels. Both statistics bound how much a score can change, and so decide when enough rows
    were fetched. If this is the only level, Lance's scores are used unchanged.
    """

    def __init__(
        self,
        dataset: SharedDataset,
        index: IndexInfo,
        query: TextQuery,
        names: Sequence[str],
        *,
        filter: Any,
        filter_names: Sequence[str],
        sizes: Callable[[], tuple[int, int]],
        known: ByteCache[int],
    ) -> None:
        self._dataset = dataset
        self._index = index
        self._sizes = sizes
        self._known = known
        self._query = query
        self._names = list(names)
        self._filter = filter
        # L-1: asked for indexed rows only, Lance filters by the filter's index alone, and would
        # leave out rows that the text index has and that one does not have yet.
        self._filter_by_index = index.ahead_of.isdisjoint(filter_names)
        self.take = partial(take_rows, dataset)
        self._has_positions = bool(index.text.get("with_position"))
        # A word that cannot be queried alone has no known weight: fetch every match instead.
        self._is_ranked = all(query.terms.values())

    @property
    def is_final(self) -> bool:
        """True if Lance's answer needs no judging, so it is final when this is the only source."""
        return self._is_ranked and not self._query.needs_judging(positions=self._has_positions)

    @Lazy
    def stats(self) -> TextStats:
        """The statistics that Lance ranks by: superseded rows count until they are removed."""
        docs, tokens = self._sizes()
        average = tokens / docs if docs else 1.0
        if not self._is_ranked:
            _, texts = self._match(self._query.any_word(), None, filtered=False)
            block = self._query.analyzer.block(texts)
            return TextStats(docs, tokens, block.stats(self._query.terms).df)
        df = {term: self._rows_with(term, docs, average) for term in self._query.terms}
        return TextStats(docs, tokens, {term: count for term, count in df.items() if count})

    def _rows_with(self, term: str, docs: int, average: float) -> int:
        """How many rows have a word; the index never changes, so it is queried once."""
        key = (self._dataset.uri, self._dataset.version, self._index.name, term)
        return self._known.get_or_make(
            key, lambda: self._asked_for(term, docs, average), lambda _: 1
        )

    def _asked_for(self, term: str, docs: int, average: float) -> int:
        alone = MatchQuery(self._query.terms[term], self._query.column)
        best, texts = self._match(alone, 1, filtered=False)
        if best.num_rows == 0:
            return 0
        counts, lengths = self._counted(texts)
        at = self._query.names.index(term)
        weight = float(term_weights(counts, lengths, average)[0, at])
        idf = float(best.column("_score")[0].as_py()) / weight
        # The inverse of TextStats.idf: the score of one row gives the number of rows with the word.
        return max(1, round((docs + 1) / math.exp(idf) - 0.5))

    def by_lance(self, count: int) -> Candidates:
        """The best `count` rows by Lance's own scores, for a source that `is_final`."""
        asked = self._query.for_lance(positions=self._has_positions)
        found = self._searched(asked, count, self._names)
        scores = found.column("_score").to_numpy().astype(np.float64)
        return self._offered(found, np.arange(found.num_rows), -scores, 1.0, count)

    def by(self, common: TextStats) -> Callable[[int], Candidates]:
        """Gives the best rows by Lance's rank, scored by those statistics."""

        def fetch(count: int) -> Candidates:
            limit = count if self._is_ranked else None
            found, texts = self._match(self._query.for_lance(positions=self._has_positions), limit)
            counts, lengths = self._counted(texts)
            matches, scores = self._query.judged(
                common, counts, lengths, lambda at: texts.take(pa.array(at)).to_pylist()
            )
            at = np.flatnonzero(matches)
            return self._offered(found, at, -scores, self._gain(common), limit)

        return fetch

    def _offered(
        self, found: pa.Table, at: Ints, values: Floats, gain: float, limit: int | None
    ) -> Candidates:
        last = float(found.column("_score")[-1].as_py()) if found.num_rows else 0.0
        return Candidates.of(
            found.select(self._names).take(at),
            found.column(ROW_ID).to_numpy()[at].astype(np.int64),
            values[at],
            -last * gain,
            exhausted=limit is None or found.num_rows < limit,
        )

    def _gain(self, common: TextStats) -> float:
        """Upper bound of the ratio of a row's score by the common statistics to Lance's score.

        Each word's weight changes by the ratio of its idf; a longer average length raises a row's
        share by at most the ratio of the averages. The factor 1 + 1e-5 covers float32 rounding.
        """
        ours = self.stats
        ratios = [common.idf(term) / ours.idf(term) for term in ours.df if ours.idf(term) > 0]
        longer = common.average_length / ours.average_length
        return max(ratios, default=1.0) * max(1.0, longer) * (1 + 1e-5)

    def _counted(self, texts: pa.ChunkedArray) -> tuple[Any, Any]:
        """How often each row has each term, and the length of each row."""
        block = self._query.analyzer.block(texts)
        counts = np.zeros((block.rows, len(self._query.terms)), np.int64)
        rows, found = block.matches(list(self._query.terms))
        counts[rows] = found
        return counts, block.lengths

    def _match(
        self, query: Any, limit: int | None, *, filtered: bool = True
    ) -> tuple[pa.Table, pa.ChunkedArray]:
        """The matching rows, and their texts."""
        column = self._query.column
        names = list(dict.fromkeys((*self._names, column)))
        found = self._searched(query, limit, names, filtered=filtered)
        return found, found.column(column)

    def _searched(
        self, query: Any, limit: int | None, names: Sequence[str], *, filtered: bool = True
    ) -> pa.Table:
        with lance_errors(f"searching {self._query.column!r} in {self._dataset.uri}"):
            return lance_scanner(
                self._dataset,
                self._filter if filtered else None,
                [*names, "_score"],
                disable_scoring_autoprojection=True,
                full_text_search=query,
                prefilter=True,
                limit=limit,
                fast_search=True,  # the rows in the text index; `ScannedTexts` reads the others
                # guard: L-1 test_text_search_and_an_index_behind
                use_scalar_index=self._filter_by_index,
                with_row_id=True,
            ).to_table()


@dataclass(frozen=True)
class UnindexedRows:
    """Rows without a text index, which must be read to be searched."""

    read: Callable[[Sequence[str]], pa.RecordBatchReader]
    """Those columns of all rows, and the row's handle in `ROW_ID`."""
    take: Callable[[Ints, Sequence[str]], pa.Table]
    """Columns of a few rows by their handles, in order."""
    turn: AbstractContextManager[object] = field(default_factory=nullcontext)
    """Held while all rows are read."""

    @staticmethod
    def of(dataset: SharedDataset, fragments: Sequence[int] | None = None) -> UnindexedRows:
        """The rows of a dataset, or of some of its fragments."""

        def read(columns: Sequence[str]) -> pa.RecordBatchReader:
            chosen = dataset.get_fragments()
            if fragments is not None:
                wanted = set(fragments)
                chosen = [one for one in chosen if one.fragment_id in wanted]
            with lance_errors(f"reading {list(columns)} of {dataset.uri}"):
                return dataset.scanner(
                    columns=list(columns), fragments=chosen, with_row_id=True, batch_size=16_384
                ).to_reader()

        return UnindexedRows(read, lambda handles, columns: take_rows(dataset, handles, columns))


class WordRows:
    """The rows of a level with any word of the queries of a batch: read once, for all of them."""

    def __init__(
        self,
        rows: UnindexedRows,
        query: TextQuery,
        names: Sequence[str],
        filter_names: Sequence[str],
        *,
        filter: Any,
    ) -> None:
        """`query` is one of the batch."""
        self.rows = rows
        self.terms = list(query.of_batch)
        self.names = list(names)
        self._query = query
        self._filter_names = list(filter_names)
        self._filter = filter

    @Lazy
    def found(self) -> tuple[TextStats, pa.Table, Any, Any]:
        """Statistics of all rows; columns, counts and lengths of those with a word."""
        query = self._query
        names = list(dict.fromkeys((*self.names, *self._filter_names, query.column)))
        stats = TextStats()
        kept: list[pa.RecordBatch] = []
        counts, lengths = [np.zeros((0, len(self.terms)), np.int64)], [np.zeros(0, np.int64)]
        with self.rows.turn, lance_errors(f"reading {query.column!r}"):
            reader = self.rows.read(names)
            for batch in reader:
                block = query.analyzer.block(batch.column(query.column))
                stats = stats.plus(block.stats(self.terms))
                rows, times = block.matches(self.terms)
                kept.append(batch.take(pa.array(rows)))
                counts.append(times)
                lengths.append(block.lengths[rows])
        table = pa.Table.from_batches(kept, reader.schema)
        return stats, table, np.concatenate(counts), np.concatenate(lengths)

    @Lazy
    def passing(self) -> Ints:
        """The numbers of the rows that pass the filter."""
        rows = self.found[1]
        if self._filter is None or not rows.num_rows:
            return np.arange(rows.num_rows)
        return np.flatnonzero(passing(rows.drop_columns([ROW_ID]), self._filter))


class ScannedTexts:
    """Text without an index, as one query ranks it."""

    def __init__(self, rows: WordRows, query: TextQuery) -> None:
        self._rows = rows
        self._query = query
        self.take = rows.rows.take

    @property
    def stats(self) -> TextStats:
        """The statistics of these rows."""
        return self._rows.found[0]

    def by(self, common: TextStats) -> Callable[[int], Candidates]:
        """Gives all matching rows, however many are asked for: they are in memory."""
        _, rows, counts, lengths = self._rows.found
        texts = rows.column(self._query.column)
        columns = [self._rows.terms.index(term) for term in self._query.names]
        matches, scores = self._query.judged(
            common,
            counts[:, columns],
            lengths,
            lambda at: texts.take(pa.array(at)).to_pylist(),
        )
        at = self._rows.passing
        at = at[matches[at]]
        found = Candidates.of(
            rows.select(self._rows.names).take(at),
            rows.column(ROW_ID).to_numpy()[at].astype(np.int64),
            -scores[at],
            math.inf,
            exhausted=True,
        )
        return lambda _: found


def index_sizes(dataset: SharedDataset, index: str, query: TextQuery) -> tuple[int, int]:
    """Rows and words of an inverted index; they never change for one version of a dataset."""
    with lance_errors(f"reading the statistics of index {index!r} of {dataset.uri}"):
        parts = dataset.stats.index_stats(index)["indices"]
        docs = sum(int(part["num_docs"]) for part in parts)
        if docs == 0:
            return 0, 0
        described = [found for found in dataset.describe_indices() if found.name == index]
        segments = [segment for found in described for segment in found.segments]
        try:
            return docs, sum(tokens_of(dataset, segment) for segment in segments)
        except (KeyError, OSError):
            return docs, _sampled(dataset, query, docs)


def tokens_of(dataset: SharedDataset, segment: Any) -> int:
    """Words of one segment, from the footers of its files; `KeyError` if they do not have it."""
    if segment.base_id is not None:
        raise KeyError("the files of the index are in another table")
    options = dataset._storage_options  # noqa: SLF001
    folder = f"{dataset.uri.rstrip('/')}/_indices/{segment.uuid}"

    def footer(name: str) -> Mapping[bytes, bytes]:
        reader = LanceFileReader(f"{folder}/{name}", storage_options=options)
        return reader.metadata().schema.metadata or {}

    parts = json.loads(footer("metadata.lance")[b"partitions"])
    return sum(int(footer(f"part_{part}_docs.lance")[b"total_tokens"]) for part in parts)


def _sampled(dataset: SharedDataset, query: TextQuery, docs: int) -> int:
    """An estimate for an index without readable files: those of a clone are in another table."""
    rows = dataset.to_table(columns=[query.column], limit=_SAMPLE_ROWS)
    block = query.analyzer.block(rows.column(query.column))
    return round(docs * int(block.lengths.sum()) / max(block.num_docs, 1))
