"""Searches and lookups on executors: many queries or keys in, rows of the table out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.types import DoubleType, IntegerType, StructField, StructType

from weir.errors import InvalidInput
from weir.format.keys import pk_values
from weir.read.snapshot import Freshness
from weir.spark.places import Place, resolved
from weir.spark.types import arrow_schema, from_spark, spark_schema, to_spark

RANK: Final = "_rank"
SCORE: Final = "_score"
"""The distance of a neighbour, or the score of a text: what `Table.search` orders by."""
FOUND: Final = "found"


def search(
    queries: DataFrame,
    uri: str,
    column: str,
    *,
    query: str = "query",
    k: int = 10,
    filter: str | None = None,
    columns: Sequence[str] | None = None,
    freshness: Freshness = "durable",
    checkpoint: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """For each row of `queries` the `k` nearest rows of the table, searched in tasks.

    `query` names the column of vectors, or words, to look for. A row of the result is a row of
    `queries`, `_rank` (1 is nearest), `_score` (the distance, or for text the score) and `found`, a
    struct of `columns` of the table. The rest is as in `Table.search`. Each task reads the table as
    it is when the task runs; with `checkpoint` all tasks read the same rows.
    """
    place = Place(uri, dict(storage_options or {}))
    table = place.current()
    query = resolved(query, queries.columns)
    if query not in queries.columns:
        raise InvalidInput(f"the queries have no column {query!r}; they have {queries.columns}")
    row = spark_schema(table.schema, columns)
    schema = StructType(
        [
            *queries.schema.fields,
            StructField(RANK, IntegerType()),
            StructField(SCORE, DoubleType()),
            StructField(FOUND, row),
        ]
    )
    wanted = {"k": k, "filter": filter, "freshness": freshness, "checkpoint": checkpoint}
    run = _search_function(place, table.core.record.table_id, column, query, row, schema, wanted)
    return queries.mapInArrow(run, schema)


def _search_function(
    place: Place,
    table_id: UUID,
    column: str,
    query: str,
    row: StructType,
    schema: StructType,
    wanted: Mapping[str, Any],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        table = place.planned(table_id)
        target, names = arrow_schema(schema), row.fieldNames()
        for batch in batches:
            for number in range(batch.num_rows):
                asked = batch.column(query)[number].as_py()
                if asked is None:
                    continue
                found = table.search(column, asked, columns=names, **wanted)
                if found.num_rows:
                    yield _answer(batch, number, found, arrow_schema(row), target)

    return run


def _answer(
    batch: pa.RecordBatch, number: int, found: pa.Table, row: pa.Schema, target: pa.Schema
) -> pa.RecordBatch:
    count = found.num_rows
    score = "_distance" if "_distance" in found.column_names else SCORE
    rows = to_spark(found.select(row.names).combine_chunks().to_batches()[0], row)
    columns = [
        *batch.take(pa.array([number] * count)).columns,
        pa.array(range(1, count + 1), pa.int32()),
        found[score].combine_chunks().cast(pa.float64()),
        rows.to_struct_array(),
    ]
    casted = [c.cast(f.type) for c, f in zip(columns, target, strict=True)]
    return pa.RecordBatch.from_arrays(casted, schema=target)


def lookup(
    keys: DataFrame,
    uri: str,
    *,
    columns: Sequence[str] | None = None,
    freshness: Freshness = "durable",
    checkpoint: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """The rows of `keys`, each with `found`, a struct of `columns` of the table's row of that key.

    `keys` has the key columns and any others; `found` is null where the table has no such row. The
    table is not scanned: the tasks of `keys` read only what can hold one of the keys. Use it to
    join few rows with a large table. Each task reads the table as it is when the task runs; with
    `checkpoint` all tasks read the same rows.
    """
    place = Place(uri, dict(storage_options or {}))
    table = place.current()
    if not table.primary_key:
        raise InvalidInput(f"{table.uri} is append-only and has no key to look rows up by")
    names = [resolved(name, keys.columns) for name in table.primary_key]
    lacking = [name for name in names if name not in keys.columns]
    if lacking:
        raise InvalidInput(f"the keys have no column {lacking[0]!r}; they have {keys.columns}")
    row = _found(table.schema, columns)
    schema = StructType([*keys.schema.fields, StructField(FOUND, row)])
    wanted = {"freshness": freshness, "checkpoint": checkpoint}
    run = _lookup_function(place, table.core.record.table_id, names, row, schema, wanted)
    return keys.mapInArrow(run, schema)


def _found(schema: pa.Schema, columns: Sequence[str] | None) -> StructType:
    """The columns, all nullable: they are null for a key that the table does not have."""
    whole = spark_schema(schema, columns)
    return StructType([StructField(field.name, field.dataType) for field in whole])


def _lookup_function(
    place: Place,
    table_id: UUID,
    names: Sequence[str],
    row: StructType,
    schema: StructType,
    wanted: Mapping[str, Any],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        table = place.planned(table_id)
        target, shape = arrow_schema(schema), arrow_schema(row)
        key = table.primary_key
        types = pa.schema([table.schema.field(name) for name in key])
        both = list(dict.fromkeys([*shape.names, *key]))
        for batch in batches:
            asked = from_spark(batch.select(names).rename_columns(list(key)), types, None)
            known = pa.Table.from_batches([asked]).drop_null()
            found = table.get(known, columns=both, **wanted).combine_chunks()
            # A key with a null matches no row: its `found` stays null.
            at = pc.index_in(pk_values(asked, key), value_set=pk_values(found, key))
            rows = to_spark(_one_batch(found.select(shape.names)), shape).to_struct_array()
            arrays = [*batch.columns, rows.take(at)]
            casted = [a.cast(f.type) for a, f in zip(arrays, target, strict=True)]
            yield pa.RecordBatch.from_arrays(casted, schema=target)

    return run


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    if batches:
        return batches[0]
    empty = [pa.array([], field.type) for field in table.schema]
    return pa.RecordBatch.from_arrays(empty, schema=table.schema)
