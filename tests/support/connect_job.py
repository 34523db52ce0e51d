"""weir on a Spark Connect server of its own, then in a declarative pipeline on the same server.

    python -m tests.support.connect_job FOLDER SPEC

tests/spark runs it as a program: a process has either a classic session or a Connect one.
"""

import json
import sys
from pathlib import Path

import pyarrow as pa
from pyspark.pipelines import cli
from pyspark.sql import DataFrame, SparkSession

import weir
import weir.spark
from tests.support.spark import SHORT_LIVED

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.utf8())])


def main() -> None:
    folder, spec = sys.argv[1:]
    spark = (
        SparkSession.builder.remote("local[2]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.extraJavaOptions", SHORT_LIVED)
        .getOrCreate()
    )
    uri = f"{folder}/t"
    weir.create(uri, SCHEMA, primary_key="id", sharding=weir.Bucket("id", 2))
    told: list[int] = []
    rows = spark.range(100).selectExpr("id", "'a' AS v")
    weir.spark.write(rows, uri, progress=lambda _kind, done, _total: told.append(done))
    spark.range(90, 110).selectExpr("id", "'b' AS v").write.format("weir").mode("append").save(uri)
    found = {
        "session": type(spark).__module__,
        "source": _count(spark.read.format("weir").load(uri)),
        "scan": _count(weir.spark.scan(spark, uri, filter="id >= 50")),
        "engine": weir.spark.compact(spark, uri, engine="spark", fold_wal=True).engine,
        "base": _count(spark.read.format("weir").option("freshness", "base").load(uri)),
        "told": max(told, default=0),
        "past": by_name(spark, folder),
    }
    print("FOUND", json.dumps(found))
    cli.run(Path(spec), [], False, [], False)


def by_name(spark: SparkSession, folder: str) -> dict[str, int]:
    """Create a table, stream it to another and change it; its rows at an earlier checkpoint."""
    weir.spark.register(spark, catalog="lake", root=f"{folder}/lake")
    key = "TBLPROPERTIES (primaryKey = 'id')"
    spark.sql(f"CREATE TABLE lake.db.t {key} AS SELECT id, 'a' AS v FROM range(6)")
    spark.sql("CREATE TABLE lake.db.copy (id BIGINT NOT NULL, v STRING, PRIMARY KEY (id))")
    spark.sql("CALL lake.system.checkpoint('db.t', name => 'six')")
    query = (
        spark.readStream.table("lake.db.t")
        .writeStream.option("checkpointLocation", f"{folder}/streamed")
        .trigger(availableNow=True)
        .toTable("lake.db.copy")
    )
    query.awaitTermination()
    spark.sql(
        "MERGE INTO lake.db.t t USING (SELECT id, 'b' AS v FROM range(4, 9)) s ON t.id = s.id"
        " WHEN MATCHED AND s.id = 5 THEN DELETE"
        " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    return _count(spark.sql("SELECT * FROM lake.db.t VERSION AS OF 'six'"))


def _count(df: DataFrame) -> dict[str, int]:
    return {row["v"]: row["count"] for row in df.groupBy("v").count().collect()}


if __name__ == "__main__":
    main()
