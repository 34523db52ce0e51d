"""Write an endless stream, as from Kafka, exactly once, and read the table while it arrives."""

import tempfile

import pyarrow as pa
from pyspark.sql import SparkSession

import weir

folder = tempfile.mkdtemp()
spark = SparkSession.builder.master("local[2]").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("at", pa.timestamp("us", "UTC"))])
table = weir.create(f"{folder}/t", schema, primary_key="id", sharding=weir.Bucket("id", 2))

# Kafka: .format("kafka").option("subscribe", "clicks"), then from_json on the column `value`.
source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 500).load()
rows = source.selectExpr("value AS id", "timestamp AS at")
query = rows.writeStream.format("weir").option("checkpointLocation", f"{folder}/c").start(table.uri)
while (count := table.scan().to_table().num_rows) < 1000:
    query.awaitTermination(1)
query.stop()
print("1000 rows and more:", count >= 1000, "and none twice:", count % 500 == 0)
