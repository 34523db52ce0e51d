"""Run `spark_sql.sql`: tables by name, changed in place, streamed, compacted, and time travel."""

import re
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

import weir.spark

folder = tempfile.mkdtemp()
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
weir.spark.register(spark, catalog="shop", root=folder)

text = Path(__file__).with_suffix(".sql").read_text()
for part in re.split(r";\n", text):
    target = re.search(r"^-- stream into (\S+)", part, re.MULTILINE)
    result = spark.sql(re.sub(r"(?m)^--.*$", "", part).strip() or "SELECT 1")
    if target:
        query = (
            result.writeStream.outputMode("update")  # an upsert by the key of the target
            .option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True)
            .toTable(target.group(1))
        )
        query.awaitTermination()
    elif result.columns and "SELECT" in part:
        result.show()
