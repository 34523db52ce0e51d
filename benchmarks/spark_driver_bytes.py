"""What passes through the process that commits a write of Spark: bytes, and peak memory.

    python -m benchmarks.spark_driver_bytes [--rows 1000000] [--shards 4]

Tasks and the commit run weir's own code in processes of their own, as Spark's workers do, without a
JVM: through that pass the messages of the tasks only, whose size is told, too.
"""

import argparse
import os
import pickle
import resource
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("n", pa.int64()),
        pa.field("text", pa.string()),
    ]
)
TASKS = 4


def forked(work: Callable[[], Any]) -> Any:
    """What `work` returns, from a process of its own."""
    with tempfile.NamedTemporaryFile() as file:
        child = os.fork()
        if not child:
            code = 1
            try:
                Path(file.name).write_bytes(pickle.dumps(work()))
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        return pickle.loads(Path(file.name).read_bytes())


def batch(first: int, count: int, number: int) -> pa.RecordBatch:
    ids = np.arange(first, first + count)
    text = pa.array([f"{number}-{i:096d}" for i in range(count)])
    return pa.RecordBatch.from_arrays([pa.array(ids), pa.array(ids * number), text], schema=SCHEMA)


def writer(verb: str, uri: str, read: str | None) -> Any:
    from weir.spark.sink import batch_writer
    from weir.spark.types import spark_schema

    options = {"path": uri, **({"overwrite": "true"} if verb == "INSERT OVERWRITE" else {})}
    columns = spark_schema(SCHEMA)
    if read is not None:
        options |= {"weir.statement": read}
    return batch_writer(options, columns, overwrite=verb == "INSERT OVERWRITE")


def commit(verb: str, uri: str, read: str | None, messages: list[Any]) -> dict[str, float]:
    from weir.spark.places import Place
    from weir.store.local import LocalStore

    told = {"read": 0, "written": 0}
    get, puts = LocalStore.get, {n: getattr(LocalStore, n) for n in ("put_if_absent", "put")}

    def counted_get(self: LocalStore, path: str) -> Any:
        blob = get(self, path)
        told["read"] += len(blob.data)
        return blob

    def counting(put: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: LocalStore, path: str, data: Any) -> Any:
            told["written"] += memoryview(data).nbytes
            return put(self, path, data)

        return call

    committer = writer(verb, uri, read)
    Place(uri).current().core.base()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    LocalStore.get = counted_get  # type: ignore[method-assign]
    for name, put in puts.items():
        setattr(LocalStore, name, counting(put))
    committer.commit(messages)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {**told, "before": before / 1024, "peak": peak / 1024}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--shards", type=int, default=4)
    given = parser.parse_args()
    each = given.rows // TASKS
    folder = tempfile.mkdtemp()

    def make(uri: str) -> str:
        import weir
        from weir.spark.snapshots import RoutedSnapshot

        sharding = weir.Bucket("id", given.shards)
        table = weir.create(uri, SCHEMA, primary_key="id", sharding=sharding)
        with table.writer() as one:
            one.put(batch(0, 1000, 0))
        return RoutedSnapshot.take(table).to_json()

    def task(verb: str, uri: str, read: str | None, number: int) -> Any:
        from weir.spark import sink

        class Context:
            @staticmethod
            def get() -> Any:
                return None

        sink.TaskContext = Context  # type: ignore[misc,assignment]
        rows = batch(number * each, each, 1)
        return writer(verb, uri, read).write(
            iter(rows.slice(i, 10_000) for i in range(0, each, 10_000))
        )

    for verb in ("INSERT", "MERGE", "INSERT OVERWRITE"):
        uri = f"{folder}/{verb}"
        read = forked(lambda uri=uri: make(uri))
        read = read if verb == "MERGE" else None
        messages = [
            forked(lambda verb=verb, uri=uri, read=read, n=n: task(verb, uri, read, n))
            for n in range(TASKS)
        ]
        staged = sum(file.bytes for message in messages for file in message.staged)
        told = forked(lambda: commit(verb, uri, read, messages))  # noqa: B023
        sizes = len(pickle.dumps(messages))
        print(
            f"{verb}: staged {staged >> 20} MiB, read {told['read'] >> 20} MiB, written"
            f" {told['written'] >> 20} MiB by the commit, peak {told['peak']:.0f} MiB"
            f" ({told['before']:.0f} before), messages {sizes} bytes",
            flush=True,
        )


if __name__ == "__main__":
    main()
