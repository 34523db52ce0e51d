"""Several rankings of the same rows fused into one, for example by vector and by words.

Reciprocal rank fusion: a row gets `weight / (rank_constant + rank)` from each ranking it is in,
with ranks starting at 1, and the sum decides. Distances and scores are not comparable, ranks are.

The place of a row does not depend on the page that is asked for: `depth` rows of each ranking are
fused and come first. Where they do not suffice, the rows among the first four times `depth` follow,
fused among themselves, and so on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from weir.errors import InvalidInput
from weir.format.keys import pk_values
from weir.search.lance_vectors import GROWTH
from weir.search.options import queries_of
from weir.search.plan import Plan
from weir.search.ranking import Best, Ranked, Window, rows_of
from weir.types import require_whole

RELEVANCE: Final = "_relevance_score"
RANK_CONSTANT: Final = 60
DEPTH_MIN: Final = 100


@dataclass(frozen=True)
class Fusion:
    """How rankings are fused."""

    weights: Mapping[str, float] | None = None
    """The weight of each ranking, by column; 1.0 if not given."""
    rank_constant: int = RANK_CONSTANT
    """The higher it is, the smaller the advantage of the first ranks."""
    depth: int | None = None
    """Rows used of each ranking; None: four times `k`, at least 100, and more for later pages."""

    def __post_init__(self) -> None:
        for name, least in (("rank_constant", 0), ("depth", 1)):
            value = getattr(self, name)
            if value is not None:
                require_whole(name, value, least)

    def weight(self, column: str) -> float:
        """The weight of the ranking of that column."""
        return 1.0 if self.weights is None else float(self.weights.get(column, 1.0))

    def check(self, columns: Sequence[str]) -> None:
        """Raise `InvalidInput` for a negative weight, or a weight of a column not searched."""
        for column, weight in (self.weights or {}).items():
            if column not in columns:
                raise InvalidInput(f"weights name {column!r}, which is not among {list(columns)}")
            given: object = weight
            if type(given) not in (int, float) or not weight >= 0:
                raise InvalidInput(f"the weight of {column!r} must be zero or more, got {weight!r}")


@dataclass
class _Fused:
    """One row: its score so far, and where to read its columns."""

    score: float
    source: int
    handle: int


def fused(
    plan: Plan,
    queries: Mapping[str, Any],
    fusion: Fusion,
) -> pa.Table:
    """The `k` best rows of all rankings together; see `Table.hybrid_search`."""
    given: object = queries
    if not isinstance(given, Mapping) or len(given) < 2:
        raise InvalidInput(
            "a hybrid search takes a dict of two columns or more, each with its query, as in"
            " {'embedding': vector, 'text': 'words'}; for one column use search"
        )
    if not plan.schema.primary_key:
        raise InvalidInput(
            "a hybrid search needs a primary key, and this table is append-only; search its columns"
            " one by one"
        )
    fusion.check(list(queries))
    for column, query in queries.items():
        if queries_of(plan.schema, column, query)[1]:
            raise InvalidInput(f"a hybrid search takes one query for {column!r}, not a list")
    options = plan.options
    options.check_for(plan.schema, list(queries), RELEVANCE)
    count = options.k + options.offset
    depth = fusion.depth or max(DEPTH_MIN, 4 * options.k)
    order: dict[Any, _Fused] = {}
    while True:
        sources, rows, is_all = _fused(plan, queries, depth, fusion)
        # Equal scores stay in the order of the first ranking that has the row.
        following = [key for key in rows if key not in order]
        order |= {key: rows[key] for key in sorted(following, key=lambda key: -rows[key].score)}
        if len(order) >= count or is_all or fusion.depth is not None:
            break
        depth *= GROWTH
    page = list(order.values())[options.offset : count]
    scores = np.array([row.score for row in page], np.float64)
    numbers = np.array([row.source for row in page], np.int64)
    handles = np.array([row.handle for row in page], np.int64)
    found = rows_of(sources, Best(Window(len(page)), scores, numbers, handles), plan.target)
    return found.append_column(
        pa.field(RELEVANCE, pa.float32()), pa.array(scores.astype(np.float32))
    )


def _fused(
    plan: Plan, queries: Mapping[str, Any], depth: int, fusion: Fusion
) -> tuple[list[Ranked], dict[Any, _Fused], bool]:
    """The sources of all rankings, the rows among the first `depth` of any by key, and whether
    these are all."""
    sources: list[Ranked] = []
    rows: dict[Any, _Fused] = {}
    is_all = True
    key = plan.schema.primary_key
    names = pa.schema([plan.schema.plain.field(name) for name in key])
    for column, query in queries.items():
        (one,) = plan.compiled(column, queries_of(plan.schema, column, query)[0])
        ranked = plan.ranked(column, one)
        best = plan.best(ranked, depth)
        keys = pk_values(rows_of(ranked, best, names), key).to_pylist()
        for rank, value in enumerate(keys):
            at = _Fused(0.0, len(sources) + int(best.sources[rank]), int(best.handles[rank]))
            share = fusion.weight(column) / (fusion.rank_constant + rank + 1)
            rows.setdefault(value, at).score += share
        sources += ranked
        is_all = is_all and len(best.values) < depth
    return sources, rows, is_all
