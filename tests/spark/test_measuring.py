"""`weir.spark.measure`: micro-batches of the sink in the registry of the driver."""

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession

import weir.spark
from tests.spark.test_stream import run, source, write_input
from tests.support.spark import make_table
from tests.support.threads import until
from weir.env import Env


def samples(env: Env) -> dict[str, float]:
    families = text_string_to_metric_families(env.meters.page())
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_batches_into_weir_are_counted_and_others_are_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    env, table, folder = Env(), make_table(tmp_path), tmp_path / "in"
    weir.spark.measure(spark, env=env)
    for number in range(2):
        write_input(folder, number, {number: "a", number + 10: "b"})
    query = source(spark, folder).writeStream.format("noop").trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path / "other")).start().awaitTermination()
    run(source(spark, folder), table, tmp_path / "checkpoint")
    until(lambda: samples(env)["weir_spark_sink_batches_total"] == 2)
    found = samples(env)
    assert found["weir_spark_sink_rows_total"] == 4
    assert found["weir_spark_sink_batch_seconds_count"] == 2
    assert found["weir_spark_sink_batch_seconds_sum"] > 0
