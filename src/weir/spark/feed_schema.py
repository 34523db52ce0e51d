"""The schema of the change feed in Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql.types import StructType

import weir
from weir.errors import InvalidInput
from weir.spark.places import flag
from weir.spark.types import spark_schema

CHANGE: Final = "_change"
"""'put' or 'delete'."""
CHANGE_TYPE: Final = "_change_type"
"""'insert', 'update_preimage', 'update_postimage' or 'delete'."""
SHARD: Final = "_shard"
POSITION: Final = "_position"
"""The position in the shard's log; null for rows of an initial snapshot."""
EPOCH: Final = "_epoch"

PLACES: Final = (
    pa.field(SHARD, pa.string()),
    pa.field(POSITION, pa.int64()),
    pa.field(EPOCH, pa.int64()),
)
METADATA: Final = pa.schema([pa.field(CHANGE, pa.string(), nullable=False), *PLACES])
IMAGES: Final = pa.schema([pa.field(CHANGE_TYPE, pa.string(), nullable=False), *PLACES])


def wants_metadata(options: Mapping[str, str]) -> bool:
    """True when the feed has columns that say what happened to each row, and where."""
    return flag(options, "metadataColumns")


def wants_images(options: Mapping[str, str]) -> bool:
    """True when changes come with the rows that they changed."""
    if not flag(options, "readChangeFeed"):
        return False
    for name in ("metadataColumns", "deletes"):
        if name.lower() in options:
            raise InvalidInput(
                f"option {name} cannot be combined with readChangeFeed, which returns every change;"
                f" leave {name} out"
            )
    return True


def feed_schema(table: weir.Table, more: pa.Schema = METADATA) -> StructType:
    """The table's columns, null in deletes except for the key, and the metadata columns."""
    key = set(table.primary_key)
    fields = [f if f.name in key else f.with_nullable(True) for f in table.schema]
    return spark_schema(pa.schema([*fields, *more]))


def require_columns(schema: StructType, more: pa.Schema) -> None:
    """`InvalidInput` when a read lacks the first column of `more`, which gives rows their meaning.

    A table read by its catalog name has only its own columns, whatever the options say.
    """
    needed = more.names[0]
    if needed not in schema.fieldNames():
        raise InvalidInput(
            f"the change feed needs the column {needed!r}, but this read has {schema.fieldNames()}:"
            " a table read by its catalog name has only its own columns. Read the feed by path:"
            " load(path), or weir.spark.changes(spark, uri, options=...)"
        )
