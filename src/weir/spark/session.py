"""A Spark session for those who have none yet: the command line and the demo."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession

LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}
"""Quiet, and reachable from this machine only."""


def session(app: str = "weir", settings: Mapping[str, str] | None = None) -> SparkSession:
    """The active session, or a new one as the environment configures it; else a local one.

    A cluster is chosen as Spark always does: `SPARK_REMOTE`, `spark-defaults.conf` in
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
        made.sparkContext.setLogLevel("OFF" if app == "weir-demo" else "ERROR")
    return made
