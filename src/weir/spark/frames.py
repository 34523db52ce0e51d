"""A snapshot's partitions as a DataFrame that weir planned itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import weir
from weir.spark.places import Place
from weir.spark.runner import run_each
from weir.spark.source import Part, read_part
from weir.spark.types import arrow_schema, spark_schema, to_spark


def frame_of(
    spark: SparkSession,
    place: Place,
    table: weir.Table,
    parts: Sequence[Part],
    *,
    columns: Sequence[str] | None = None,
    filter: str | None = None,
) -> DataFrame:
    """The rows of `parts`, one task for each part."""
    schema = spark_schema(table.schema, columns)
    run = _scan_function(place, parts, arrow_schema(schema), filter)
    return run_each(spark, parts, run, schema)


def _scan_function(
    place: Place, parts: Sequence[Part], target: pa.Schema, filter: str | None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                part = parts[number]
                table = place.planned(part["table"])
                for rows in read_part(table, part, columns=target.names, filter=filter):
                    yield to_spark(rows, target)

    return run
