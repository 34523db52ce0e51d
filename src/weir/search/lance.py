"""Candidates of a search out of Lance: the base, or one SSTable, best first and as many as asked.

A source answers "your best n" and says what it has not shown: `bound`. Whoever merges sources stops
asking when no bound can beat what is found. Values are smaller for better rows: distances, or
negated scores.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from lance.file import LanceFileReader
from lance.query import MatchQuery

from weir.lake.filters import filter_rows
from weir.lake.lance_errors import lance_errors
from weir.search.lazy import Lazy
from weir.search.text import Analyzer, TextStats, term_weights
from weir.search.vector import Matrix

ROW_ID: Final = "_rowid"
PROBES: Final = 20
REFINE: Final = 10
"""Defaults for an approximate base index: partitions looked at, and candidates per row wanted whose
distances are computed from the vectors themselves."""
_SAMPLE_ROWS: Final = 256
_AT: Final = "__weir_at"

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Candidates:
    """Rows a source offers, best first."""

    rows: pa.Table
    """Key columns, and whatever else was asked for."""
    handles: npt.NDArray[np.int64]
    """What `take` knows the rows by."""
    values: Floats
    bound: float
    """No row that is not offered has a smaller value."""
    exhausted: bool
    """True when there are no others."""


@dataclass(frozen=True)
class VectorQuery:
    """A search by vector."""

    column: str
    vector: Matrix
    metric: str
    probes: int = PROBES
    refine: int | None = REFINE
    exact: bool = False
    """True: no approximate index, every vector is compared."""


@dataclass(frozen=True)
class TextQuery:
    """A search for words: a row with any of them is found."""

    column: str
    text: str
    terms: Mapping[str, str]
    """Each token, and a text that has it alone."""
    analyzer: Analyzer

    @property
    def names(self) -> list[str]:
        """The tokens, in order."""
        return list(self.terms)


def take_rows(
    dataset: lance.LanceDataset, handles: npt.NDArray[np.int64], columns: Sequence[str]
) -> pa.Table:
    """The columns of rows known by their row id, in that order."""
    with lance_errors(f"reading rows found in {dataset.uri}"):
        return dataset._take_rows(pa.array(handles.astype(np.uint64)), columns=list(columns))  # noqa: SLF001


class LanceVectors:
    """Vectors of a Lance dataset: through its index, and one by one where it has none."""

    def __init__(
        self,
        dataset: lance.LanceDataset,
        query: VectorQuery,
        names: Sequence[str],
        *,
        filter: Any = None,
    ) -> None:
        self._dataset = dataset
        self._query = query
        self._names = list(names)
        self._filter = filter

    def fetch(self, count: int) -> Candidates:
        """The nearest `count` rows."""
        query = self._query
        nearest = {
            "column": query.column,
            "q": query.vector,
            "k": count,
            "metric": query.metric,
            "use_index": not query.exact,
            # A minimum: where a filter leaves too few, Lance goes on to the other partitions.
            "minimum_nprobes": query.probes,
            "refine_factor": query.refine,
        }
        with lance_errors(f"searching {query.column!r} in {self._dataset.uri}"):
            found = self._dataset.scanner(
                columns=[*self._names, "_distance"],
                disable_scoring_autoprojection=True,
                nearest=nearest,
                filter=self._filter,
                prefilter=True,
                with_row_id=True,
            ).to_table()
        values = found.column("_distance").to_numpy().astype(np.float64)
        order = np.argsort(values, kind="stable")
        order = order[np.isfinite(values[order])]
        exhausted = found.num_rows < count
        values = values[order]
        return Candidates(
            found.select(self._names).take(order),
            found.column(ROW_ID).to_numpy()[order].astype(np.int64),
            values,
            math.inf if exhausted or not len(values) else float(values[-1]),
            exhausted,
        )

    def take(self, handles: npt.NDArray[np.int64], columns: Sequence[str]) -> pa.Table:
        """Columns of rows offered before."""
        return take_rows(self._dataset, handles, columns)


class LanceTexts:
    """Text of a Lance dataset through its inverted index; rows not in the index are left out.

    Lance ranks by statistics of this dataset alone. Candidates are scored anew with those of all
    levels; how much the rank can change is known from both, and so when enough were fetched.
    """

    def __init__(
        self,
        dataset: lance.LanceDataset,
        index: str,
        query: TextQuery,
        names: Sequence[str],
        *,
        filter: Any = None,
        sizes: Callable[[], tuple[int, int]] | None = None,
    ) -> None:
        self._dataset = dataset
        self._sizes = sizes or (lambda: index_sizes(dataset, index, query))
        self._query = query
        self._names = list(names)
        self._filter = filter
        self._common: TextStats | None = None
        # A word that cannot be asked for alone has no known weight: fetch every match instead.
        self._is_ranked = all(query.terms.values())

    @Lazy
    def stats(self) -> TextStats:
        """The statistics Lance itself ranks by: superseded rows count until they are gone."""
        docs, tokens = self._sizes()
        average = tokens / docs if docs else 1.0
        if not self._is_ranked:
            _, texts = self._match(self._query.text, None, filtered=False)
            block = self._query.analyzer.block(texts)
            ids = {term: self._query.analyzer.token_id(term) for term in self._query.terms}
            return TextStats(docs, tokens, block.stats(ids).df)
        df = {}
        for term, alone in self._query.terms.items():
            best, texts = self._match(alone, 1, filtered=False)
            if best.num_rows == 0:
                continue
            counts, lengths = self._counted(texts)
            at = self._query.names.index(term)
            weight = float(term_weights(counts, lengths, average)[0, at])
            idf = float(best.column("_score")[0].as_py()) / weight
            # The inverse of TextStats.idf: one row's score tells how many rows have the word.
            df[term] = max(1, round((docs + 1) / math.exp(idf) - 0.5))
        return TextStats(docs, tokens, df)

    def score_by(self, common: TextStats) -> None:
        """Score by these statistics from now on."""
        self._common = common

    def fetch(self, count: int) -> Candidates:
        """The best `count` rows by Lance's rank, scored by the common statistics."""
        common = self._common
        assert common is not None, "scores of levels compare only by common statistics"
        limit = count if self._is_ranked else None
        found, texts = self._match(self._query.text, limit)
        counts, lengths = self._counted(texts)
        values = -common.scores(self._query.names, counts, lengths)
        order = np.argsort(values, kind="stable")
        exhausted = limit is None or found.num_rows < limit
        last = float(found.column("_score")[-1].as_py()) if found.num_rows else 0.0
        return Candidates(
            found.select(self._names).take(order),
            found.column(ROW_ID).to_numpy()[order].astype(np.int64),
            values[order],
            math.inf if exhausted else -last * self._gain(common),
            exhausted,
        )

    def take(self, handles: npt.NDArray[np.int64], columns: Sequence[str]) -> pa.Table:
        """Columns of rows offered before."""
        return take_rows(self._dataset, handles, columns)

    def _gain(self, common: TextStats) -> float:
        """At most so many times Lance's score is a row's score by the common statistics.

        Each word's weight changes by the ratio of its idf; a longer average length raises a row's
        share by at most the ratio of the averages. A hair more, for float32.
        """
        ours = self.stats
        ratios = [common.idf(term) / ours.idf(term) for term in ours.df if ours.idf(term) > 0]
        longer = common.average_length / ours.average_length
        return max(ratios, default=1.0) * max(1.0, longer) * (1 + 1e-5)

    def _counted(self, texts: pa.ChunkedArray) -> tuple[Any, Any]:
        """How often each row has each term, and its length."""
        block = self._query.analyzer.block(texts)
        terms = [self._query.analyzer.token_id(term) for term in self._query.terms]
        counts = np.zeros((block.rows, len(terms)), np.int64)
        rows, found = block.matches(terms)
        counts[rows] = found
        return counts, block.lengths

    def _match(
        self, text: str, limit: int | None, *, filtered: bool = True
    ) -> tuple[pa.Table, pa.ChunkedArray]:
        column = self._query.column
        with lance_errors(f"searching {column!r} in {self._dataset.uri}"):
            found = self._dataset.scanner(
                columns=[*dict.fromkeys((*self._names, column)), "_score"],
                disable_scoring_autoprojection=True,
                full_text_query=MatchQuery(text, column=column),
                filter=self._filter if filtered else None,
                prefilter=True,
                limit=limit,
                fast_search=True,
                with_row_id=True,
            ).to_table()
        return found, found.column(column)


class ScannedTexts:
    """Text of fragments without an index: read once, and only the rows that match are kept."""

    def __init__(
        self,
        dataset: lance.LanceDataset,
        fragments: Sequence[int],
        query: TextQuery,
        names: Sequence[str],
        filter_names: Sequence[str],
        *,
        filter: Any = None,
    ) -> None:
        self._dataset = dataset
        self._fragments = set(fragments)
        self._query = query
        self._names = list(names)
        self._filter_names = list(filter_names)
        self._filter = filter
        self._common: TextStats | None = None

    @Lazy
    def _read(self) -> tuple[TextStats, pa.Table, Any, Any]:
        """Statistics of all rows; of the matching ones columns, counts and lengths."""
        query = self._query
        ids = {term: query.analyzer.token_id(term) for term in query.terms}
        names = list(dict.fromkeys((*self._names, *self._filter_names, query.column)))
        stats = TextStats()
        kept: list[pa.RecordBatch] = []
        counts, lengths = [np.zeros((0, len(ids)), np.int64)], [np.zeros(0, np.int64)]
        with lance_errors(f"reading {query.column!r} of {self._dataset.uri}"):
            scanner = self._dataset.scanner(
                columns=names,
                fragments=[
                    fragment
                    for fragment in self._dataset.get_fragments()
                    if fragment.fragment_id in self._fragments
                ],
                with_row_id=True,
                batch_size=16_384,
            )
            for batch in scanner.to_batches():
                block = query.analyzer.block(batch.column(query.column))
                stats = stats.plus(block.stats(ids))
                rows, found = block.matches(list(ids.values()))
                kept.append(batch.take(pa.array(rows)))
                counts.append(found)
                lengths.append(block.lengths[rows])
            table = pa.Table.from_batches(kept, scanner.projected_schema)
        return stats, table, np.concatenate(counts), np.concatenate(lengths)

    @property
    def stats(self) -> TextStats:
        """The statistics of these rows."""
        return self._read[0]

    def score_by(self, common: TextStats) -> None:
        """Score by these statistics from now on."""
        self._common = common

    def fetch(self, count: int) -> Candidates:
        """All of them: they are in memory."""
        assert self._common is not None, "scores of levels compare only by common statistics"
        _, rows, counts, lengths = self._read
        values = -self._common.scores(self._query.names, counts, lengths)
        if self._filter is not None and rows.num_rows:
            plain = rows.drop_columns([ROW_ID]).append_column(
                _AT, pa.array(np.arange(rows.num_rows))
            )
            passing = filter_rows(plain, self._filter, [_AT])
            at = np.concatenate([b.column(0).to_numpy() for b in passing] or [np.zeros(0, int)])
        else:
            at = np.arange(rows.num_rows)
        order = at[np.argsort(values[at], kind="stable")]
        return Candidates(
            rows.select(self._names).take(order),
            rows.column(ROW_ID).to_numpy()[order].astype(np.int64),
            values[order],
            math.inf,
            exhausted=True,
        )

    def take(self, handles: npt.NDArray[np.int64], columns: Sequence[str]) -> pa.Table:
        """Columns of rows offered before."""
        return take_rows(self._dataset, handles, columns)


def index_sizes(dataset: lance.LanceDataset, index: str, query: TextQuery) -> tuple[int, int]:
    """Rows and words of an inverted index; never change for one version of a dataset."""
    with lance_errors(f"reading the statistics of index {index!r} of {dataset.uri}"):
        parts = dataset.stats.index_stats(index)["indices"]
        docs = sum(int(part["num_docs"]) for part in parts)
        if docs == 0:
            return 0, 0
        described = [found for found in dataset.describe_indices() if found.name == index]
        segments = [segment for found in described for segment in found.segments]
        try:
            return docs, sum(_tokens(dataset, segment) for segment in segments)
        except (KeyError, OSError):
            return docs, _sampled(dataset, query, docs)


def _tokens(dataset: lance.LanceDataset, segment: Any) -> int:
    """Words of one segment, from the footers of its files; `KeyError` when they do not say."""
    if segment.base_id is not None:
        raise KeyError("the files of the index are in another table")
    options = dataset._storage_options  # noqa: SLF001
    folder = f"{dataset.uri.rstrip('/')}/_indices/{segment.uuid}"

    def footer(name: str) -> Mapping[bytes, bytes]:
        reader = LanceFileReader(f"{folder}/{name}", storage_options=options)
        return reader.metadata().schema.metadata or {}

    parts = json.loads(footer("metadata.lance")[b"partitions"])
    return sum(int(footer(f"part_{part}_docs.lance")[b"total_tokens"]) for part in parts)


def _sampled(dataset: lance.LanceDataset, query: TextQuery, docs: int) -> int:
    """A guess, where the files of the index do not say: a clone's are in another table."""
    rows = dataset.to_table(columns=[query.column], limit=_SAMPLE_ROWS)
    block = query.analyzer.block(rows.column(query.column))
    return round(docs * int(block.lengths.sum()) / max(block.num_docs, 1))
