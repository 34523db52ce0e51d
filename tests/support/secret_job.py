"""A Spark application with an event log and three views of one table, each with its own secret.

`python secret_job.py TABLE EVENTS`: the secrets are `by-reference`, `hidden-by-regex` and
`plain-option`.
"""

import json
import os
import sys

from pyspark.sql import SparkSession

REGEX = "(?i)url|secret|key|token|sas|password"
KEY = "azure_storage_account_key"


def main() -> None:
    """Make and read the views."""
    uri, events = sys.argv[1:3]
    os.environ["LAKE_SECRET"] = json.dumps({KEY: "by-reference-value"})
    builder = SparkSession.builder.master("local[1]").appName("secrets")
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events,
        "spark.eventLog.compress": "false",
        "spark.executorEnv.LAKE_SECRET": os.environ["LAKE_SECRET"],
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    import weir.spark

    weir.spark.register(spark)

    def read(name: str, options: str) -> None:
        spark.sql(f"CREATE TEMPORARY VIEW {name} USING weir OPTIONS (path '{uri}', {options})")
        assert spark.table(name).count() == 3
        spark.table(name).groupBy("id").count().collect()

    read("referenced", "storageOptionsFrom 'LAKE_SECRET'")
    default = str(spark.conf.get("spark.sql.redaction.options.regex"))
    spark.conf.set("spark.sql.redaction.options.regex", REGEX)
    read("hidden", f"`storage.{KEY}` 'hidden-by-regex-value'")
    spark.conf.set("spark.sql.redaction.options.regex", default)
    read("plain", f"`storage.{KEY}` 'plain-option-value'")
    spark.stop()


if __name__ == "__main__":
    main()
