"""Choose the reader for a map of options."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from weir.spark.feed import WeirFeed
from weir.spark.feed_schema import wants_images
from weir.spark.image_feed import ChangesBetween, ImageFeed
from weir.spark.options import canonical_options
from weir.spark.pushdown import PushdownReader
from weir.spark.source import WeirReader


def reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """A batch read: of the table, or of its changes between two moments."""
    if wants_images(canonical_options(options)):
        return ChangesBetween(options, schema)
    kind = PushdownReader if "weir.pushes" in options else WeirReader
    return kind(options, schema)


def stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """The change feed, with or without the rows before each change."""
    kind = ImageFeed if wants_images(canonical_options(options)) else WeirFeed
    return kind(options, schema)
