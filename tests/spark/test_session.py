"""The suite's Spark session runs Python on its workers."""

import sys

from pyspark.sql import SparkSession


def test_workers_run_the_interpreter_of_the_suite(spark: SparkSession) -> None:
    found = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect()
    assert found == [sys.executable]


def test_arrow_goes_both_ways(spark: SparkSession) -> None:
    rows = spark.range(10).toArrow()
    assert spark.createDataFrame(rows).agg({"id": "sum"}).first()[0] == 45
