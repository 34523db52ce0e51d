"""Columns of the base: added, dropped and renamed, each by one commit that rewrites no file.

Rows elsewhere, in SSTables and in the log, are matched by field id and mark (`weir.format.schema`),
so they read right under the new columns whenever they were written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lance
import pyarrow as pa

from weir.errors import CommitConflict, InvalidInput
from weir.format.expiry import EXPIRE_AFTER, Alive, Expire, check_expire, expire_of
from weir.format.schema import (
    COLUMN_MARK,
    FIELD_ID,
    TOMBSTONE,
    TableSchema,
    check_nesting,
)
from weir.lake.api import Base, Check, Lake
from weir.lake.base import adopt
from weir.lake.base.folded import LOADED, noted_columns
from weir.lake.base.repeating import repeated
from weir.lake.datasets import Datasets
from weir.lake.lance_errors import lance_errors
from weir.lake.schemas import KEY_MARK, KEY_POSITION

_OWN = (KEY_MARK, KEY_POSITION, FIELD_ID, COLUMN_MARK, EXPIRE_AFTER.encode())
"""Metadata that means something to weir or Lance: a field of another table may carry it."""


class Columns(Lake):
    """The verbs of `Lake` for columns."""

    datasets: Datasets

    def schema_for_writing(self) -> TableSchema:
        """See `Lake`."""

        def attempt() -> TableSchema:
            base = self.open_base()
            if not base.schema.unmarked:
                return base.schema
            _check_added(base)
            # A separate handle: the commit moves it to another version.
            adopt.mark_columns(self.datasets.changing(base.version))
            marked = self.open_base().schema
            if marked.unmarked:
                raise CommitConflict(f"{self.uri}: its columns changed again")
            return marked

        return repeated(self.datasets.env, attempt, f"{self.uri}: marking its columns")

    def add_columns(self, fields: Sequence[pa.Field]) -> None:
        """They carry their mark from the first version on: after a restore of any version with the
        column, rows that were written to it are its rows.
        """
        clean = [field.with_metadata(_kept(field)) for field in fields]

        def attempt() -> None:
            base = self.open_base()
            check_new(base, clean)
            mark = str(base.version).encode()  # no column of this version has their field ids
            dataset = self.datasets.changing(base.version)
            self.datasets.env.failpoint("columns.opened")
            with lance_errors(f"adding columns to {self.uri}"):
                dataset.add_columns(pa.schema([_marked(field, mark) for field in clean]))

        repeated(self.datasets.env, attempt, f"{self.uri}: adding columns")

    def drop_columns(self, names: Sequence[str], check: Check) -> None:
        """See `Lake`."""

        def attempt() -> None:
            base = self.open_base()
            for name in names:
                require_column(base, name)
            if set(base.schema.plain.names) <= set(names):
                raise InvalidInput(f"{self.uri}: a table needs a column; drop the table instead")
            check(base)
            _require_noted(base, names)
            dataset = self.datasets.changing(base.version)
            self.datasets.env.failpoint("columns.opened")
            with lance_errors(f"dropping columns of {self.uri}"):
                dataset.drop_columns(list(names))

        repeated(self.datasets.env, attempt, f"{self.uri}: dropping {list(names)}")

    def rename_column(self, old: str, new: str, check: Check) -> None:
        """See `Lake`."""

        def attempt() -> None:
            base = self.open_base()
            require_column(base, old)
            check(base)
            check_new(base, [base.schema.plain.field(old).with_name(new)])
            dataset = self.datasets.changing(base.version)
            self.datasets.env.failpoint("columns.opened")
            change: Any = {"path": old, "name": new}
            with lance_errors(f"renaming column {old!r} of {self.uri}"):
                dataset.alter_columns(change)

        repeated(self.datasets.env, attempt, f"{self.uri}: renaming {old!r}")

    def set_expire(self, expire: Expire | None) -> int:
        """See `Lake`."""

        def attempt() -> int:
            base = self.open_base()
            check_expire(expire, base.schema.plain)
            dataset = self.datasets.changing(base.version)
            _set_expire(dataset, expire)
            return dataset.version

        return repeated(self.datasets.env, attempt, f"{self.uri}: setting when rows expire")

    def drop_expired(self, version: int, alive: Alive) -> int:
        """The base is the oldest level, so deleting a row from it brings no older row back. A newer
        row of the same key, in an SSTable or a log, is judged on its own (L-11).
        """
        dataset = self.datasets.changing(version)
        with lance_errors(f"dropping expired rows of {dataset.uri}"):
            expired = dataset.count_rows(alive.expired_sql())
            if expired:
                dataset.delete(alive.expired_sql())
            return int(expired)


def _check_added(base: Base) -> None:
    """Raise `InvalidInput` for a new column whose rows could not be flushed (F-15). A table without
    any mark was checked as a whole, by `enable`."""
    schema = base.schema
    if len(schema.unmarked) == len(schema.arrow):
        return
    tried = (*schema.primary_key, *schema.unmarked)
    adopt.check_columns(
        pa.schema([field for field in schema.plain if field.name in tried]),
        schema.primary_key,
        storage_version=base.dataset.data_storage_version,
    )


def _set_expire(dataset: lance.LanceDataset, expire: Expire | None) -> None:
    """Set the rule from the next version on, in one commit; no commit if it is set already.

    `CommitConflict` when another process changed the columns since the dataset's version.
    """
    standing = expire_of(dataset.schema, dataset.uri)
    if standing == expire:
        return
    changes: dict[str, dict[str, str | None]] = {}
    if standing is not None:
        changes[standing.column] = {EXPIRE_AFTER: None}
    if expire is not None:
        changes[expire.column] = {**expire.to_metadata()}
    with lance_errors(f"changing when rows of {dataset.uri} expire"):
        dataset.update_field_metadata(changes)


def require_column(base: Base, name: str) -> None:
    """Raise `InvalidInput`, naming what there is, for a column that the table does not have."""
    names = base.schema.plain.names
    if name not in names:
        raise InvalidInput(f"the table has no column {name!r}; it has {names}")


def check_new(base: Base, fields: Sequence[pa.Field]) -> None:
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


def _require_noted(base: Base, names: Sequence[str]) -> None:
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
