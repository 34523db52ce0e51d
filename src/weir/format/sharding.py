"""How rows find their shard: by a hash of a column, by its value, by their writer, or not at all.

A shard's id follows from the sharding and the value alone, so two processes that create the shard
of one value concurrently create the same shard. The first routing of a table has the ids that
LanceDB derives, so that its `merge_insert` and weir write to the same logs. LanceDB knows no other
routing, and once there is one the spec id makes LanceDB refuse the table (X-1).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final
from uuid import UUID, uuid5

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Meta, Struct, to_builtins
from msgspec.structs import force_setattr

from weir.durations import seconds
from weir.errors import InvalidInput
from weir.format.base_manifest import ShardingSpec
from weir.format.bucket import bucket, bucket_finder, held_by
from weir.format.columns import plain_array

# Stored. Never change a value; add one.
_NAMESPACE: Final = UUID("6f3b2d53-52a4-5b1c-9d0e-77656972f00d")
_LANCEDB: Final = UUID("4c534d57-5249-5445-5f53-484152443031")
FIRST_ROUTING: Final = 0
"""The routing of a new table, with LanceDB's ids."""
_FIELD: Final = "bucket"
BUCKETS_MAX: Final = 1024

_WRITERS_SHARD: Final = "writer "
_APPS_SHARD: Final = "app "

Value = int | str | bool | None
"""What a shard stands for: a bucket, a value of the identity column, whose rows it takes (with
`PerWriter`), or None."""


class Bucket(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="bucket"):
    """`num` shards; a row goes to the hash of `column`, as Lance hashes it, modulo `num`."""

    column: str
    num: Annotated[int, Meta(ge=1, le=BUCKETS_MAX)]


class Identity(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="identity"):
    """One shard for each value of `column`, made when the value first shows up."""

    column: str


class Unsharded(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="unsharded"):
    """One shard for the whole table."""


class PerWriter(
    Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="per_writer"
):
    """A shard of its own for each writer of an append-only table: any number of writers append
    side by side, and none fences another.

    A writer takes a shard whose last writer closed, or makes one. Compaction ends the shard of a
    writer that wrote nothing for `silent_after` (seconds, or text such as "1h"); if that writer
    lives, it goes on in another shard.
    """

    silent_after: float | str = "1h"

    def __post_init__(self) -> None:
        """Keep seconds; `InvalidInput` for what is no duration."""
        force_setattr(self, "silent_after", seconds(self.silent_after, name="silent_after"))

    @property
    def silent_after_s(self) -> float:
        """`silent_after` in seconds."""
        return seconds(self.silent_after)


Sharding = Bucket | Identity | PerWriter | Unsharded


def makes_shards(sharding: Sharding) -> bool:
    """True when shards are made as rows come: their manifests say what they stand for, and the
    table's record lists none."""
    return isinstance(sharding, Identity | PerWriter)


def value_of_writer(name: UUID) -> str:
    """With `PerWriter`, what the shard of a writer stands for; `name` is random. Short, because
    people read it: of two writers with one name, one takes another (C-18)."""
    return f"{_WRITERS_SHARD}{name.hex[:12]}"


def value_of_app(app: str) -> str:
    """With `PerWriter`, what the shard stands for that takes the batches of an application."""
    return f"{_APPS_SHARD}{app}"


def is_of_writer(sharding: Sharding, value: Value) -> bool:
    """True for a shard that belongs to one writer, whoever that is, and to no application."""
    is_text = isinstance(sharding, PerWriter) and isinstance(value, str)
    return is_text and str(value).startswith(_WRITERS_SHARD)


def check_sharding(sharding: Any, schema: pa.Schema, primary_key: Sequence[str]) -> None:
    """Raise `InvalidInput` unless the table can be sharded that way."""
    if isinstance(sharding, Unsharded):
        return
    if isinstance(sharding, PerWriter):
        if primary_key:
            raise InvalidInput(
                f"PerWriter() is for append-only tables, and this one has the primary key"
                f" {list(primary_key)}: rows of one key in the shards of two writers would have no"
                " order. Leave out the key, or use Bucket"
            )
        return
    if not isinstance(sharding, Bucket | Identity):
        raise InvalidInput(
            "sharding must be Bucket(column, num), Identity(column), PerWriter() or Unsharded(),"
            f" not {sharding}"
        )
    column = sharding.column
    if column not in schema.names:
        raise InvalidInput(
            f"sharding column {column!r} is not in the schema; its columns: {schema.names}"
        )
    if primary_key and column not in primary_key:
        raise InvalidInput(
            f"sharding column {column!r} must be part of the primary key {list(primary_key)}:"
            " a row is found, replaced and deleted by its key alone"
        )
    dtype = schema.field(column).type
    if isinstance(sharding, Bucket):
        num = sharding.num
        if type(num) is not int or not 1 <= num <= BUCKETS_MAX:
            raise InvalidInput(
                f"Bucket: num must be a whole number from 1 to {BUCKETS_MAX}, got {num!r}"
            )
        if pa.types.is_dictionary(dtype):
            raise InvalidInput(
                f"Bucket: column {column!r} is {dtype}, and Lance cannot bucket a dictionary;"
                f" declare it as {dtype.value_type}, which Lance also compresses"
            )
        bucket(pa.array([], dtype), num)  # refuses a type without a hash
    elif not _is_identity_type(dtype):
        raise InvalidInput(
            f"Identity: column {column!r} is {dtype}; use an integer, bool or utf8 column, or"
            " use Bucket"
        )


def _is_identity_type(dtype: pa.DataType) -> bool:
    types = pa.types
    text = types.is_string(dtype) or types.is_large_string(dtype)
    return bool(types.is_integer(dtype) or types.is_boolean(dtype) or text)


def mem_wal_settings(sharding: Sharding) -> dict[str, Any]:
    """The arguments of pylance's `initialize_mem_wal` for the same sharding."""
    if isinstance(sharding, Bucket):
        return {"bucket_column": sharding.column, "num_buckets": sharding.num}
    if isinstance(sharding, Identity):
        return {"identity_column": sharding.column}
    return {"unsharded": True} if isinstance(sharding, Unsharded) else {}


def from_mem_wal(specs: Sequence[ShardingSpec], names: Mapping[int, str]) -> Sharding | None:
    """The sharding that a MemWAL index entry describes; None if weir can follow no spec."""
    for spec in specs:
        if len(spec.fields) != 1:
            continue
        field = spec.fields[0]
        transform, sources = field.transform, field.source_ids
        if transform == "unsharded":
            return Unsharded()
        if len(sources) != 1 or sources[0] not in names:
            continue
        if transform == "bucket":
            return Bucket(names[sources[0]], int(field.parameters["num_buckets"]))
        if transform == "identity":
            return Identity(names[sources[0]])
    return None


def spec_of(specs: Sequence[ShardingSpec], sharding: Sharding, names: Mapping[int, str]) -> int:
    """The id of the spec that describes `sharding`."""
    return next(spec.spec_id for spec in specs if from_mem_wal([spec], names) == sharding)


def shard_id(
    sharding: Sharding, value: Value, routing_version: int, dtype: pa.DataType | None = None
) -> UUID:
    """The id of the shard for `value`; every process computes the same one.

    `dtype` is the type of the identity column: LanceDB's ids depend on the width of a number.
    """
    if routing_version == FIRST_ROUTING:  # guard: X-1 test_sharding
        name = lancedb_name(sharding, value, dtype)
        if name is not None:
            return _uuid5(_LANCEDB, name)
    # Its time limit changes no shard.
    kind = {"kind": "per_writer"} if isinstance(sharding, PerWriter) else to_builtins(sharding)
    named = json.dumps([kind, value, routing_version], sort_keys=True)
    return uuid5(_NAMESPACE, named)


def lancedb_id(sharding: Sharding, value: Value, dtype: pa.DataType | None = None) -> UUID | None:
    """The id under which LanceDB writes the rows of `value`; None for null, which it refuses."""
    name = lancedb_name(sharding, value, dtype)
    return None if name is None else _uuid5(_LANCEDB, name)


def lancedb_name(sharding: Sharding, value: Value, dtype: pa.DataType | None) -> bytes | None:
    """LanceDB's name of the shard; it holds neither the column, the bucket count nor the type."""
    if isinstance(sharding, Unsharded):
        return b"unsharded"
    if isinstance(sharding, Bucket):
        return f"bucket-{value}".encode()
    if isinstance(sharding, PerWriter):
        return None
    return None if value is None else b"identity-" + _value_bytes(value, dtype)


def _uuid5(namespace: UUID, name: bytes) -> UUID:
    """`uuid.uuid5` of bytes; Python 3.11's takes only text."""
    digest = hashlib.sha1(namespace.bytes + name, usedforsecurity=False).digest()
    return UUID(bytes=digest[:16], version=5)


def values_of(sharding: Sharding) -> list[Value]:
    """The values of the shards that exist from the start."""
    if isinstance(sharding, Bucket):
        return list(range(sharding.num))
    return [None] if isinstance(sharding, Unsharded) else []


def field_entries(
    sharding: Sharding, value: Value, dtype: pa.DataType | None
) -> tuple[tuple[str, bytes], ...]:
    """The field entries of the shard's manifest, which encode its value as the format demands."""
    if makes_shards(sharding):
        if value is None:
            return ()
        return ((_FIELD, _value_bytes(value, dtype)),)
    number = value if isinstance(value, int) else 0
    return ((_FIELD, number.to_bytes(4, "little", signed=True)),)


def _value_bytes(value: Value, dtype: pa.DataType | None) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bool):
        return bytes([value])
    assert isinstance(value, int), "an identity value is text, bool or a whole number"
    assert dtype is not None, "the width of a number comes from its column"
    signed = bool(pa.types.is_signed_integer(dtype))
    return value.to_bytes(dtype.bit_width // 8, "little", signed=signed)


def value_from_entries(
    sharding: Sharding, entries: Sequence[tuple[str, bytes]], dtype: pa.DataType | None
) -> Value:
    """The value a manifest's field entries name, or None."""
    raw = dict(entries).get(_FIELD)
    if raw is None or isinstance(sharding, Unsharded):
        return None
    if isinstance(sharding, Bucket):
        return _number_in(raw, pa.int64())
    if dtype is not None and pa.types.is_boolean(dtype):
        return raw != b"\0"
    if dtype is not None and pa.types.is_integer(dtype):
        return _number_in(raw, dtype)
    return raw.decode("utf-8", "replace")


def _number_in(raw: bytes, dtype: pa.DataType) -> int | None:
    """None for what no column of that type holds: the entry of a former sharding, or a forged one,
    whose number could be too long to be printed."""
    number = int.from_bytes(raw, "little", signed=bool(pa.types.is_signed_integer(dtype)))
    return number if number in held_by(dtype) else None


def _is_utf8(text: str) -> bool:
    """False for a text with a lone surrogate, which no column can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_WITHOUT_COLUMN: Final = (Unsharded, PerWriter)
"""Shardings by which no value of a row decides where it goes."""


@dataclass(frozen=True)
class Router:
    """Splits rows by shard, vectorized."""

    sharding: Sharding

    def split(self, batch: pa.RecordBatch) -> list[tuple[Value, pa.RecordBatch]]:
        """The rows of each shard, in their order; a batch that goes to one shard is not copied.

        With `PerWriter` no row says where it goes: all are in one part, and its writer knows."""
        if isinstance(self.sharding, _WITHOUT_COLUMN):
            return [(None, batch)]
        codes, values = self.codes(self._column(batch))
        if len(codes) == 0:
            return []
        if (codes == codes[0]).all():
            return [(values[int(codes[0])], batch)]
        order = np.argsort(codes, kind="stable")
        ordered = batch.take(pa.array(order))
        present, starts = np.unique(codes[order], return_index=True)
        ends = [*starts[1:], len(codes)]
        return [
            (values[int(code)], ordered.slice(int(start), int(end) - int(start)))
            for code, start, end in zip(present, starts, ends, strict=True)
        ]

    @property
    def column_name(self) -> str | None:
        """The column that decides the shard; None if none does."""
        return None if isinstance(self.sharding, _WITHOUT_COLUMN) else self.sharding.column

    def finder(self, dtype: pa.DataType) -> Callable[[object], int | str | None]:
        """A function from a row's value of the column, which has that type, to its shard. When it
        returns None, use `one_value`."""
        if isinstance(self.sharding, Bucket):
            return bucket_finder(dtype, self.sharding.num)
        if pa.types.is_integer(dtype):
            held = held_by(dtype)
            return lambda value: value if type(value) is int and value in held else None

        def of_text(value: object) -> str | None:
            if type(value) is not str or not (value.isascii() or _is_utf8(value)):
                return None
            return value

        return of_text if pa.types.is_string(dtype) else lambda _: None

    def one_value(self, column: pa.Array) -> tuple[Value] | None:
        """The one shard of all rows with these column values; None when they go to several."""
        codes, values = self.codes(column)
        return (values[int(codes[0])],) if (codes == codes[0]).all() else None

    def values(self, keys: pa.Table | pa.RecordBatch) -> list[tuple[Value, npt.NDArray[np.int64]]]:
        """The indices of each shard's rows, ascending."""
        if isinstance(self.sharding, _WITHOUT_COLUMN):
            return [(None, np.arange(keys.num_rows))]
        codes, values = self.codes(self._column(keys))
        return [(values[int(code)], np.flatnonzero(codes == code)) for code in np.unique(codes)]

    def mask(self, batch: pa.RecordBatch, value: Value) -> pa.Array:
        """True for each row that belongs to the shard of `value`."""
        if isinstance(self.sharding, _WITHOUT_COLUMN):
            return pa.array(np.ones(batch.num_rows, np.bool_))
        column = self._column(batch)
        if isinstance(self.sharding, Bucket):
            return pa.array(bucket(column, self.sharding.num) == value)
        if value is None:
            return column.is_null()
        return pc.fill_null(pc.equal(column, pa.scalar(value, column.type)), fill_value=False)

    def require_column(self, names: Sequence[str]) -> None:
        """`InvalidInput` when the column that decides the shard is not among `names`."""
        if self.column_name is not None and self.column_name not in names:
            raise InvalidInput(
                f"the table is sharded by {self.column_name!r}, a column that no longer exists."
                " Rename the column back, or reshard the table by another column"
            )

    def codes(self, column: pa.Array | pa.ChunkedArray) -> tuple[npt.NDArray[Any], Sequence[Value]]:
        """For each row with these column values the index of its shard in the second result."""
        if isinstance(self.sharding, Bucket):
            return bucket(column, self.sharding.num), range(self.sharding.num)
        encoded = pc.dictionary_encode(plain_array(column), null_encoding="encode")
        values: list[Value] = encoded.dictionary.to_pylist()
        return encoded.indices.to_numpy(), values

    def _column(self, rows: pa.RecordBatch | pa.Table) -> Any:
        assert not isinstance(self.sharding, _WITHOUT_COLUMN), "nothing to route by"
        self.require_column(rows.schema.names)
        return rows.column(self.sharding.column)
