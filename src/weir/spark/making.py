"""Create tables for a DataFrame: on the first write, by a load, by SQL."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from uuid import UUID

import pyarrow as pa
from pyspark.sql.types import StructType

import weir
from weir.config import WriterConfig
from weir.errors import InvalidInput, NotAWeirTable, SchemaMismatch
from weir.format.sharding import Bucket, Identity, PerWriter, Sharding
from weir.making import begin
from weir.spark.places import Place, flag, names, number, resolved
from weir.spark.types import arrow_schema, columns_of

BUCKET = re.compile(r"\s*bucket\(\s*(?:(\d+)\s*,\s*(\w+)|(\w+)\s*,\s*(\d+))\s*\)\s*", re.IGNORECASE)
PER_WRITER = re.compile(r"\s*per_writer\(\s*([\w.]*)\s*\)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class TableSpec:
    """How to create a table that does not exist yet."""

    primary_key: tuple[str, ...] | None = None
    """None: nothing is said of it; empty: the table is append-only."""
    sharding: Sharding | None = None
    wal_uri: str | None = None
    writer_defaults: WriterConfig | None = None

    @staticmethod
    def of(
        options: Mapping[str, str], columns: Sequence[str], table_key: Sequence[str] = ()
    ) -> TableSpec:
        """From the options of a write; `table_key` is the key of a table that is there."""
        given = names(options, "primaryKey")
        key = None if given is None else tuple(resolved(name, columns) for name in given)
        sharding = sharding_of(options, key or table_key, columns)
        return TableSpec(key, sharding, options.get("waluri"), defaults_of(options))

    def require_same(self, table: weir.Table, *, wal: bool = True) -> None:
        """`InvalidInput` where it says something else than the table is; a sharding from before a
        reshard will do. Without `wal` the log's store is not looked at: the place reaches it."""
        record, key = table.core.record, self.primary_key
        if key is not None:
            key = tuple(resolved(name, table.schema.names) for name in key)
        shardings = (record.sharding, *(sharding for _, sharding in record.former))
        defaults = self.writer_defaults
        if defaults is not None:  # as the record of a table keeps them
            defaults = WriterConfig.from_record(defaults.to_record())
        asked: list[tuple[str, object, object, bool]] = [
            ("primary key", table.primary_key, key, True),
            ("sharding", table.sharding, self.sharding, self.sharding not in shardings),
            ("log store", table.wal_uri, self.wal_uri, wal),
            ("writer defaults", table.writer_defaults, defaults, True),
        ]
        for what, has, wants, counts in asked:
            if wants is not None and wants != has and counts:
                raise InvalidInput(
                    f"{table.uri} has the {what} {has}, not {wants}, and keeps it: leave it out."
                    " (table.reshard changes the sharding.) Otherwise write to another table, or"
                    " DROP TABLE first. Nothing was changed"
                )

    def create(self, place: Place, fields: pa.Schema, *, declared: bool = False) -> weir.Table:
        """Create the empty table; at a place with a maker only that one finds it (P-9).

        Its key is NOT NULL, and what else was `declared` to be: what Spark inferred is no promise.
        """
        key = tuple(resolved(name, fields.names) for name in self.primary_key or ())
        required = {f.name for f in fields if f.name in key or (declared and not f.nullable)}
        make = weir.create if place.maker is None else partial(begin, maker=UUID(place.maker))
        return make(
            place.uri,
            pa.schema([_loose(field, required=field.name in required) for field in fields]),
            primary_key=key or None,
            sharding=self.sharding,
            wal_uri=self.wal_uri,
            writer_defaults=self.writer_defaults,
            storage_options=dict(place.storage),
        )


def defaults_of(options: Mapping[str, str]) -> WriterConfig | None:
    """`writerDefaults`: fields of `weir.WriterConfig` as JSON."""
    text = options.get("writerdefaults")
    if text is None:
        return None
    try:
        return WriterConfig(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise InvalidInput(
            "option writerDefaults must be a JSON object with fields of weir.WriterConfig, such as"
            f' {{"max_memtable_rows": 50000}}, got {text!r} ({error})'
        ) from None


def sharding_of(
    options: Mapping[str, str], key: Sequence[str], columns: Sequence[str]
) -> Sharding | None:
    """The sharding of `buckets` (of the first key column) or of `shardBy` (as written)."""
    count, by = number(options, "buckets"), options.get("shardby")
    if count is not None and by is not None:
        raise InvalidInput("options buckets and shardBy both set the sharding: give one of them")
    if count is not None:
        if not key:
            raise InvalidInput(
                "option buckets needs a primary key, and there is none; use the option shardBy ="
                f" 'bucket(column, {count})'"
            )
        return Bucket(key[0], count)
    if by is None:
        return None
    lone = PER_WRITER.fullmatch(by)
    if lone is not None:
        return PerWriter(silent_after=lone.group(1)) if lone.group(1) else PerWriter()
    found = BUCKET.fullmatch(by)
    if found is not None:
        column = found.group(2) or found.group(3)
        return Bucket(resolved(column, columns), int(found.group(1) or found.group(4)))
    return Identity(resolved(by.strip(), columns))


def open_or_create(
    place: Place,
    schema: StructType,
    options: Mapping[str, str],
    *,
    delete_column: str | None = None,
) -> weir.Table:
    """Open the table, which must be as the options say, or create it so."""
    try:
        table = place.current()
    except NotAWeirTable as absent:
        if "primarykey" not in options:
            raise NotAWeirTable(
                f"{absent}. To create it with this write, set the option primaryKey ('id', 'a,b',"
                " or '' for an append-only table), and buckets or shardBy for more than one shard"
            ) from None
        fields = [f for f in arrow_schema(schema) if f.name != delete_column]
        return TableSpec.of(options, schema.fieldNames()).create(place, pa.schema(fields))
    spec = TableSpec.of(options, table.schema.names, table.primary_key)
    spec.require_same(table, wal=False)
    return table


def merge_columns(
    table: weir.Table, schema: StructType, options: Mapping[str, str], *, delete_column: str | None
) -> None:
    """With `mergeSchema`, add the columns that the table does not have, as nullable.

    One commit of the base; existing rows have nulls in the new columns. A column whose type differs
    is not changed: `check_written` refuses it.
    """
    if not flag(options, "mergeSchema"):
        return
    given = columns_of(schema.fieldNames(), table.schema, delete_column)
    fields = [
        _loose(field, required=False)
        for name, field in zip(given, arrow_schema(schema), strict=True)
        if name not in (*table.schema.names, delete_column)
    ]
    if not fields:
        return
    for field in fields:
        if field.name.startswith("_row") or not field.name or "." in field.name:
            raise SchemaMismatch(
                f"{table.uri}: column {field.name!r} cannot be added: a name must not be empty,"
                " contain a dot or begin with _row. Rename it"
            )
    table.core.lake.add_columns(fields)


def loosened(schema: pa.Schema) -> pa.Schema:
    """The columns as a created table keeps them: nothing inside one is NOT NULL."""
    return pa.schema([_loose(field, required=not field.nullable) for field in schema])


def _loose(field: pa.Field, *, required: bool) -> pa.Field:
    return pa.field(field.name, _nullable(field.type), nullable=not required)


def _nullable(dtype: pa.DataType) -> pa.DataType:
    """The type with every nested field nullable."""
    if pa.types.is_struct(dtype):
        return pa.struct([_loose(dtype.field(i), required=False) for i in range(dtype.num_fields)])
    if pa.types.is_list(dtype):
        return pa.list_(pa.field("element", _nullable(dtype.value_type)))
    if pa.types.is_map(dtype):
        return pa.map_(dtype.key_type, _nullable(dtype.item_type))
    return dtype
