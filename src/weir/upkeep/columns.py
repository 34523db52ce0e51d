"""Columns of a table: added, dropped and renamed while writers run.

An open writer keeps the columns it was opened with, and goes on putting and deleting; where it
would have to look at rows whose columns it does not know, it says so (`CommitConflict`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import pyarrow as pa

from weir.errors import InvalidInput, WeirError
from weir.format.schema import TableSchema, no_rows
from weir.format.sharding import Bucket, Identity, Sharding
from weir.lake.api import Base, Lake
from weir.lake.base.columns import check_new
from weir.lake.expressions import new_values, require_name
from weir.lake.literals import quoted
from weir.records.resharding import read_resharding
from weir.routing.core import Core
from weir.routing.writer import TableWriter
from weir.upkeep.exclusive import before_writing
from weir.upkeep.unfinished import require_settled

NewColumns: TypeAlias = pa.Field | Sequence[pa.Field] | pa.Schema | Mapping[str, str]
"""Columns to add: fields, null in every row, or names and the SQL that computes each."""


def add_columns(core: Core, columns: NewColumns) -> None:
    """See `Table.add_columns`."""
    lake = _settled(core)
    if not isinstance(columns, Mapping):
        lake.add_columns(_fields(columns))
        return
    base = core.base()
    fields = _computed(core, base.schema, columns)
    check_new(base, fields)
    lake.add_columns(fields)
    try:
        _fill(core, columns)
    except WeirError as error:
        unfilled = " OR ".join(f"{quoted(name)} IS NULL" for name in columns)
        error.add_note(
            f"{core.uri}: the columns {list(columns)} were added, and perhaps filled in some rows"
            f" only. Fill the rest with writer.update_where({unfilled!r}, ...)"
        )
        raise


def drop_columns(core: Core, names: str | Sequence[str]) -> None:
    """See `Table.drop_columns`."""
    dropped = [names] if isinstance(names, str) else list(names)
    if not dropped:
        raise InvalidInput("no column was given")
    lake = _settled(core)
    protected = _sharded_by(core)

    def check(base: Base) -> None:
        rule = base.expire
        for name in dropped:
            _require_free(core, base, name, "dropped", protected)
            if rule is not None and name == rule.column:
                raise InvalidInput(
                    f"{core.uri}: rows expire by column {name!r}, which cannot be dropped; change"
                    " the rule first, with table.set_expire"
                )

    lake.drop_columns(dropped, check)


def rename_column(core: Core, old: str, new: str) -> None:
    """See `Table.rename_column`."""
    require_name(new)
    lake = _settled(core)
    protected = _sharded_by(core)
    lake.rename_column(old, new, lambda base: _require_free(core, base, old, "renamed", protected))


def _settled(core: Core) -> Lake:
    core.refresh()  # C-16; and the sharding of now
    require_settled(core, "columns")
    core.base()  # guard: L-8 test_overwritten_base
    return core.lake


def _sharded_by(core: Core) -> dict[str, Sharding]:
    """The columns that decide where rows go, now or when an unfinished reshard is done."""
    change = read_resharding(core.store)
    known = [core.record.sharding]
    if change is not None and change.is_open:
        known.append(change.sharding)
    return {by.column: by for by in known if isinstance(by, Bucket | Identity)}


def _require_free(
    core: Core, base: Base, name: str, verb: str, protected: Mapping[str, Sharding]
) -> None:
    if name in base.schema.primary_key:
        raise InvalidInput(
            f"{core.uri}: column {name!r} is part of the primary key and cannot be {verb}; make a"
            " new table with another key"
        )
    if name in protected:
        raise InvalidInput(
            f"{core.uri}: rows find their shard by column {name!r} ({protected[name]}), which"
            f" cannot be {verb}; reshard the table by another column first"
        )


def _fields(columns: pa.Field | Sequence[pa.Field] | pa.Schema) -> list[pa.Field]:
    fields = [columns] if isinstance(columns, pa.Field) else list(columns)
    for field in fields:
        if not isinstance(field, pa.Field):
            raise InvalidInput(
                "columns to add are pyarrow fields, or a dict of names and SQL; got a"
                f" {type(field).__name__}"
            )
    return fields


def _computed(core: Core, schema: TableSchema, columns: Mapping[str, str]) -> list[pa.Field]:
    """The columns with the types that their expressions have."""
    for name in columns:
        require_name(name)
    if not schema.primary_key:
        raise InvalidInput(
            f"{core.uri}: rows of an append-only table do not change, so no column can be computed"
            " for them; add the column as a pyarrow field, with null in the rows there are"
        )
    none = no_rows(schema.plain)
    values = new_values(columns, none)
    return [pa.field(name, values[name].type) for name in columns]


def _fill(core: Core, columns: Mapping[str, str]) -> None:
    """Compute the columns of all rows. Rows that writers put with a value in the meantime keep it.

    Lance computes no column of a table with a log: rows of the log would be null in it. So the rows
    are written again, by their shards' owner, which this becomes.
    """
    config = replace(core.record.writer_defaults, enable_memtable=True, durable_write=True)
    unfilled = " OR ".join(f"{quoted(name)} IS NULL" for name in columns)
    values = {name: f"coalesce({quoted(name)}, ({text}\n))" for name, text in columns.items()}
    with TableWriter(core, config, before_writing(core)) as writer:
        writer.update_where(unfilled, values)
