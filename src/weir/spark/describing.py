"""What a table is, told to Spark: for SHOW CREATE TABLE, SHOW TBLPROPERTIES, DESCRIBE.

The properties are those that CREATE TABLE takes, so that what SHOW CREATE TABLE prints makes the
same table. What a CREATE TABLE cannot say is told by a property that it refuses, with what to do:
such a text fails, and does not make another table.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

import weir
from weir.config import WriterConfig
from weir.format.sharding import Bucket, Identity, PerWriter, Sharding
from weir.lake.api import Base
from weir.spark.types import arrow_schema, named_schema

KEY: Final = "weir.key"
"""In the metadata of a key column: its index in the key."""
TABLE: Final = "weir.table"
"""The field behind the columns whose metadata tells of the table."""
UNSAID: Final = {
    "arrowTypes": "create columns of these types with weir.create and a pyarrow schema",
    "expire": "create the table without it, then set the rule with table.set_expire",
}
"""Properties that only tell: what a CREATE TABLE of Spark cannot say."""


def marked_schema(table: weir.Table, columns: pa.Schema | None = None) -> StructType:
    """The table's columns, or `columns` of another moment, with key columns marked; and the table.

    One listing.
    """
    fields = []
    base = table.core.base()
    for field in named_schema(base.schema.plain if columns is None else columns):
        place = table.primary_key.index(field.name) if field.name in table.primary_key else None
        told = field.metadata if place is None else {**field.metadata, KEY: place}
        fields.append(StructField(field.name, field.dataType, field.nullable, told))
    return StructType([*fields, facts(table, base)])


def facts(table: weir.Table, base: Base) -> StructField:
    """The table's properties and sharding, as metadata of a field. No request."""
    told: dict[str, Any] = {"properties": json.dumps(properties(table, base))}
    sharding = table.sharding
    if isinstance(sharding, Bucket | Identity):
        told["column"] = sharding.column
    if isinstance(sharding, Bucket):
        told["buckets"] = sharding.num
    return StructField(TABLE, StringType(), True, told)


def properties(table: weir.Table, base: Base) -> dict[str, str]:
    """What CREATE TABLE would be told, and where the table is."""
    key, sharding = table.primary_key, table.sharding
    defaults = _changed(table.writer_defaults)
    types = _other_types(base.schema.plain)
    rule = base.expire
    return {
        "provider": "weir",
        "location": table.uri,
        "is_managed_location": "true",
        **({"primaryKey": name_list(key)} if key else {}),
        **({} if (by := shard_by(sharding)) is None else {"shardBy": by}),
        **({} if table.wal_uri is None else {"walUri": table.wal_uri}),
        **({"writerDefaults": json.dumps(defaults)} if defaults else {}),
        **({"arrowTypes": json.dumps(types)} if types else {}),
        **({} if rule is None else {"expire": str(rule)}),
    }


def name_list(names: tuple[str, ...]) -> str:
    """Names of columns as an option takes them."""
    return json.dumps(names) if any("," in name for name in names) else ",".join(names)


def shard_by(sharding: Sharding) -> str | None:
    """The sharding as the option `shardBy` takes it; None: one shard."""
    if isinstance(sharding, Bucket):
        return f"bucket({sharding.num}, {sharding.column})"
    if isinstance(sharding, PerWriter):
        return f"per_writer({sharding.silent_after_s:.3f}s)"
    return sharding.column if isinstance(sharding, Identity) else None


def _changed(config: WriterConfig) -> dict[str, object]:
    """The settings that are not the defaults; a table's record has durations as seconds."""
    usual = WriterConfig()
    ttl = usual.fence_ttl if config.fence_ttl_s == usual.fence_ttl_s else config.fence_ttl
    told = dataclasses.asdict(dataclasses.replace(config, fence_ttl=ttl))
    return {n: v for n, v in told.items() if v != getattr(usual, n)}


def _other_types(schema: pa.Schema) -> dict[str, str]:
    """Columns whose types Spark does not have: created by Spark, they would be others."""
    again = arrow_schema(named_schema(schema))
    return {
        field.name: str(field.type)
        for field, back in zip(schema, again, strict=True)
        if _nameless(field.type) != _nameless(back.type)
    }


def _nameless(dtype: pa.DataType) -> str:
    """The type as text, without the name of a list's items, which says nothing."""
    return str(dtype).replace("<element:", "<item:")
