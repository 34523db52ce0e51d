"""The arguments of a search: what is asked beside the query, and the queries themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from weir.errors import InvalidInput
from weir.format.expiry import Alive
from weir.format.schema import TableSchema
from weir.lake.index import is_text_type, is_vector_type
from weir.search.arrays import Matrix
from weir.search.ranking import Window
from weir.search.vector import METRICS, query_vectors
from weir.search.words import Boolean, Match, Phrase, Words
from weir.types import Filter, require_names, require_whole

DISTANCE: Final = "_distance"
SCORE: Final = "_score"


@dataclass(frozen=True)
class SearchOptions:
    """Which rows to rank, by which metric, how thoroughly, and which part of the ranking to return,
    with which columns."""

    k: int = 10
    """Number of rows to return."""
    filter: Filter | None = None
    columns: Sequence[str] | None = None
    metric: str | None = None
    """Distance: "l2", "cosine" or "dot"; None: the metric of the column's index, or l2."""
    nprobes: int | None = None
    """Minimum number of partitions of an approximate index to search; None: 20."""
    refine_factor: int | None = None
    """Candidates per requested row whose exact distance is computed; None: 10."""
    exact: bool = False
    """Compare every vector instead of using an approximate index."""
    offset: int = 0
    """Number of best rows to skip."""
    distance_range: tuple[float | None, float | None] | None = None
    """Distances from the first up to, but not including, the second; None: no bound."""

    def __post_init__(self) -> None:
        require_whole("k", self.k, 1)
        require_names(self.columns)
        if self.metric is not None and self.metric not in METRICS:
            raise InvalidInput(f"metric must be one of {list(METRICS)}, got {self.metric!r}")
        for name in ("nprobes", "refine_factor"):
            value = getattr(self, name)
            if value is not None:
                require_whole(name, value, 1)
        require_whole("offset", self.offset, 0)
        if self.distance_range is not None:
            _check_range(self.distance_range)

    def check_for(self, schema: TableSchema, columns: Sequence[str], *added: str) -> None:
        """Raise `InvalidInput` for an option about vectors if none of `columns` holds any, and if
        the table has a column of a name that the search adds: `added`, or what Lance ranks by."""
        types = [schema.plain.field(column).type for column in columns]
        ranked_by = [DISTANCE if is_vector_type(dtype) else SCORE for dtype in types]
        for name in (*ranked_by, *added):
            if name in schema.plain.names:
                raise InvalidInput(
                    f"the table has a column {name!r}, and this search adds one of that name;"
                    f" rename it, as in table.rename_column({name!r}, 'x')"
                )
        if DISTANCE in ranked_by:
            return
        for option in ("metric", "nprobes", "refine_factor", "exact", "distance_range"):
            value = getattr(self, option)
            if value is not None and value is not False:
                raise InvalidInput(
                    f"{option} is about distances of vectors, and {', '.join(map(repr, columns))}"
                    " holds text, which is ranked by words; leave it out"
                )

    def of_living(self, alive: Alive | None) -> SearchOptions:
        """The same search among the rows that have not expired."""
        return self if alive is None else replace(self, filter=alive.also(self.filter))

    def window(self, count: int) -> Window:
        """The best `count` rows at those distances."""
        lower, upper = self.distance_range or (None, None)
        return Window(
            count,
            -math.inf if lower is None else lower,
            math.inf if upper is None else upper,
        )


def queries_of(
    schema: TableSchema, column: str, query: Any
) -> tuple[Sequence[Matrix | Words], bool]:
    """The queries, and whether they are a batch; `InvalidInput` if one does not fit the column."""
    if column not in schema.plain.names:
        raise InvalidInput(f"the table has no column {column!r}; it has {schema.plain.names}")
    dtype = schema.plain.field(column).type
    if is_vector_type(dtype):
        return query_vectors(query, dtype, column)
    if not is_text_type(dtype):
        raise InvalidInput(
            f"column {column!r} is {dtype}; a search needs text, or a fixed-size list of floats"
        )
    if isinstance(query, str | Match | Phrase | Boolean):
        return [query], False
    several = list(query) if isinstance(query, list | tuple) else []
    if not several or not all(isinstance(one, str | Match | Phrase | Boolean) for one in several):
        raise InvalidInput(
            f"a search in text column {column!r} takes words, a weir.Match, Phrase or Boolean, or a"
            f" list of these, got {query!r}"
        )
    return several, True


def _check_range(given: Any) -> None:
    is_pair = isinstance(given, tuple | list) and len(given) == 2
    if not is_pair or not all(
        bound is None or (isinstance(bound, int | float) and not math.isnan(bound))
        for bound in given
    ):
        raise InvalidInput(
            "distance_range must be a pair of a lower and an upper bound, None for no bound, got"
            f" {given!r}"
        )
