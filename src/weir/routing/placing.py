"""Which shard takes a row: `Table.shard_of` and `Table.shards_of`.

A router in front of several replicas asks this, and a writer must give the same answer. So both ask
the same two functions: `Router` finds the value of the shard, and the table's record its id.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from weir.env import Env
from weir.errors import InvalidInput
from weir.format.exact import cast_exactly
from weir.format.python_values import from_python
from weir.format.sharding import PerWriter, Router, Value
from weir.log.inputs import arrow_batches, arrow_column, as_dict, is_row, parts_of
from weir.records.table import TableRecord
from weir.routing.core import Core
from weir.routing.shards import Shard


class Placing:
    """What a handle remembers for these calls: the ways under the record it knows."""

    def __init__(self, env: Env) -> None:
        """Use `placing`."""
        self._ways: Ways | None = None

    def ways(self, core: Core) -> Ways:
        """Those of the handle's record. One listing the first time, to learn the column's type."""
        if isinstance(core.record.sharding, PerWriter):
            raise InvalidInput(
                f"{core.uri} has a shard for each writer (PerWriter): no row belongs to a shard"
                " before a writer takes it. Send it to any writer"
            )
        found = self._ways
        if found is None or found.record is not core.record:
            found = self._ways = Ways(core, core.record)
        return found

    @property
    def is_ready(self) -> bool:
        """True when a call makes no request."""
        return self._ways is not None


def placing(core: Core) -> Placing:
    """The handle's own."""
    return core.attached.of(Placing)


class Ways:
    """The way of every row under one record. Used by any thread, without a lock."""

    def __init__(self, core: Core, record: TableRecord) -> None:
        self.record = record
        self._core = core
        self._router = Router(record.sharding)
        self._column = self._router.column_name
        self._key = record.primary_key
        columns = core.known_schema().plain
        self._type = pa.null()
        self._is_required = False
        if self._column is not None:
            # Refuses a table whose sharding column another program renamed, as a writer does.
            self._router.require_column(columns.names)
            field = columns.field(self._column)
            self._type = field.type
            self._is_required = not field.nullable or self._column in self._key
        self._names = frozenset(columns.names)
        self._find = self._router.finder(self._type)

    def shard_of(self, row: object) -> Shard:
        """The shard of one row or key."""
        if self._column is None:
            return self._shard(None)
        given = self._given(row, self._column)
        value: Value = self._find(given)
        if value is None:
            found = self._router.one_value(self._array([given], self._column))
            assert found is not None, "one row is in one shard"
            (value,) = found
        return self._shard(value)

    def shards_of(self, data: Any) -> list[Shard]:
        """The shard of each row or key."""
        if self._column is None:
            return [self._shard(None)] * _count(data)
        return [
            shard for part in self._arrays(data, self._column) for shard in self._of_array(part)
        ]

    def _of_array(self, column: pa.Array | pa.ChunkedArray) -> Iterator[Shard]:
        codes, values = self._router.codes(column)
        shards = {code: self._shard(values[code]) for code in set(codes.tolist())}
        return (shards[code] for code in codes.tolist())

    def _shard(self, value: Value) -> Shard:
        return Shard(self._core, self._core.shard_of(value, self.record), value)

    def _arrays(self, data: Any, name: str) -> Iterator[pa.Array | pa.ChunkedArray]:
        """The sharding column of rows or keys in any accepted form, in order."""
        keys = arrow_column(data)
        if keys is not None:
            yield self._cast(self._of_key_column(keys), name)
            return
        for part in parts_of(_items(data), lambda item: self._given(item, name)):
            if not isinstance(part, pa.RecordBatch):
                yield self._array(part, name)
            elif part.num_rows:
                yield self._of_batch(part, name)

    def _of_batch(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        if name in batch.schema.names:
            return self._cast(batch.column(name), name)
        self._require_known(batch.schema.names, name)
        return self._checked(pa.nulls(batch.num_rows, self._type), name)

    def _of_key_column(self, keys: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
        if len(self._key) != 1:
            raise self._no_key(f"an array of {keys.type}")
        return keys

    def _given(self, row: object, name: str) -> object:
        """The value of the sharding column in a row, or in a key."""
        if isinstance(row, Mapping) or is_row(row):
            fields = as_dict(row)
            if name not in fields:
                self._require_known(fields, name)
            return fields.get(name)
        if isinstance(row, tuple | list):
            if not self._key or len(row) != len(self._key):
                raise self._no_key(repr(row))
            return row[self._key.index(name)]
        if len(self._key) != 1 or arrow_batches(row) is not None:
            raise self._no_key(repr(row))
        return row

    def _no_key(self, given: str) -> InvalidInput:
        uri, name = self._core.uri, self._column
        if not self._key:
            how = f"it is append-only: pass rows, as dicts with the column {name!r}, or Arrow"
        else:
            how = f"its key is {list(self._key)}: pass that many values, or rows as dicts"
        return InvalidInput(
            f"{uri}: cannot tell the shard of {given}: {how}; of many rows, call shards_of"
        )

    def _require_known(self, names: Iterable[str], missing: str) -> None:
        """A row without the sharding column has a null there, unless that is a mistake."""
        if self._is_required or not self._names.issuperset(names):
            raise InvalidInput(
                f"{self._core.uri} is sharded by {missing!r}, a column that is missing from"
                f" {sorted(names)}"
            )

    def _array(self, values: list[object], name: str) -> pa.Array:
        return self._checked(from_python(values, self._type, name), name)

    def _cast(self, column: pa.Array | pa.ChunkedArray, name: str) -> pa.Array | pa.ChunkedArray:
        if not column.type.equals(self._type):
            column = cast_exactly(column, self._type, name)
        return self._checked(column, name)

    def _checked(self, column: pa.Array | pa.ChunkedArray, name: str) -> pa.Array | pa.ChunkedArray:
        if self._is_required and column.null_count:
            raise InvalidInput(
                f"{self._core.uri}: column {name!r} holds a null; every row needs a value there"
            )
        return column


def _items(data: Any) -> Iterable[object]:
    if isinstance(data, str | bytes) or not isinstance(data, Iterable) or is_row(data):
        return [data]
    return data


def _count(data: Any) -> int:
    """How many rows or keys there are."""
    column = arrow_column(data)
    if column is not None:
        return len(column)
    parts = parts_of(_items(data), lambda item: item)
    return sum(p.num_rows if isinstance(p, pa.RecordBatch) else len(p) for p in parts)
