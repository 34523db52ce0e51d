"""A sink like weir's whose driver dies inside `commit`; tests/spark runs it as a program.

    python -m tests.support.dying_sink TABLE INPUT CHECKPOINT MOMENT

MOMENT: 'half' (some shards of batch 1 are committed) or 'whole' (all are, but Spark has not
recorded the commit).
"""

import os
import signal
import sys
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamWriter

from pyspark_weir import DefaultSource
from tests.support.spark import SHORT_LIVED
from weir.spark.sink import StreamWriter, stream_writer


class DyingSource(DefaultSource):
    """`format("dying")`."""

    @classmethod
    def name(cls) -> str:
        return "dying"

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        writer = stream_writer(self.options, schema, overwrite=overwrite)
        assert isinstance(writer, StreamWriter)
        return DyingWriter(writer, self.options["weir.moment"], int(self.options["weir.jvm"]))


class DyingWriter(StreamWriter):
    """Kills the JVM in the middle of batch 1."""

    def __init__(self, writer: StreamWriter, moment: str, jvm: int) -> None:
        super().__init__(writer._sink)
        self._moment = moment
        self._jvm = jvm

    def commit(self, messages: list[Any], batchId: int) -> None:
        if batchId != 1:
            super().commit(messages, batchId)
            return
        if self._moment == "half":
            for message in messages:
                kept = tuple(part for part in message.staged if part.value == 0)
                object.__setattr__(message, "staged", kept)
        super().commit(messages, batchId)
        os.kill(self._jvm, signal.SIGKILL)
        signal.pause()


def main() -> None:
    table, source, checkpoint, moment = sys.argv[1:]
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.extraJavaOptions", SHORT_LIVED)
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(DyingSource)
    assert spark._jvm is not None
    jvm = spark._jvm.java.lang.ProcessHandle.current().pid()
    rows = (
        spark.readStream.schema("id long, v string").option("maxFilesPerTrigger", "1").json(source)
    )
    query = (
        rows.writeStream.format("dying")
        .option("checkpointLocation", checkpoint)
        .option("weir.moment", moment)
        .option("weir.jvm", str(jvm))
        .trigger(availableNow=True)
        .start(table)
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
