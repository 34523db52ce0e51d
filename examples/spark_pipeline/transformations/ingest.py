"""A declarative pipeline with a weir table as its sink, exactly once across restarts.

WEIR_TABLE is the URI of the table. Run: `spark-pipelines run --spec spark-pipeline.yml`
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
dp.create_sink(
    "events", format="weir", options={"path": os.environ["WEIR_TABLE"], "appId": "ingest"}
)


@dp.append_flow(target="events")
def to_events():
    rows = spark.readStream.schema("id long, v string").json(os.environ["WEIR_INPUT"])
    return rows.select("id", "v")
