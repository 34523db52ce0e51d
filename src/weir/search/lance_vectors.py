"""Nearest vectors from Lance: from the base or one SSTable, best first, as many as requested.

A source returns its best n rows, and a `bound` on the values of all others. The merge of sources
stops fetching when no bound can beat the rows found. Smaller values are better: they are distances,
or negated scores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from weir.lake.filters import lance_scanner
from weir.lake.lance_errors import lance_errors
from weir.lake.shared import SharedDataset
from weir.search.arrays import Floats, Ints, Matrix

ROW_ID: Final = "_rowid"
PROBES: Final = 20
REFINE: Final = 10
"""How an approximate index is searched unless the options say otherwise: partitions, as in LanceDB,
and candidates per requested row whose distances are computed from the vectors themselves."""
GROWTH: Final = 4
EXACT_BYTES: Final = 16 << 20
"""Up to this size, vectors are compared one by one: no index is faster (docs/guides/search.md)."""


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

    @staticmethod
    def of(
        rows: pa.Table, handles: Ints, values: Floats, bound: float, *, exhausted: bool
    ) -> Candidates:
        """Rows of a source, in an order that does not depend on how many were asked for.

        Rows of equal value are in the order of their handles. Which of the rows at the bound Lance
        returns depends on the limit, so these are left to a request for more rows.
        """
        order = np.lexsort((handles, values))
        if not exhausted:
            order = order[values[order] < bound]
        return Candidates(
            rows.take(order),
            handles[order],
            values[order],
            math.inf if exhausted else bound,
            exhausted,
        )

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
    probes: int = PROBES
    refine: int | None = None
    """None: the distances of the index are those of the vectors."""
    exact: bool = False
    """True: compare every vector instead of using an approximate index."""


def take_rows(dataset: SharedDataset, handles: Ints, columns: Sequence[str]) -> pa.Table:
    """The columns of rows by row id, in the order of `handles`."""
    with lance_errors(f"reading rows found in {dataset.uri}"):
        return dataset._take_rows(pa.array(handles.astype(np.uint64)), columns=list(columns))  # noqa: SLF001


class LanceVectors:
    """Vectors of a Lance dataset, found through its index, or one by one without an index."""

    def __init__(
        self,
        dataset: SharedDataset,
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
        nearest: dict[str, Any] = {
            "column": query.column,
            "q": pa.array(query.vector),  # Lance would round one of numpy's to float32
            "k": count,
            "metric": query.metric,
            "use_index": not query.exact,
            "refine_factor": query.refine,
        }
        if not query.exact:
            # A minimum: if a filter leaves too few rows, Lance searches further partitions.
            nearest["minimum_nprobes"] = query.probes
        with lance_errors(f"searching {query.column!r} in {self._dataset.uri}"):
            found = lance_scanner(
                self._dataset,
                self._filter,
                [*self._names, "_distance"],
                disable_scoring_autoprojection=True,
                nearest=nearest,
                prefilter=True,
                with_row_id=True,
            ).to_table()
        values = found.column("_distance").to_numpy().astype(np.float64)
        (finite,) = np.nonzero(np.isfinite(values))
        values = values[finite]
        return Candidates.of(
            found.select(self._names).take(finite),
            found.column(ROW_ID).to_numpy()[finite].astype(np.int64),
            values,
            float(values.max()) if len(values) else math.inf,
            exhausted=found.num_rows < count,
        )
