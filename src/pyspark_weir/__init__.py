"""The Spark data source `weir`, found by Spark itself because of this package's name.

Spark imports it in every session, also those that never use weir: nothing is loaded here but
PySpark. What the source does is in `weir.spark`, imported when it is first used, in the process
that uses it (after Spark's daemon has forked).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]

_T = TypeVar("_T")


class DefaultSource(DataSource):
    """`format("weir")`: batch and stream, read and write."""

    @classmethod
    def name(cls) -> str:
        """The word after `format` and `USING`."""
        return "weir"

    def schema(self) -> StructType:
        """The table's columns, as Spark's types."""
        from weir.spark.catalog import ASK, answer
        from weir.spark.source import schema

        return _unwrap_errors(
            lambda: answer(self.options) if ASK in self.options else schema(self.options)
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read."""
        from weir.spark.reading import reader

        return _unwrap_errors(lambda: reader(self.options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001
        """A batch write."""
        from weir.spark.sink import batch_writer

        return _unwrap_errors(lambda: batch_writer(self.options, schema, overwrite=overwrite))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """The change feed."""
        from weir.spark.reading import stream_reader

        return _unwrap_errors(lambda: stream_reader(self.options, schema))

    def streamWriter(  # noqa: N802
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001
    ) -> DataSourceStreamWriter:
        """A stream written exactly once."""
        from weir.spark.sink import stream_writer

        return _unwrap_errors(lambda: stream_writer(self.options, schema, overwrite=overwrite))


def _unwrap_errors(call: Callable[[], _T]) -> _T:
    """Its result; what it raises leaves without the lines of code it came through.

    Spark puts a traceback before every message of a planner: what happened stands at the end of
    it, and is all that helps.
    """
    try:
        return call()
    except Exception as error:  # noqa: BLE001  whatever it is, it goes on
        told = error.with_traceback(None)
    told.__cause__ = told.__context__ = None
    raise told
