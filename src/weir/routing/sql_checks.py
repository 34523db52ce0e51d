"""Checks the SQL of a call before any shard is claimed for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import pyarrow as pa

from weir.format.schema import TableSchema, no_rows
from weir.lake.expressions import filter_mask, new_values, when_mask
from weir.lake.params import require_filter
from weir.shard.actions import check_assignments
from weir.types import Filter

KNOWN_MAX: Final = 256
"""Texts remembered as valid; checking one takes a millisecond or two."""


class SqlChecks:
    """Raises `InvalidInput` for SQL that no row of the table could be decided with."""

    def __init__(self, schema: TableSchema) -> None:
        self._schema = schema
        self._none = no_rows(schema.arrow)
        self._known: set[tuple[str, ...]] = set()

    def check_condition(self, when: Filter) -> None:
        """For `put` with `when`."""
        absent, names = pa.array([], pa.bool_()), self._schema.arrow.names
        self._check(("when", when), lambda: when_mask(when, self._none, self._none, absent, names))

    def check_filter(self, filter: Filter) -> None:
        """For `delete_where` and `update_where`."""
        require_filter(filter, "the filter")
        self._check(("filter", filter), lambda: filter_mask(filter, self._none))

    def check_assignments(self, assignments: Mapping[str, str]) -> None:
        """For `update_where`."""
        check_assignments(tuple(assignments.items()), self._schema)
        for column, text in assignments.items():
            self._check(("set", column, text), partial(new_values, {column: text}, self._none))

    def _check(self, asked: tuple[Filter, ...], evaluate: Callable[[], object]) -> None:
        text = tuple(part for part in asked if isinstance(part, str))
        if len(text) == len(asked) and text in self._known:
            return
        evaluate()
        if len(text) < len(asked):
            return  # pyarrow's expressions cannot be compared
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known.add(text)
