"""Words of a text index: Lance's own tokenizer, made fast for many rows, and postings in memory.

Scores are Lance's BM25 (k1 = 1.2, b = 0.75), over statistics that the caller gathers from all
levels, so scores of rows from different levels are comparable.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.env import Env
from weir.lake.lance_errors import lance_errors
from weir.search.arrays import Floats, Ints

K1: Final = 1.2
B: Final = 0.75
VOCABULARY_MAX: Final = 1_000_000
"""Distinct words cached with their tokens; the cache is cleared when it grows beyond this."""
_SEPARATORS: Final = {
    # ASCII that always ends a word for that tokenizer; the text between goes to Lance unchanged.
    "simple": r"[\x00-/:-@\[-`{-\x7f]+",
    "whitespace": r"[\t\n\f\r ]+",
}
_SENTINEL: Final = "q0q"
"""A word at position 0 that no filter drops, so that the words after it start at position 1."""


@dataclass(frozen=True)
class TextStats:
    """The statistics of a set of rows that BM25 needs."""

    num_docs: int = 0
    total_tokens: int = 0
    df: Mapping[str, int] = field(default_factory=dict)
    """Number of rows with each word."""

    def plus(self, other: TextStats) -> TextStats:
        """The statistics of both sets of rows together."""
        df = dict(self.df)
        for term, count in other.df.items():
            df[term] = df.get(term, 0) + count
        return TextStats(self.num_docs + other.num_docs, self.total_tokens + other.total_tokens, df)

    @property
    def average_length(self) -> float:
        """Average number of words in a row."""
        return self.total_tokens / self.num_docs if self.num_docs else 1.0

    def idf(self, term: str) -> float:
        """The weight of a word: ln(1 + (N - df + 0.5) / (df + 0.5))."""
        df = self.df.get(term, 0)
        return math.log((self.num_docs + 1) / (df + 0.5)) if df else 0.0

    def parts(self, terms: Sequence[str], counts: Ints, lengths: Ints) -> Floats:
        """The contribution of each term to each row's BM25; `counts` has one column per term."""
        weights = np.array([self.idf(term) for term in terms])
        return np.asarray(term_weights(counts, lengths, self.average_length) * weights)


def term_weights(counts: Ints, lengths: Ints, average_length: float) -> Floats:
    """The weight of each word in each row, between 0 and k1 + 1."""
    norm = K1 * (1 - B + B * lengths / max(average_length, 1e-9))
    counted = counts.astype(np.float64)
    weights: Floats = counted * (K1 + 1) / (counted + norm[:, None])
    return weights


@dataclass(frozen=True)
class TextBlock:
    """Postings of some rows, sorted by token. Immutable."""

    rows: int
    tokens: Ints
    """Token of each posting, ascending; rows ascend within a token."""
    docs: Ints
    counts: Ints
    lengths: Ints
    """Number of words of each row."""
    num_docs: int
    """Rows whose text is not null."""
    numbers: Mapping[str, int] = field(repr=False, compare=False)
    """The number of each token; it grows with the blocks that share it, and goes with them."""

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return self.tokens.nbytes + self.docs.nbytes + self.counts.nbytes + self.lengths.nbytes

    def _postings(self, term: str) -> slice:
        token = self.numbers.get(term, -1)
        first, end = np.searchsorted(self.tokens, [token, token + 1])
        return slice(int(first), int(end))

    def matches(self, terms: Sequence[str]) -> tuple[Ints, Ints]:
        """Rows with at least one of the terms, and how often each term occurs in them."""
        found = [(self.docs[at], self.counts[at]) for at in map(self._postings, terms)]
        rows = np.unique(np.concatenate([docs for docs, _ in found]))
        counts = np.zeros((len(rows), len(terms)), np.int64)
        for i, (docs, times) in enumerate(found):
            counts[np.searchsorted(rows, docs), i] = times
        return rows, counts

    def stats(self, terms: Iterable[str]) -> TextStats:
        """The statistics of these rows."""
        df = {term: len(self.docs[self._postings(term)]) for term in terms}
        return TextStats(self.num_docs, int(self.lengths.sum()), df)


def join_blocks(blocks: Sequence[TextBlock]) -> TextBlock:
    """Join blocks of the same token numbers into one, in their order."""
    offsets = np.cumsum([0, *(block.rows for block in blocks)])
    tokens = np.concatenate([block.tokens for block in blocks])
    docs = np.concatenate(
        [block.docs + offset for block, offset in zip(blocks, offsets, strict=False)]
    )
    order = np.argsort(tokens, kind="stable")
    return TextBlock(
        int(offsets[-1]),
        tokens[order],
        docs[order],
        np.concatenate([block.counts for block in blocks])[order],
        np.concatenate([block.lengths for block in blocks]),
        sum(block.num_docs for block in blocks),
        blocks[0].numbers,
    )


class Analyzer:
    """Turns text into tokens as one inverted index does. Safe to share between threads.

    If words do not depend on their neighbours (the simple and the whitespace tokenizer), each
    distinct word is tokenized once; every other tokenizer is called for each row.
    """

    def __init__(self, options: Mapping[str, Any], env: Env) -> None:
        self._options = dict(options)
        base = self._options.get("base_tokenizer") or "simple"
        rewrites = ("split_identifiers", "split_on_numerics", "index_operators")
        is_plain = not any(self._options.get(name) for name in rewrites)
        self._separators = _SEPARATORS.get(base) if is_plain else None
        self._lock = env.threads.lock()
        self._words: dict[str, tuple[str, ...]] = {}

    @property
    def is_word_by_word(self) -> bool:
        """True if each word of a text is one token or none, whatever its neighbours are."""
        return self._separators is not None

    def tokens(self, text: str) -> list[str]:
        """The tokens of one text, in order."""
        with lance_errors(f"tokenizing text with {self._options}"):
            return [token.text for token in lance.tokenize(text, **self._options)]

    def positions(self, text: str) -> list[tuple[str, int]]:
        """The tokens of one text with their positions; a dropped word leaves a gap."""
        with lance_errors(f"tokenizing text with {self._options}"):
            return [(t.text, t.position) for t in lance.tokenize(text, **self._options)]

    def terms(self, query: str) -> dict[str, str]:
        """Each distinct token of a query, with a text that yields only that token ("" if there is
        none)."""
        pieces = [query]
        if self._separators is not None:
            pieces = pc.split_pattern_regex(pa.array([query]), self._separators)[0].as_py()
        found: dict[str, str] = {}
        for piece in pieces:
            tokens = self.tokens(piece) if piece else []
            for token in tokens:
                alone = piece if len(tokens) == 1 else token
                is_alone = len(tokens) == 1 or self.tokens(alone) == [token]
                found[token] = alone if is_alone else found.get(token, "")
        return found

    def block(
        self, texts: pa.Array | pa.ChunkedArray, numbers: dict[str, int] | None = None
    ) -> TextBlock:
        """The postings of a column of text; `numbers` gets those of new tokens.

        The caller holds a lock if it shares `numbers`.
        """
        numbers = {} if numbers is None else numbers
        array = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
        if isinstance(array, pa.ChunkedArray):
            array = pa.concat_arrays(array.chunks)
        by = self._by_row if self._separators is None else self._by_word
        docs, tokens = by(array, numbers)
        rows = len(array)
        lengths = np.bincount(docs, minlength=rows).astype(np.int64)
        pairs, counts = np.unique(tokens * max(rows, 1) + docs, return_counts=True)
        return TextBlock(
            rows,
            pairs // max(rows, 1),
            pairs % max(rows, 1),
            counts.astype(np.int64),
            lengths,
            rows - array.null_count,
            numbers,
        )

    def _by_row(self, array: pa.Array, numbers: dict[str, int]) -> tuple[Ints, Ints]:
        docs: list[int] = []
        tokens: list[int] = []
        for row, text in enumerate(array.to_pylist()):
            for token in self.tokens(text) if text is not None else ():
                docs.append(row)
                tokens.append(numbers.setdefault(token, len(numbers)))
        return np.array(docs, np.int64), np.array(tokens, np.int64)

    def _by_word(self, array: pa.Array, numbers: dict[str, int]) -> tuple[Ints, Ints]:
        """Split words with Arrow and tokenize each distinct word once."""
        assert self._separators is not None, "an analyzer that splits words has separators"
        if len(array) == 0:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        pieces = pc.split_pattern_regex(array, self._separators)
        sizes = pc.fill_null(pc.list_value_length(pieces), 0).to_numpy(zero_copy_only=False)
        docs = np.repeat(np.arange(len(array)), sizes)
        words = pc.dictionary_encode(pc.list_flatten(pieces))
        known = self._known(words.dictionary.to_pylist())
        per_word = np.array([len(tokens) for tokens in known], np.int64)
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(per_word)])
        flat = np.array(
            [numbers.setdefault(token, len(numbers)) for tokens in known for token in tokens],
            np.int64,
        )
        at = words.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        times = per_word[at] if len(at) else np.zeros(0, np.int64)
        docs = np.repeat(docs, times)
        # The tokens of a word are adjacent in `flat`: the index of its first, plus an offset.
        first = np.repeat(starts[at], times) if len(at) else np.zeros(0, np.int64)
        into = np.arange(len(docs)) - np.repeat(np.cumsum(times) - times, times)
        return docs, flat[first + into]

    def _known(self, words: list[str]) -> list[tuple[str, ...]]:
        with self._lock:
            if len(self._words) > VOCABULARY_MAX:
                self._words.clear()
            found = {word: self._words[word] for word in words if word in self._words}
        missing = [word for word in words if word not in found]
        plain = [word for word in missing if word.isascii() and word.isalnum()]
        learnt = self._tokenize_plain(plain)
        for word in missing:
            if word not in learnt:
                learnt[word] = tuple(self.tokens(word)) if word else ()
        with self._lock:
            self._words.update(learnt)
        # Not from `_words`, which another thread may have cleared meanwhile.
        found |= learnt
        return [found[word] for word in words]

    def _tokenize_plain(self, words: list[str]) -> dict[str, tuple[str, ...]]:
        """Tokenize many words in one call, matched by position; each yields one token or none."""
        if not words:
            return {}
        text = " ".join((_SENTINEL, *words))
        with lance_errors(f"tokenizing text with {self._options}"):
            tokens = lance.tokenize(text, **self._options)
        learnt: dict[str, tuple[str, ...]] = dict.fromkeys(words, ())
        for token in tokens:
            if token.position > 0:
                learnt[words[token.position - 1]] = (token.text,)
        return learnt
