"""Rows laid out so that each task holds whole shards: computed in the JVM, checked in the task.

Lance's bucket hash is Spark's own `hash` with seed 0. Spark's seed is fixed, but each argument is
seeded with the hash of the one before, and -1693959553 is the number whose hash with Spark's seed
is 0. `repartitionById` sends number i to task i, exactly; `repartition` does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import IntegerType, StructType

import weir
from weir.errors import InvalidInput
from weir.format.bucket import bucket
from weir.format.sharding import Bucket, Identity
from weir.spark.places import backquoted, resolved

OPTION: Final = "layout"
"""'n:column': each row is in the task of its bucket of n. Set by `weir.spark.write`."""
SEED_ZERO: Final = -1693959553
IDENTITY_TASKS: Final = 16


@dataclass(frozen=True)
class Layout:
    """How rows are spread over tasks. Without a column all rows are in task 0."""

    column: str | None
    tasks: int

    def to_option(self) -> str:
        """As an option of the data source."""
        return f"{self.tasks}:{self.column or ''}"

    @staticmethod
    def from_options(options: Mapping[str, str]) -> Layout | None:
        """The layout that the options promise to a writer, or None."""
        text = options.get(OPTION)
        if text is None:
            return None
        tasks, _, column = text.partition(":")
        if not tasks.isdigit() or not int(tasks):
            raise InvalidInput(
                f"option {OPTION} must be a value that weir.spark.layout returned, got {text!r}"
            )
        return Layout(column or None, int(tasks))

    def check_table(self, table: weir.Table) -> None:
        """`InvalidInput` unless a shard's rows are all in one task under this layout."""
        sharding = table.sharding
        fits = self.tasks == 1 or (
            isinstance(sharding, Bucket | Identity) and sharding.column == self.column
        )
        if isinstance(sharding, Bucket) and self.tasks > 1:
            fits = fits and sharding.num == self.tasks
        if not fits:
            raise InvalidInput(
                f"{table.uri}: option {OPTION} {self.to_option()!r} does not fit the table's"
                f" sharding {sharding}. Use weir.spark.write, compute it again with"
                " weir.spark.layout, or leave it out"
            )

    def check_rows(self, batch: pa.RecordBatch, task: int) -> None:
        """`InvalidInput` when the layout puts one of the rows in another task (P-1)."""
        if self.column is None:
            wrong = task != 0
        else:
            wrong = bool((bucket(batch.column(self.column), self.tasks) != np.int32(task)).any())
        if wrong:
            raise InvalidInput(
                f"task {task} holds rows that belong to another task in the layout"
                f" {self.to_option()!r}; use weir.spark.write, or leave the option {OPTION} out."
                " This task wrote nothing"
            )


def layout_of(table: weir.Table) -> Layout | None:
    """The layout that keeps the table's shards together; None where Spark's hash differs."""
    sharding = table.sharding
    if not isinstance(sharding, Bucket | Identity):
        return Layout(None, 1)
    dtype = table.schema.field(sharding.column).type
    if pa.types.is_uint32(dtype) or pa.types.is_uint64(dtype):
        return None  # Spark holds these in wider types, whose hash differs
    tasks = sharding.num if isinstance(sharding, Bucket) else IDENTITY_TASKS
    return Layout(sharding.column, tasks)


def lay_out(df: DataFrame, layout: Layout, schema: StructType) -> DataFrame:
    """The same rows, each in the task of its bucket.

    `schema` has the layout's column as the table has it: it is hashed as its type there, whatever
    its type in `df`.
    """
    if layout.column is None:
        return df.repartitionById(1, F.lit(0))
    name = backquoted(resolved(layout.column, df.columns))
    stored = schema[layout.column].dataType.simpleString()
    number = F.expr(f"(hash({SEED_ZERO}, cast({name} as {stored})) & 2147483647) % {layout.tasks}")
    return df.repartitionById(layout.tasks, number.cast(IntegerType()))
