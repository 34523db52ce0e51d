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
from weir.format.schema import no_rows
from weir.search.lance_vectors import GROWTH
from weir.search.options import SearchOptions, queries_of
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
    ranking: int
    source: int
    handle: int


def fused(
    plan: Plan,
    queries: Mapping[str, Any],
    k: int,
    target: pa.Schema,
    fusion: Fusion,
    options: SearchOptions,
) -> pa.Table:
    """The `k` best rows of all rankings together; see `Table.hybrid_search`."""
    require_whole("k", k, 1)
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
    options.check_for(plan.schema, list(queries))
    count = k + options.offset
    depth = fusion.depth or max(DEPTH_MIN, 4 * k)
    order: dict[Any, _Fused] = {}
    while True:
        rankings, rows, is_all = _fused(plan, queries, depth, fusion, options)
        # Equal scores stay in the order of the first ranking that has the row.
        following = [key for key in rows if key not in order]
        order |= {key: rows[key] for key in sorted(following, key=lambda key: -rows[key].score)}
        if len(order) >= count or is_all or fusion.depth is not None:
            break
        depth *= GROWTH
    page = list(order.values())[options.offset : count]
    scores = pa.array([row.score for row in page], pa.float32())
    return _payload(rankings, page, target).append_column(pa.field(RELEVANCE, pa.float32()), scores)


def _fused(
    plan: Plan, queries: Mapping[str, Any], depth: int, fusion: Fusion, options: SearchOptions
) -> tuple[list[list[Ranked]], dict[Any, _Fused], bool]:
    """The rankings, the rows among the first `depth` of any by key, and whether these are all."""
    rankings: list[list[Ranked]] = []
    rows: dict[Any, _Fused] = {}
    is_all = True
    for column, query in queries.items():
        (one, *_), _ = queries_of(plan.schema, column, query)
        ranked, best = plan.best(column, one, Window(depth), options)
        _add(rows, plan, ranked, best, len(rankings), fusion, fusion.weight(column))
        rankings.append(ranked)
        is_all = is_all and len(best.values) < depth
    return rankings, rows, is_all


def _add(
    rows: dict[Any, _Fused],
    plan: Plan,
    ranked: list[Ranked],
    best: Best,
    ranking: int,
    fusion: Fusion,
    weight: float,
) -> None:
    key = plan.schema.primary_key
    names = pa.schema([plan.schema.plain.field(name) for name in key])
    keys = pk_values(rows_of(ranked, best, names), key).to_pylist()
    for rank, value in enumerate(keys):
        at = _Fused(0.0, ranking, int(best.sources[rank]), int(best.handles[rank]))
        rows.setdefault(value, at).score += weight / (fusion.rank_constant + rank + 1)


def _payload(rankings: list[list[Ranked]], order: list[_Fused], target: pa.Schema) -> pa.Table:
    parts, places = [], []
    for ranking, ranked in enumerate(rankings):
        at = [place for place, row in enumerate(order) if row.ranking == ranking]
        best = Best(
            Window(len(at)),
            np.zeros(len(at)),
            np.array([order[place].source for place in at], np.int64),
            np.array([order[place].handle for place in at], np.int64),
        )
        if at and target.names:
            parts.append(rows_of(ranked, best, target))
            places.append(at)
    if not parts:
        return no_rows(target)
    return pa.concat_tables(parts).take(pa.array(np.argsort(np.concatenate(places))))
