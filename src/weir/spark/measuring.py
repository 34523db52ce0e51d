"""Micro-batches of weir's sink in the registry of the driver's process.

The sink writes and commits in worker processes of Spark, also on the driver's machine, and Spark's
interface of Python data sources has no metrics. What reaches the driver is Spark's own progress of
each query: a listener counts it.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from weir.env import SYSTEM, Env, takes_env
from weir.meters import SINK_BATCHES, SINK_ROWS, SINK_SECONDS, Meters

OURS: Final = ("weir[", "org.apache.spark.sql.execution.datasources.v2.python.PythonTable@")
"""How Spark describes the sink: by its catalog name, or by path, where it names no source."""
_WRITTEN: Final = "addBatch"
"""The part of a trigger in which the batch is written; a trigger without a batch has none."""


@takes_env
def measure(spark: SparkSession, *, env: Env = SYSTEM) -> None:
    """Count the micro-batches of the session's streams into weir, for `weir.metrics` or `otel`.

    Call it once in the driver, before the queries start: twice counts twice. A table by path cannot
    be told from another data source in Python, so batches into such a one count, too.
    """
    env.meters.turn_on()
    spark.streams.addListener(_Batches(env.meters))


class _Batches(StreamingQueryListener):
    def __init__(self, meters: Meters) -> None:
        self._meters = meters

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Nothing was written yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """A trigger has ended."""
        _count(self._meters, event.progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """There was nothing to write."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Its last batch was counted."""


def _count(meters: Meters, progress: StreamingQueryProgress) -> None:
    took = progress.durationMs.get(_WRITTEN)
    if took is not None and progress.sink.description.startswith(OURS):
        batch = (SINK_BATCHES, 1), (SINK_ROWS, progress.numInputRows), (SINK_SECONDS, took / 1000)
        meters.record(*batch)
