"""Change events of Debezium as rows and deletes."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from weir.errors import InvalidInput

DELETED: Final = "_delete"
"""The column that says whether a row is a delete: for the option `deleteColumn`."""
_ENVELOPE: Final = ("before", "after", "op")


def debezium(
    df: DataFrame, schema: StructType | str | None = None, *, column: str = "value"
) -> DataFrame:
    """The rows that change events bring, with a column `_delete` for `delete_column`.

    `df` holds envelopes: columns `before`, `after` and `op`, alone or in a struct `payload`. Or it
    holds them as JSON text or bytes in `column`, as Kafka does; `schema` then gives the columns of
    the table (`"id bigint, v string"`). Creates, reads and updates become rows, deletes become
    deletes of their key. Kafka tombstones and events that change nothing are left out, and a
    truncate fails the query: it has no rows. Events of one key must arrive in order, as they do
    from one partition of a topic.
    """
    if schema is not None:
        fields = schema if isinstance(schema, StructType) else StructType.fromDDL(schema)
        row = fields.simpleString()
        envelope = f"struct<before:{row},after:{row},op:string>"
        text = F.col(column).cast("string")
        event = F.from_json(text, f"struct<payload:{envelope},before:{row},after:{row},op:string>")
        df = df.select(event.alias("event")).select(
            *(F.coalesce(f"event.payload.{n}", f"event.{n}").alias(n) for n in _ENVELOPE)
        )
    elif "payload" in df.columns:
        df = df.select("payload.*")
    lacking = [name for name in _ENVELOPE if name not in df.columns]
    if lacking:
        raise InvalidInput(
            f"the DataFrame has no column {lacking[0]!r}, only {df.columns}: not a Debezium"
            " envelope. If the events are JSON, pass the table's columns as schema"
        )
    gone = F.col("op") == "d"
    message = (
        "the change events contain a truncate (op = 't'), which names no rows to delete. Delete the"
        " rows yourself, and filter the event out"
    )
    refused = F.raise_error(F.lit(message)).cast("boolean")
    kept = F.when(F.col("op") == "t", refused).otherwise(F.col("op").isin("c", "r", "u", "d"))
    events = df.where(F.coalesce(kept, F.lit(False)))
    whole = F.when(gone, F.col("before")).otherwise(F.col("after"))
    rows = events.select(whole.alias("row"), gone.alias(DELETED)).where(F.col("row").isNotNull())
    return rows.select("row.*", DELETED)
