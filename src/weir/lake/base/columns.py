"""Columns of the base: added, dropped and renamed, each by one commit that rewrites no file.

Rows elsewhere, in SSTables and in the log, are matched by field id and mark (`weir.format.schema`),
so they read right under the new columns whenever they were written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from weir.errors import CommitConflict, InvalidInput
from weir.format.expiry import EXPIRE_AFTER
from weir.format.schema import COLUMN_MARK, FIELD_ID, TOMBSTONE, check_nesting
from weir.lake.base import adopt
from weir.lake.base.folded import LOADED, noted_columns
from weir.lake.base.repeating import repeated
from weir.lake.base.view import LanceBase
from weir.lake.datasets import Datasets
from weir.lake.lance_errors import lance_errors
from weir.lake.schemas import KEY_MARK, KEY_POSITION

Latest = Callable[[], LanceBase]
Check = Callable[[LanceBase], None]
"""Raises when the table, as that version has it, cannot do without what is to change."""

_OWN = (KEY_MARK, KEY_POSITION, FIELD_ID, COLUMN_MARK, EXPIRE_AFTER.encode())
"""Metadata that means something to weir or Lance: a field of another table may carry it."""


def add_columns(datasets: Datasets, latest: Latest, fields: Sequence[pa.Field]) -> None:
    """Add columns, null in every row. `InvalidInput` for those that a table cannot have.

    They carry their mark from the first version on: after a restore of any version with the
    column, rows that were written to it are its rows.
    """
    clean = [field.with_metadata(_kept(field)) for field in fields]

    def attempt() -> None:
        base = latest()
        check_new(base, clean)
        mark = str(base.version).encode()  # no column of this version has their field ids
        dataset = datasets.own(base.version)
        datasets.env.failpoint("columns.opened")
        with lance_errors(f"adding columns to {datasets.uri}"):
            dataset.add_columns(pa.schema([_marked(field, mark) for field in clean]))

    repeated(attempt, f"{datasets.uri}: adding columns")


def drop_columns(datasets: Datasets, latest: Latest, names: Sequence[str], check: Check) -> None:
    """Drop columns; their values are gone with the files, which the next rewrite replaces."""

    def attempt() -> None:
        base = latest()
        for name in names:
            require_column(base, name)
        if set(base.schema.plain.names) <= set(names):
            raise InvalidInput(f"{datasets.uri}: a table needs a column; drop the table instead")
        check(base)
        _require_noted(base, names)
        dataset = datasets.own(base.version)
        datasets.env.failpoint("columns.opened")
        with lance_errors(f"dropping columns of {datasets.uri}"):
            dataset.drop_columns(list(names))

    repeated(attempt, f"{datasets.uri}: dropping {list(names)}")


def rename_column(datasets: Datasets, latest: Latest, old: str, new: str, check: Check) -> None:
    """Give a column another name."""

    def attempt() -> None:
        base = latest()
        require_column(base, old)
        check(base)
        check_new(base, [base.schema.plain.field(old).with_name(new)])
        dataset = datasets.own(base.version)
        datasets.env.failpoint("columns.opened")
        change: Any = {"path": old, "name": new}
        with lance_errors(f"renaming column {old!r} of {datasets.uri}"):
            dataset.alter_columns(change)

    repeated(attempt, f"{datasets.uri}: renaming {old!r}")


def require_column(base: LanceBase, name: str) -> None:
    """Raise `InvalidInput`, naming what there is, for a column that the table does not have."""
    names = base.schema.plain.names
    if name not in names:
        raise InvalidInput(f"the table has no column {name!r}; it has {names}")


def check_new(base: LanceBase, fields: Sequence[pa.Field]) -> None:
    """Raise `InvalidInput` for columns that cannot be added to the table."""
    schema = base.schema
    taken = set(schema.plain.names)
    if not fields:
        raise InvalidInput("no column was given")
    for field in fields:
        name = field.name
        if name in taken:
            raise InvalidInput(f"the table has a column {name!r} already; choose another name")
        if not name.strip() or "." in name or name.startswith("_row") or name == TOMBSTONE:
            raise InvalidInput(
                f"{name!r} cannot be the name of a column: it must not be empty, contain a dot,"
                f" begin with _row or be {TOMBSTONE!r}"
            )
        if not field.nullable:
            raise InvalidInput(
                f"column {name!r} is declared not null, but rows that are there already have null"
                " in it; add it as nullable"
            )
        check_nesting(field)
        taken.add(name)
    key = [schema.plain.field(name) for name in schema.primary_key]
    adopt.check_columns(
        pa.schema([*key, *fields]),
        schema.primary_key,
        storage_version=base.dataset.data_storage_version,
    )


def _kept(field: pa.Field) -> dict[bytes, bytes] | None:
    metadata = field.metadata or {}
    return {key: value for key, value in metadata.items() if key not in _OWN} or None


def _marked(field: pa.Field, mark: bytes) -> pa.Field:
    metadata = dict(field.metadata or {})
    metadata[COLUMN_MARK] = mark  # guard: L-8 test_new_column_and_an_older_version
    return field.with_metadata(metadata)


def _require_noted(base: LanceBase, names: Sequence[str]) -> None:
    """L-7: the note of a fold whose generations are not marked yet must stay in some column."""
    noted = noted_columns(base.dataset)
    # guard: L-7 test_table_columns
    if noted and set(noted) <= set(names) and dict(base.marked) != dict(base.compacted):
        raise CommitConflict(
            f"{base.dataset.uri}: a compaction is about to finish, and these columns hold the note"
            " of what it folded; try again, or compact first"
        )
    loaded = noted_columns(base.dataset, LOADED)
    if loaded and set(loaded) <= set(names):  # guard: P-3 test_table_columns
        raise InvalidInput(
            f"{base.dataset.uri}: the columns {loaded} say that the table was loaded past its log,"
            " which change feeds must know; drop fewer of them, and the others after the next load"
        )
