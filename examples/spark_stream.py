"""Stream into a weir table exactly once, read its changes, and compact on executors."""

import tempfile
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

import weir
import weir.spark

folder = Path(tempfile.mkdtemp())
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")

schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])
table = weir.create(str(folder / "t"), schema, primary_key="id", sharding=weir.Bucket("id", 2))

(folder / "in").mkdir()
(folder / "in" / "0.json").write_text("\n".join(f'{{"id": {i}, "v": "a"}}' for i in range(1000)))
rows = spark.readStream.schema("id long, v string").json(str(folder / "in"))
query = (
    rows.writeStream.format("weir")
    .option("checkpointLocation", str(folder / "checkpoint"))
    .trigger(availableNow=True)
    .start(table.uri)
)
query.awaitTermination()
print(spark.read.format("weir").load(table.uri).count(), "rows")

feed = weir.spark.changes(spark, table.uri, options={"metadataColumns": "true"})
query = (
    feed.groupBy("_change")
    .count()
    .writeStream.outputMode("complete")
    .format("console")
    .option("checkpointLocation", str(folder / "feed"))
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()

print(weir.spark.compact(spark, table.uri, engine="spark", fold_wal=True).to_dict())
