"""Nearest vectors from Lance: from the base or one SSTable, best first, as many as requested.

A source returns its best n rows, and a `bound` on the values of all others. The merge of sources
stops fetching when no bound can beat the rows found. Smaller values are better: they are distances,
or negated scores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.lake.lance_errors import lance_errors
from weir.search.vector import Matrix

ROW_ID: Final = "_rowid"
PROBES: Final = 20
REFINE: Final = 10
"""The first attempt on an approximate index: partitions to search, and candidates per requested row
whose distances are computed from the vectors themselves."""
GROWTH: Final = 4
EXACT_BYTES: Final = 16 << 20
"""Up to this size, vectors are compared one by one: no index is faster (docs/guides/search.md)."""
TAKEN_BYTES: Final = 12 << 10
"""Fetching a single vector costs as much as comparing this many bytes of adjacent vectors."""
_UNCHANGED: Final = 0.95

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Candidates:
    """Rows that a source offers, best first."""

    rows: pa.Table
    """The key columns, and the other columns requested."""
    handles: Ints
    """The ids of the rows for `take`."""
    values: Floats
    bound: float
    """No row outside these candidates has a smaller value."""
    exhausted: bool
    """True if the source has no other rows."""

    def taken(self, handles: Ints, columns: Sequence[str]) -> pa.Table | None:
        """Columns of rows that were offered, if they were fetched with them; else None."""
        if not set(columns) <= set(self.rows.column_names):
            return None
        order = np.argsort(self.handles, kind="stable")
        at = np.searchsorted(self.handles, handles, sorter=order)
        if len(handles) and (at >= len(order)).any():
            return None
        at = order[at] if len(handles) else at
        if not np.array_equal(self.handles[at], handles):
            return None
        return self.rows.select(list(columns)).take(pa.array(at))


@dataclass(frozen=True)
class VectorQuery:
    """A search by vector."""

    column: str
    vector: Matrix
    metric: str
    probes: int | None = None
    refine: int | None = None
    """None for either: as thorough as this index is found to need."""
    exact: bool = False
    """True: compare every vector instead of using an approximate index."""


@dataclass
class Effort:
    """How thoroughly one index must be searched, learnt by the first search that uses it.

    That search tries four times as many partitions and candidates until the answer stays the same.
    If that would cost more than comparing every vector, the index is not used. Searches share this
    object; two that learn concurrently learn the same.
    """

    row_bytes: int
    rows: int
    step: int | None = field(default=None)
    """`PROBES` and `REFINE` are multiplied by 4 to this power. None: not learnt yet; below 0: every
    vector is compared."""

    def is_worth(self, step: int, count: int) -> bool:
        """Whether the candidates of that step cost less than comparing all vectors."""
        taken: int = count * REFINE * GROWTH**step
        return taken * TAKEN_BYTES < self.rows * self.row_bytes


def take_rows(dataset: lance.LanceDataset, handles: Ints, columns: Sequence[str]) -> pa.Table:
    """The columns of rows by row id, in the order of `handles`."""
    with lance_errors(f"reading rows found in {dataset.uri}"):
        return dataset._take_rows(pa.array(handles.astype(np.uint64)), columns=list(columns))  # noqa: SLF001


class LanceVectors:
    """Vectors of a Lance dataset, found through its index, or one by one without an index."""

    def __init__(
        self,
        dataset: lance.LanceDataset,
        query: VectorQuery,
        names: Sequence[str],
        *,
        filter: Any = None,
        effort: Effort | None = None,
    ) -> None:
        self._dataset = dataset
        self._query = query
        self._names = list(names)
        self._filter = filter
        self._effort = effort
        self._offered: Candidates | None = None

    def fetch(self, count: int) -> Candidates:
        """The nearest `count` rows."""
        effort = self._effort
        if effort is None:
            found = self._run(count, self._query.probes or PROBES, self._query.refine)
        elif effort.step is not None:
            found = self._at(effort.step, count)
        else:
            found = self._learn(effort, count)
        self._offered = found
        return found

    def _learn(self, effort: Effort, count: int) -> Candidates:
        found = self._at(0, count)
        step = 0
        while effort.is_worth(step + 1, count):
            more = self._at(step + 1, count)
            wanted = len(more.handles)
            if len(np.intersect1d(found.handles, more.handles)) >= _UNCHANGED * wanted:
                effort.step = step
                return more
            found, step = more, step + 1
        effort.step = -1
        return self._at(-1, count)

    def _at(self, step: int, count: int) -> Candidates:
        if step < 0:
            return self._run(count, None, None)
        refine = self._query.refine and self._query.refine * GROWTH**step
        return self._run(count, PROBES * GROWTH**step, refine)

    def _run(self, count: int, probes: int | None, refine: int | None) -> Candidates:
        """Run the search; with `probes` None, every vector is compared."""
        query = self._query
        nearest: dict[str, Any] = {
            "column": query.column,
            "q": query.vector,
            "k": count,
            "metric": query.metric,
            "use_index": probes is not None and not query.exact,
            "refine_factor": refine,
        }
        if probes is not None:
            # A minimum: if a filter leaves too few rows, Lance searches further partitions.
            nearest["minimum_nprobes"] = probes
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

    def take(self, handles: Ints, columns: Sequence[str]) -> pa.Table:
        """Columns of rows offered before."""
        known = None if self._offered is None else self._offered.taken(handles, columns)
        return take_rows(self._dataset, handles, columns) if known is None else known
