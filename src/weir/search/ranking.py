"""One ranking of the best rows over all levels, newest versions only.

Keeps
  L-2  a candidate whose key is in a newer level, deleted or not, is dropped
  L-3  each level filters its own rows before it offers them; keys mask regardless of the filter
Each level is asked for a few more rows than are wanted, then for four times as many, until enough
survive and no row not offered yet could be better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.env import Env
from weir.format.keys import pk_values
from weir.format.schema import TOMBSTONE, no_rows
from weir.merge.levels import Level, shaped
from weir.search.arrays import Floats, Ints, Mask
from weir.search.lance_vectors import GROWTH, Candidates

SLACK_ROWS: Final = 10
LEVELS_AT_ONCE: Final = 8


Fetch = Callable[[int], Candidates]
"""Gives the best rows of a source, as many as asked for."""
Take = Callable[[Ints, Sequence[str]], pa.Table]
"""Gives columns of rows that the source offered, in the order of their handles."""


@dataclass
class Ranked:
    """A source of candidates: its best rows, the levels that are newer, and which may count."""

    best: Fetch
    rows: Take
    newer: Sequence[Level]
    belongs: Callable[[pa.RecordBatch], pa.Array] | None = None
    is_approximate: bool = False
    """True when more rows than were asked for may have better ones among them."""
    _offered: Candidates | None = None

    def fetch(self, count: int) -> Candidates:
        """The best `count` rows of the source."""
        self._offered = self.best(count)
        return self._offered

    def take(self, handles: Ints, columns: Sequence[str]) -> pa.Table:
        """Columns of rows it offered: those fetched with them, or read now."""
        known = None if self._offered is None else self._offered.taken(handles, columns)
        return self.rows(handles, columns) if known is None else known


@dataclass(frozen=True)
class Window:
    """The part of the ranking wanted: the best `count` rows whose value is at least `lower` and
    below `upper`."""

    count: int
    lower: float = -math.inf
    upper: float = math.inf


@dataclass(frozen=True)
class Best:
    """The best rows so far: values ascending, each with its source and handle."""

    window: Window
    values: Floats
    sources: Ints
    handles: Ints

    @property
    def worst(self) -> float:
        """The value a row must be below to be added; the window's `upper` while there is room."""
        full = len(self.values) >= self.window.count
        return min(float(self.values[-1]), self.window.upper) if full else self.window.upper

    def with_rows(self, source: int, values: Floats, handles: Ints) -> Best:
        """The best of these rows and those of another source."""
        joined = np.concatenate([self.values, values])
        order = np.argsort(joined, kind="stable")[: self.window.count]
        numbers = np.full(len(values), source, np.int64)
        return Best(
            self.window,
            joined[order],
            np.concatenate([self.sources, numbers])[order],
            np.concatenate([self.handles, handles])[order],
        )

    def followed_by(self, other: Best) -> Best:
        """These rows, then those of `other` that are not among them."""
        known = set(zip(self.sources.tolist(), self.handles.tolist(), strict=True))
        pairs = zip(other.sources.tolist(), other.handles.tolist(), strict=True)
        added = other.part(np.array([pair not in known for pair in pairs], np.bool_))
        return Best(
            other.window,
            np.concatenate([self.values, added.values]),
            np.concatenate([self.sources, added.sources]),
            np.concatenate([self.handles, added.handles]),
        )

    def part(self, at: Ints | Mask | slice) -> Best:
        """A part of these rows."""
        return Best(self.window, self.values[at], self.sources[at], self.handles[at])


def best_of(ranked: Sequence[Ranked], window: Window, key: Sequence[str], env: Env) -> Best:
    """The best rows of all sources, best first."""
    nothing = np.zeros(0, np.int64)
    best = Best(window, np.zeros(0), nothing, nothing)
    # Concurrently: on an object store each source waits for its own requests.
    first = env.threads.map(
        lambda one: one.fetch(window.count + SLACK_ROWS),
        list(ranked),
        workers=LEVELS_AT_ONCE,
    )
    for number, (one, offered) in enumerate(zip(ranked, first, strict=True)):
        best = _merged(best, number, one, offered, key)
    return best


def _merged(best: Best, number: int, one: Ranked, offered: Candidates, key: Sequence[str]) -> Best:
    count = best.window.count + SLACK_ROWS
    while True:
        better = (offered.values < best.worst) & (offered.values >= best.window.lower)
        alive = _alive(offered.rows.filter(pa.array(better)), one, key)
        at = np.flatnonzero(better)[alive]
        merged = best.with_rows(number, offered.values[at], offered.handles[at])
        if offered.exhausted or merged.worst <= offered.bound:  # guard: L-1 always
            return merged
        count *= GROWTH
        offered = one.fetch(count)


def _alive(rows: pa.Table, one: Ranked, key: Sequence[str]) -> Mask:
    """True for each row that belongs, is not deleted, and is the newest of its key."""
    alive = np.ones(rows.num_rows, np.bool_)
    if rows.num_rows == 0:
        return alive
    if TOMBSTONE in rows.column_names:
        alive &= ~rows.column(TOMBSTONE).to_numpy()
    if one.belongs is not None:
        batch = rows.combine_chunks().to_batches()[0]
        alive &= one.belongs(batch).to_numpy(zero_copy_only=False)
    if not key:
        return alive
    for level in one.newer:
        at = np.flatnonzero(alive)
        if len(at) == 0:
            break
        asked = rows.take(at).select(list(key))
        found = level.lookup(asked, list(key))
        if found.num_rows:
            gone = pc.is_in(pk_values(asked, key), value_set=pk_values(found, key))
            alive[at[gone.to_numpy(zero_copy_only=False)]] = False
    return alive


def rows_of(ranked: Sequence[Ranked], best: Best, target: pa.Schema) -> pa.Table:
    """The columns of `target` of the best rows, in their order."""
    parts: list[pa.Table] = []
    places: list[Ints] = []
    for number, one in enumerate(ranked):
        (at,) = np.nonzero(best.sources == number)
        if len(at):
            rows: Any = one.take(best.handles[at], target.names)
            parts.append(shaped(rows, target))
            places.append(at)
    if not parts:
        return no_rows(target)
    if len(parts) == 1:
        return parts[0]
    joined = pa.concat_tables(parts)
    return joined.take(np.argsort(np.concatenate(places), kind="stable"))
