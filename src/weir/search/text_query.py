"""A compiled text query: which rows match it, and their scores.

A level's index finds rows that may match, in Lance's order. Whether they match is judged here, from
word counts and, for a phrase, from the text, so every level gives the same answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from lance.query import BooleanQuery, FullTextOperator, MatchQuery, Occur, PhraseQuery

from weir.search.arrays import Floats, Ints, Mask
from weir.search.text import Analyzer, TextStats
from weir.search.words import Boolean, Match, Phrase, Words

Texts = Callable[[Ints], Sequence[str | None]]
"""Returns the texts of some candidate rows, by row number."""


@dataclass(frozen=True)
class _Rows:
    """Candidate rows: how often each has each token, and what that adds to its score."""

    counts: Ints
    parts: Floats
    texts: Texts


@dataclass(frozen=True)
class _Leaf:
    """Words of which a matching row has any, all, or all in sequence."""

    text: str
    how: Literal["or", "and", "phrase"]
    tokens: tuple[tuple[str, int], ...]
    """Each token with its position."""
    columns: tuple[int, ...]
    """The distinct tokens, as columns of the counts. `times` is how often the query has each: Lance
    adds the score of a word that many times."""
    times: tuple[int, ...]
    is_loose: bool = False
    """True if Lance may take rows with some of the tokens for matches, whatever `how` says: for
    n-grams it does, also with positions."""

    def judge(self, rows: _Rows, analyzer: Analyzer) -> tuple[Mask, Floats]:
        if not self.columns:
            return np.zeros(len(rows.counts), np.bool_), np.zeros(len(rows.counts))
        present = rows.counts[:, self.columns] > 0
        every = np.logical_or if self.how == "or" else np.logical_and
        matches: Mask = every.reduce(present, axis=1)
        if self.how == "phrase" and len(self.tokens) > 1:
            at = np.flatnonzero(matches)
            texts = rows.texts(at)
            matches[at] = [self._is_in(text, analyzer) for text in texts]
        return matches, rows.parts[:, self.columns] @ np.array(self.times, np.float64) * matches

    def _is_in(self, text: str | None, analyzer: Analyzer) -> bool:
        places: dict[str, set[int]] = {}
        for token, position in analyzer.positions(text or ""):
            places.setdefault(token, set()).add(position)
        starts = [{at - into for at in places.get(token, ())} for token, into in self.tokens]
        return bool(set.intersection(*starts))

    def for_lance(self, column: str, *, positions: bool) -> Any:
        if self.how == "phrase" and positions and not self.is_loose:
            return PhraseQuery(self.text, column)
        every = FullTextOperator.OR if self.how == "or" else FullTextOperator.AND
        return MatchQuery(self.text, column, operator=every)

    def needs_judging(self, *, positions: bool) -> bool:
        # guard: L-1 test_a_text_index_of_ngrams
        if self.is_loose and self.how != "or":
            return True
        return self.how == "phrase" and not positions

    def leaves(self) -> Iterator[_Leaf]:
        yield self


@dataclass(frozen=True)
class _Group:
    """Queries that must, should and must not match."""

    must: tuple[_Leaf | _Group, ...]
    should: tuple[_Leaf | _Group, ...]
    must_not: tuple[_Leaf | _Group, ...]

    def judge(self, rows: _Rows, analyzer: Analyzer) -> tuple[Mask, Floats]:
        must = [one.judge(rows, analyzer) for one in self.must]
        should = [one.judge(rows, analyzer) for one in self.should]
        if must:
            matches = np.logical_and.reduce([found for found, _ in must])
        else:
            matches = np.logical_or.reduce([found for found, _ in should])
        for one in self.must_not:
            matches &= ~one.judge(rows, analyzer)[0]
        scores = np.sum([score for _, score in (*must, *should)], axis=0)
        return matches, scores * matches

    def for_lance(self, column: str, *, positions: bool) -> Any:
        # An index without positions matches more rows than the phrase does. To exclude them here
        # would also drop rows that match the query, so `judge` excludes phrases later.
        # guard: L-1 always test_search_queries
        left_out = [one for one in self.must_not if not one.needs_judging(positions=positions)]
        kinds = ((Occur.MUST, self.must), (Occur.SHOULD, self.should), (Occur.MUST_NOT, left_out))
        return BooleanQuery(
            [(how, q.for_lance(column, positions=positions)) for how, qs in kinds for q in qs]
        )

    def needs_judging(self, *, positions: bool) -> bool:
        parts = (*self.must, *self.should, *self.must_not)
        return any(one.needs_judging(positions=positions) for one in parts)

    def leaves(self) -> Iterator[_Leaf]:
        for one in (*self.must, *self.should, *self.must_not):
            yield from one.leaves()


@dataclass(frozen=True)
class TextQuery:
    """A query for words in one column."""

    column: str
    terms: Mapping[str, str]
    """Each token, with a text that yields only that token."""
    analyzer: Analyzer
    root: _Leaf | _Group
    of_batch: tuple[str, ...]
    """The tokens of all queries that are asked together with this one."""

    @classmethod
    def batch(cls, column: str, queries: Sequence[Words], analyzer: Analyzer) -> list[TextQuery]:
        """Compile queries that are asked together."""
        found = [cls.of(column, query, analyzer) for query in queries]
        tokens = tuple(dict.fromkeys(token for one in found for token in one.terms))
        return [replace(one, of_batch=tokens) for one in found]

    @classmethod
    def of(cls, column: str, query: Words, analyzer: Analyzer) -> TextQuery:
        """Compile a query, with words split as the analyzer splits them."""
        terms: dict[str, str] = {}
        for text in _texts(query):
            for token, alone in analyzer.terms(text).items():
                terms[token] = alone or terms.get(token, "")
            for token, _ in analyzer.positions(text):
                terms.setdefault(token, "")
        numbers = {term: number for number, term in enumerate(terms)}
        return cls(column, terms, analyzer, _node(query, analyzer, numbers), tuple(terms))

    @property
    def names(self) -> list[str]:
        """The tokens, in order."""
        return list(self.terms)

    def needs_judging(self, *, positions: bool) -> bool:
        """True if an index, with or without positions, also finds rows that do not match."""
        return self.root.needs_judging(positions=positions)

    def for_lance(self, *, positions: bool) -> Any:
        """The query in Lance's form; it finds at least the matching rows, each with at least its
        score."""
        return self.root.for_lance(self.column, positions=positions)

    def any_word(self) -> Any:
        """A query for rows with any word of this query."""
        return MatchQuery(" ".join(leaf.text for leaf in self.root.leaves()), self.column)

    def judged(
        self, common: TextStats, counts: Ints, lengths: Ints, texts: Texts
    ) -> tuple[Mask, Floats]:
        """Which of these rows match, and their scores by the `common` statistics."""
        parts = common.parts(self.names, counts, lengths)
        return self.root.judge(_Rows(counts, parts, texts), self.analyzer)


def _texts(query: Words) -> Iterable[str]:
    if isinstance(query, str):
        return [query]
    if isinstance(query, Match | Phrase):
        return [query.text]
    return [t for one in (*query.must, *query.should, *query.must_not) for t in _texts(one)]


def _node(query: Words, analyzer: Analyzer, numbers: Mapping[str, int]) -> _Leaf | _Group:
    if isinstance(query, Boolean):
        must, should, must_not = (
            tuple(_node(one, analyzer, numbers) for one in part)
            for part in (query.must, query.should, query.must_not)
        )
        return _Group(must, should, must_not)
    how: Literal["or", "and", "phrase"] = "or"
    if isinstance(query, Phrase):
        how = "phrase"
    elif isinstance(query, Match):
        how = query.operator
    text = query if isinstance(query, str) else query.text
    tokens = tuple(analyzer.positions(text))
    times = Counter(token for token, _ in tokens)
    return _Leaf(
        text,
        how,
        tokens,
        tuple(numbers[token] for token in times),
        tuple(times.values()),
        is_loose=not analyzer.is_word_by_word,
    )
