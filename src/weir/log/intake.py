"""Turns a caller's data into rows of the log, or refuses it and names the column.

Keeps
  M-7  a bad put fails alone, here, before it can reach the entry of its neighbours
  F-15 accepted rows can be read: values and nulls are checked by the rules that readers apply
  M-9  a value is accepted only if the table's type can hold it exactly (`weir.format.exact`), and
       is held as it was: rows never share memory with the caller, which may write to it again
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from weir.env import Limits
from weir.errors import InvalidInput, SchemaMismatch
from weir.format.exact import cast_exactly, is_castable, with_plain_dictionaries
from weir.format.nested import find_null, has_dictionary, is_strict
from weir.format.python_values import from_python, maker
from weir.format.schema import TOMBSTONE, TableSchema, align_batch
from weir.format.wal_entry import Fill, require_fit
from weir.log.inputs import arrow_batches, arrow_column, row_parts

Column = Callable[[pa.RecordBatch], pa.Array]
Columns = Callable[[pa.RecordBatch], list[pa.Array]]


class Owns(Protocol):
    """Which rows belong to one shard."""

    def __call__(self, batch: pa.RecordBatch, /) -> pa.Array:
        """True for each row that does."""
        ...

    def home(self, row: pa.RecordBatch, /) -> str:
        """The shard of one row, for an error message."""
        ...


_SMALL_BYTES = 4096
_COLUMN_BYTES: Final = 512
"""What a column of a batch takes besides its values, about: most of the memory of a single row."""
_FALSE = (pa.repeat(False, 512), pa.repeat(False, 1 << 16))
"""Sliced for batches without deletes: building that column costs more than checking all others."""
_FEW_FALSE = tuple(_FALSE[0].slice(0, rows) for rows in range(17))
"""Sliced already: of a single row, that costs as much."""


class Intake:
    """Shapes rows for one table schema. Safe to share between threads.

    Remembers how the last input schema maps to the table's: the common case, many batches of one
    shape, costs one schema comparison and one copy of the memory.
    """

    def __init__(self, schema: TableSchema, owns: Owns | None = None) -> None:
        """`owns` masks the rows that belong to this shard; with it, other rows are refused."""
        self._schema = schema
        self.owns = owns
        self._required = [
            (i, f.name)
            for i, f in enumerate(schema.arrow)
            if not f.nullable or f.name in schema.primary_key
        ]
        self._strict = [(i, f.name) for i, f in enumerate(schema.arrow) if is_strict(f.type)]
        self._dictionaries = [i for i, f in enumerate(schema.arrow) if has_dictionary(f.type)]
        self._plan: tuple[pa.Schema, Columns] | None = None
        self._dict_fields: tuple[frozenset[str], pa.Schema] | None = None
        self._names = frozenset(schema.arrow.names)
        self._makers = [(field.name, maker(field.type, field.name)) for field in schema.plain]
        self._is_plain = schema.plain.types == schema.arrow.types
        self.bytes_of_columns = _COLUMN_BYTES * sum(map(_columns_in, schema.wal.types))
        """What a batch takes besides its values."""

    @property
    def schema(self) -> TableSchema:
        """The table schema that rows are shaped to."""
        return self._schema

    def rows(self, data: Any) -> list[pa.RecordBatch]:
        """The rows of `data` as batches of the WAL schema, empty ones left out.

        `data` is a RecordBatch, Table, RecordBatchReader, DataFrame, anything Arrow-shaped, or an
        iterable of these, of dicts, or of objects with named fields. A boolean column `_tombstone`
        marks rows that are deletes. Raises `SchemaMismatch` or `InvalidInput`, nothing written.
        """
        if type(data) is pa.RecordBatch:
            return [self._owned(self._shape(data))] if data.num_rows else []
        if type(data) is dict:
            data = [data]
        if type(data) is list and data and self._is_plain:
            whole = self._from_whole_dicts(data)
            if whole is not None:
                return [whole]
        return list(self._shaped(data))

    def tombstones(self, keys: Any) -> list[pa.RecordBatch]:
        """Delete markers for `keys`: values of a one-column key, tuples, dicts, or anything `rows`
        takes."""
        schema = self._schema
        if not schema.primary_key:
            raise InvalidInput("delete needs a primary key; this table is append-only")
        table = key_table(keys, schema)
        shaped = []
        for batch in table.to_batches():
            if not batch.num_rows:
                continue
            columns = [
                _copy_of(batch.column(schema.primary_key.index(f.name)))
                if f.name in schema.primary_key
                else pa.nulls(batch.num_rows, f.type)
                for f in schema.arrow
            ]
            columns.append(pa.repeat(True, batch.num_rows))
            shaped.append(self._checked(pa.RecordBatch.from_arrays(columns, schema=schema.wal)))
        return shaped

    def stored(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch from the log in the current schema, matched by field id, missing columns null."""
        return align_batch(batch, self._schema.wal)

    def fit(self, batches: Sequence[pa.RecordBatch], limits: Limits) -> int:
        """The bytes shaped rows take in memory; `InvalidInput` when they do not fit one entry."""
        nbytes = sum(map(size_of, batches))
        require_fit(batches, self._schema, nbytes=nbytes, max_bytes=limits.entry_bytes)
        return nbytes + len(batches) * self.bytes_of_columns

    def size_of(self, batch: pa.RecordBatch) -> int:
        """The bytes that a batch of shaped rows takes in memory."""
        return size_of(batch) + self.bytes_of_columns

    def require_known(self, names: Iterable[str]) -> None:
        """Raise `SchemaMismatch` for a name that is no column of the table."""
        for name in names:
            if name not in self._names and name != TOMBSTONE:
                raise SchemaMismatch(
                    f"the table has no column {name!r}; it has {self._schema.plain.names}. If the"
                    " column was added since this writer was opened, open a new writer"
                )

    def _shaped(self, data: Any) -> Iterator[pa.RecordBatch]:
        for part in row_parts(data):
            if not isinstance(part, pa.RecordBatch):
                yield self._shape(self._from_dicts(part))
            elif part.num_rows:
                yield self._owned(self._shape(part))

    def _owned(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows in memory of their own: that of the caller may be written to again, such as a
        numpy buffer, and a slice would keep all that it was cut from. After they were checked: a
        copy follows the offsets in them."""
        if self._dictionaries:
            return _through_ipc(batch)
        return pa.concat_batches([batch])

    def _from_whole_dicts(self, rows: list[Any]) -> pa.RecordBatch | None:
        """The rows in one step if all are dicts of all columns, as most are; None: slow path."""
        names = self._names
        for row in rows:
            if type(row) is not dict or row.keys() != names:
                return None
        columns = [make([row[name] for row in rows]) for name, make in self._makers]
        columns.append(_no_tombstones(len(rows)))
        return self._checked(pa.RecordBatch.from_arrays(columns, schema=self._schema.wal))

    def _from_dicts(self, rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
        fields = self._fields(rows)
        columns = []
        for field in fields:
            values = [row.get(field.name) for row in rows]
            columns.append(from_python(values, field.type, field.name))
        return pa.RecordBatch.from_arrays(columns, schema=fields)

    def _fields(self, rows: Sequence[Mapping[str, Any]]) -> pa.Schema:
        """The columns that at least one row has; cached for further rows of the same shape."""
        known = self._dict_fields
        if known is not None and all(row.keys() == known[0] for row in rows):
            return known[1]
        for row in rows:
            self.require_known(row.keys())
        present = [f for f in self._schema.plain if any(f.name in row for row in rows)]
        # Rows that name no column are still rows: all nulls, or refused for their key.
        fields = [f.with_nullable(True) for f in present or self._schema.plain]
        if any(TOMBSTONE in row for row in rows):
            fields.append(pa.field(TOMBSTONE, pa.bool_()))
        schema = pa.schema(fields)
        if present:
            self._dict_fields = (frozenset(schema.names), schema)
        return schema

    def _shape(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        plan = self._plan
        if plan is None or not plan[0].equals(batch.schema):
            plan = (batch.schema, self._make_plan(batch.schema))
            self._plan = plan
        columns = plan[1](batch)
        return self._checked(pa.RecordBatch.from_arrays(columns, schema=self._schema.wal))

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        try:
            # Every reader of the log relies on this: text is UTF-8, numbers fit their type,
            # offsets lie within their buffers. 0.3 us for a row, 12 GB/s for many.
            batch.validate(full=True)
        except pa.ArrowInvalid as error:
            raise _broken(batch, error) from error
        for index in self._dictionaries:
            found = batch.column(index)
            plain = with_plain_dictionaries(found)
            if plain is not found:
                batch = batch.set_column(index, batch.schema.field(index), plain)
        for index, name in self._strict:
            batch = self._checked_inside(batch, index, name)
        for index, name in self._required:
            if batch.column(index).null_count:
                self._refuse_null(batch, index, name)
        if self.owns is not None:
            mine = self.owns(batch)
            if not pc.all(mine).as_py():
                # Routing is an invariant, not a hint: a lookup reads only the shard of its key.
                names = self._schema.primary_key or self._schema.arrow.names[:1]
                other = batch.filter(pc.invert(mine)).slice(0, 1)
                row = other.select(list(names)).to_pylist()[0]
                raise InvalidInput(
                    f"the row with {row} belongs to another shard, {self.owns.home(other)}; put it"
                    " through table.writer(), which routes, or through that shard's writer"
                )
        return batch

    def _checked_inside(self, batch: pa.RecordBatch, index: int, name: str) -> pa.RecordBatch:
        if find_null(batch.column(index), name) is None:
            return batch
        # Only the key of a delete counts: its other values are dropped.
        column = pc.if_else(
            batch.column(TOMBSTONE),
            pa.scalar(None, batch.column(index).type),
            batch.column(index),
        )
        found = find_null(column, name)
        if found is not None:
            raise SchemaMismatch(f"column {found!r} is declared not null and holds a null")
        return batch.set_column(index, batch.schema.field(index), column)

    def _refuse_null(self, batch: pa.RecordBatch, index: int, name: str) -> None:
        if name in self._schema.primary_key:
            raise InvalidInput(f"key column {name!r} holds a null; every row needs its key")
        # Only deletes may leave a non-null column empty: they carry nothing but their key.
        live = pc.invert(batch.column(batch.num_columns - 1))
        if pc.any(pc.and_(batch.column(index).is_null(), live)).as_py():
            raise SchemaMismatch(
                f"column {name!r} is declared not null, and a row has no value for it"
            )

    def _make_plan(self, source: pa.Schema) -> Columns:
        names = source.names
        wanted = self._schema.wal
        if [*names, TOMBSTONE] == wanted.names and [*source.types, pa.bool_()] == wanted.types:
            return lambda batch: [*batch.columns, _no_tombstones(batch.num_rows)]
        for name in names:
            if names.count(name) > 1:
                raise SchemaMismatch(f"column {name!r} occurs twice in the data")
        self.require_known(names)
        columns = [self._column(names, source, field) for field in wanted]
        return lambda batch: [column(batch) for column in columns]

    def _column(self, names: list[str], source: pa.Schema, target: pa.Field) -> Column:
        if target.name not in names:
            return self._absent(target)
        index = names.index(target.name)
        have = source.field(index).type
        if target.name == TOMBSTONE:
            if not pa.types.is_boolean(have):
                raise SchemaMismatch(f"column {TOMBSTONE!r} must be boolean, got {have}")
            return lambda batch: pc.fill_null(batch.column(index), False)
        if have.equals(target.type):
            return lambda batch: batch.column(index)
        if not is_castable(have, target.type):
            raise SchemaMismatch(
                f"column {target.name!r}: {have} cannot be converted to {target.type}"
            )
        return lambda batch: cast_exactly(batch.column(index), target.type, target.name)

    def _absent(self, target: pa.Field) -> Column:
        if target.name == TOMBSTONE:
            return lambda batch: _no_tombstones(batch.num_rows)
        if target.name in self._schema.primary_key:
            raise InvalidInput(f"key column {target.name!r} is missing from the data")
        return lambda batch: pa.nulls(batch.num_rows, target.type)


def _broken(batch: pa.RecordBatch, error: Exception) -> InvalidInput:
    for field, column in zip(batch.schema, batch.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as found:
            return InvalidInput(f"column {field.name!r} ({field.type}): {found}")
    return InvalidInput(f"the rows are not valid Arrow data: {error}")


def _copy_of(keys: pa.Array) -> pa.Array:
    """Keys in memory of their own, as `Intake._owned`."""
    try:
        keys.validate(full=True)
    except pa.ArrowInvalid as error:
        raise InvalidInput(f"the keys are not valid Arrow data: {error}") from error
    return pa.concat_arrays([keys])


def _through_ipc(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A copy with its dictionaries, which `concat` shares."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return pa.ipc.open_stream(sink.getvalue()).read_next_batch()


def _no_tombstones(rows: int) -> pa.BooleanArray:
    if rows < len(_FEW_FALSE):
        return _FEW_FALSE[rows]
    for falses in _FALSE:
        if rows <= len(falses):
            return falses[:rows]
    return pa.repeat(False, rows)


def size_of(batch: pa.RecordBatch) -> int:
    """The bytes of the values of a batch.

    For a small batch, those of its buffers, although it may be a slice of them: counting exactly
    takes 7 us, a tenth of a durable put, and releases the interpreter lock.
    """
    held: int = batch.get_total_buffer_size()
    return held if held <= _SMALL_BYTES else batch.nbytes


def _columns_in(dtype: pa.DataType) -> int:
    """How many arrays hold a column of that type."""
    return 1 + sum(_columns_in(dtype.field(i).type) for i in range(dtype.num_fields))


def fill_of(batches: Sequence[pa.RecordBatch]) -> Fill:
    """What these batches add to a generation."""
    return Fill(sum(b.num_rows for b in batches), len(batches), sum(map(size_of, batches)))


def key_table(keys: Any, schema: TableSchema) -> pa.Table:
    """Keys in any accepted form as a table of the key columns, in key order; `InvalidInput`
    otherwise."""
    names = schema.primary_key
    found = arrow_column(keys)
    if found is not None:
        keys = pa.table({names[0]: found})
    elif (batches := arrow_batches(keys)) is not None:
        keys = pa.Table.from_batches(batches) if batches else schema.key_schema.empty_table()
    else:
        if isinstance(keys, str | bytes | Mapping) or not isinstance(keys, Iterable):
            keys = [keys]
        keys = _keys_from_values(list(keys), schema)
    columns = []
    for field in schema.key_schema:
        found_there = keys.column_names.count(field.name)
        if found_there != 1:
            what = "is missing" if not found_there else "occurs twice"
            raise InvalidInput(f"key column {field.name!r} {what}; the key is {list(names)}")
        column = keys.column(field.name)
        if not column.type.equals(field.type):
            column = cast_exactly(column, field.type, field.name)
        if column.null_count:
            raise InvalidInput(f"key column {field.name!r} holds a null")
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=schema.key_schema)


def _keys_from_values(keys: list[Any], schema: TableSchema) -> pa.Table:
    fields = list(schema.key_schema)
    rows = []
    for key in keys:
        if isinstance(key, Mapping):
            row = [key.get(f.name) for f in fields]
        elif len(fields) == 1 and not isinstance(key, tuple | list):
            row = [key]
        else:
            row = list(key) if isinstance(key, tuple | list) else [key]
        if len(row) != len(fields):
            raise InvalidInput(
                f"expected {len(fields)} key values {[f.name for f in fields]}, got {key!r}"
            )
        rows.append(row)
    columns = []
    for i, field in enumerate(fields):
        columns.append(from_python([row[i] for row in rows], field.type, field.name))
    return pa.Table.from_arrays(columns, names=[f.name for f in fields])
