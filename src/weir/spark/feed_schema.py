"""What a row of the change feed looks like in Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql.types import StructType

import weir
from weir.spark.places import flag
from weir.spark.types import spark_schema

CHANGE: Final = "_change"
"""'put' or 'delete'."""
SHARD: Final = "_shard"
POSITION: Final = "_position"
"""Where in the shard's log; null for rows of an initial snapshot."""
EPOCH: Final = "_epoch"

METADATA: Final = pa.schema(
    [
        pa.field(CHANGE, pa.string(), nullable=False),
        pa.field(SHARD, pa.string()),
        pa.field(POSITION, pa.int64()),
        pa.field(EPOCH, pa.int64()),
    ]
)


def wants_metadata(options: Mapping[str, str]) -> bool:
    """True when a feed is asked to say what happened to each row, and where."""
    return flag(options, "metadataColumns")


def feed_schema(table: weir.Table) -> StructType:
    """The table's columns, null in deletes but for the key, and the metadata columns."""
    key = set(table.primary_key)
    fields = [f if f.name in key else f.with_nullable(True) for f in table.schema]
    return spark_schema(pa.schema([*fields, *METADATA]))
