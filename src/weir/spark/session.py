"""A Spark session for programs that have none yet, such as the command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from weir.errors import InvalidInput
from weir.spark.failures import WORKERS, weir_error_in

LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}
"""Quiet, and reachable from this machine only."""


def session(app: str = "weir", settings: Mapping[str, str] | None = None) -> SparkSession:
    """The active session, or a new one as the environment configures it, or else a local one.

    The cluster is chosen in Spark's usual ways: `SPARK_REMOTE`, `spark-defaults.conf` in
    `SPARK_CONF_DIR`, or `settings`.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    builder = SparkSession.builder.appName(app)
    chosen = dict(settings or {})
    if not {"SPARK_REMOTE", "SPARK_CONF_DIR", "MASTER"}.intersection(os.environ):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        chosen = {"spark.master": "local[*]", **LOCAL, **chosen}
    for name, value in chosen.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    if "SPARK_REMOTE" not in os.environ:
        made.sparkContext.setLogLevel("ERROR")
    return made


def is_connect(spark: SparkSession) -> bool:
    """Whether the session is a client of Spark Connect."""
    return not hasattr(spark, "_jsparkSession")


def is_found(spark: SparkSession) -> bool:
    """Whether a Connect server finds the source "weir" by itself; False where it does not matter.

    A source that a client registers sends its tasks' counters to that client, whatever the session
    does, and PySpark 4.3 then ends a declarative pipeline with `UNKNOWN_RESPONSE`.
    """
    if not is_connect(spark):
        return False
    try:
        return bool(spark.read.format("weir").option("weir.ask", "procedures").load().schema)
    except PySparkException:
        return False


def require_workers(spark: SparkSession) -> None:
    """`InvalidInput` when the Python of the workers does not have weir. One task.

    A driver in a virtual environment that is not active starts workers with another Python, and
    without this check they would fail in the middle of a job.
    """

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import sys

        for _ in batches:
            try:
                import pyspark_weir  # noqa: F401
            except ModuleNotFoundError:
                lacking = sys.executable
            else:
                lacking = ""
            yield pa.RecordBatch.from_pydict({"python": [lacking]})

    try:
        rows = spark.range(0, 1, 1, 1).mapInArrow(look, "python string").collect()
    except PySparkException as error:
        found = weir_error_in(str(error))
        if found is not None:
            raise found from None
        raise
    lacking = rows[0]["python"]
    if lacking:
        raise InvalidInput(f"{lacking}: {WORKERS}")
