"""The main job from end to end, each result compared with the generator: `make demo`.

Orders stream into a table through Spark while another reader counts them; one writer is killed, one
is frozen and wakes up after a takeover; Spark compacts; a checkpoint is cloned; garbage is
collected. Exit status 1 if one row is lost, doubled or wrong.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
from orders import SCHEMA, Orders
from rich.console import Console

import weir

HERE = Path(__file__).resolve().parent
SHARDS = 4
MICRO_BATCHES = 4
SPARK_SCHEMA = (
    "id BIGINT, status STRING, cents BIGINT, revision INT, embedding ARRAY<FLOAT>,"
    " _tombstone BOOLEAN"
)


class Demo:
    """What the steps share, and what they print."""

    def __init__(self, root: str, options: dict[str, str], scratch: Path, rows: int) -> None:
        self.console = Console(highlight=False)
        self.root, self.options, self.scratch = root, options, scratch
        self.orders = Orders(seed=7)
        self.size = rows // 20
        self.files = 0
        self.checks = self.failed = 0
        self.table = weir.create(
            f"{root}/orders",
            SCHEMA,
            primary_key="id",
            sharding=weir.Bucket("id", SHARDS),
            storage_options=options,
        )

    @contextlib.contextmanager
    def step(self, title: str):
        """Time a step; its facts are printed below its title."""
        began = time.monotonic()
        self.console.print(f"[bold]{title}[/]")
        yield
        self.say(f"{time.monotonic() - began:.1f} s")

    def say(self, text: str) -> None:
        self.console.print(f"    {text}", style="dim", markup=False)

    def check(self, claim: str, *, held: bool) -> None:
        self.checks += 1
        self.failed += not held
        self.console.print(
            f"  {'[green]✓[/]' if held else '[bold red]✗[/]'} {claim}", soft_wrap=True
        )

    def write_file(self, folder: str, size: int | None = None) -> Path:
        """The next events in a file of its own."""
        target = self.scratch / folder
        target.mkdir(exist_ok=True)
        self.files += 1
        path = target / f"{self.files:05d}.parquet"
        pq.write_table(self.orders.batch(size or self.size), path)
        # Spark's file source orders by modification time; files of equal times have no order.
        os.utime(path, (1_700_000_000 + self.files,) * 2)
        return path

    def put(self, files: list[Path]) -> None:
        with self.table.writer() as writer:
            for file in files:
                writer.put(pq.read_table(file))

    def compare(self, claim: str, table=None, rows=None, *, but=None, checkpoint=None) -> None:
        """Compare every row of the table with those that the generator remembers."""
        expected = dict(self.orders.rows if rows is None else rows)
        columns = ["id", "status", "cents", "revision"]
        found = (table or self.table).scan(columns=columns, checkpoint=checkpoint).to_table()
        if but is not None:
            found = found.filter(pc.invert(pc.is_in(found["id"], but)))
            expected = {k: v for k, v in expected.items() if k not in set(but.to_pylist())}
        values = zip(*(found[name].to_pylist() for name in columns[1:]), strict=True)
        same = dict(zip(found["id"].to_pylist(), values, strict=True)) == expected
        held = same and found.num_rows == len(expected)
        self.check(f"{claim}: {found.num_rows:,} rows, each as expected", held=held)


class Writer:
    """The process that is killed or frozen."""

    def __init__(self, demo: Demo, files: list[Path]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, HERE / "writer.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.go_on(
            json.dumps(
                {
                    "uri": demo.table.uri,
                    "storage_options": demo.options,
                    "files": [str(file) for file in files],
                }
            )
        )

    def go_on(self, line: str = "") -> None:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def stream(demo: Demo, spark) -> None:
    """Each file is a micro-batch; the last one is sent twice, as after a lost commit."""
    for _ in range(MICRO_BATCHES):
        demo.write_file("incoming", demo.size * 2)
    if spark is None:
        demo.put(sorted((demo.scratch / "incoming").iterdir()))
        demo.compare("the stream")
        return
    counts, done = [], threading.Event()

    def count() -> None:
        while not done.wait(0.5):
            counts.append(demo.table.count())

    reader = threading.Thread(target=count)
    reader.start()
    try:
        batches = run_query(demo, spark)
        checkpoint = demo.scratch / "query" / "commits"
        last = max((p for p in checkpoint.iterdir() if p.name.isdigit()), key=lambda p: int(p.name))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
        again = run_query(demo, spark)
    finally:
        done.set()
        reader.join()
    demo.say(f"Structured Streaming, {batches} micro-batches; {again} sent twice, applied once")
    demo.say(f"{len(counts)} fresh counts by another reader meanwhile: {sorted(set(counts))}")
    demo.compare("the stream, exactly once")


def run_query(demo: Demo, spark) -> int:
    source = spark.readStream.schema(SPARK_SCHEMA).option("maxFilesPerTrigger", 1)
    writer = source.parquet(str(demo.scratch / "incoming")).writeStream.format("weir")
    writer = writer.option("checkpointLocation", str(demo.scratch / "query"))
    writer = writer.option("deleteColumn", "_tombstone")
    for name, value in demo.options.items():
        writer = writer.option(f"storage.{name}", value)
    query = writer.trigger(availableNow=True).start(demo.table.uri)
    query.awaitTermination()
    return len({p["batchId"] for p in query.recentProgress if p["numInputRows"]})


def kill(demo: Demo) -> None:
    """Every row whose put was acknowledged is there, and a new writer takes over."""
    files = [demo.write_file("killed") for _ in range(2)]
    remembered = dict(demo.orders.rows)
    third = demo.write_file("killed")
    files.append(third)
    writer = Writer(demo, files)
    for _ in range(2):
        assert writer.hear().isdigit()
        writer.go_on()
    writer.process.send_signal(signal.SIGKILL)
    writer.end()
    # The file in flight was not acknowledged: its keys may be there or not.
    demo.compare("every acknowledged row", rows=remembered, but=pq.read_table(third)["id"])
    with demo.table.writer() as taker:
        taker.put(pq.read_table(third))
        found = [w.stats() for w in taker.shard_writers().values()]
    entries = sum(w.replayed_entries for w in found)
    demo.say(f"the next writer fenced each log and replayed {entries} entries of the dead one")
    demo.compare("after the takeover")


def freeze(demo: Demo) -> None:
    """A writer sleeps through a takeover; when it wakes up, it can acknowledge nothing."""
    files = [demo.write_file("frozen") for _ in range(3)]
    writer = Writer(demo, files)
    assert writer.hear() == "1"
    writer.process.send_signal(signal.SIGSTOP)
    os.waitpid(writer.process.pid, os.WUNTRACED)
    demo.put(files[1:])
    writer.process.send_signal(signal.SIGCONT)
    writer.go_on()
    said = writer.hear()
    writer.end()
    demo.check(f"the zombie was refused: {said}", held=said.startswith("fenced"))
    demo.compare("after it woke up")


def compact(demo: Demo, spark) -> None:
    if spark is None:
        demo.table.compact()
    else:
        uri, options = demo.table.uri, demo.options
        report = weir.spark.compact(spark, uri, engine="spark", storage_options=options)
        rows = weir.spark.scan(spark, uri, storage_options=options).count()
        demo.say(f"{report.sstables} SSTables in one commit; Spark counts {rows:,} rows")
    base = demo.table.scan(freshness="base").count()
    demo.check("any Lance reader sees every row", held=base == len(demo.orders.rows))


def clone(demo: Demo) -> dict:
    demo.table.checkpoint(scope="durable", name="demo", ttl="1h")
    moment = dict(demo.orders.rows)
    demo.put([demo.write_file("later")])
    copy = demo.table.clone(f"{demo.root}/copy", checkpoint="demo")
    gone = sorted(moment)[:10]
    with copy.writer() as writer:
        writer.delete(gone)
    left = {k: v for k, v in moment.items() if k not in gone}
    demo.compare("the clone has the rows of the checkpoint, less ten of its own", copy, left)
    demo.compare("the table has the rows put since")
    return moment


def collect(demo: Demo) -> None:
    demo.table.compact()
    report = demo.table.gc(min_age=0, fence_retention="2m")
    demo.say(f"{report.deleted:,} objects, {report.deleted_bytes / 2**20:.1f} MiB")
    demo.check("garbage was deleted, without an error", held=report.ok and report.deleted > 0)


def verify(demo: Demo, moment: dict) -> None:
    table = weir.open(demo.table.uri, storage_options=demo.options)
    demo.compare("the table, opened anew", table)
    demo.compare("the checkpoint", table, moment, checkpoint="demo")
    key = min(demo.orders.rows)
    vector = table.get([key], columns=["embedding"])["embedding"][0].as_py()
    near = table.search("embedding", vector, k=1, columns=["id"])
    demo.check("a search by vector", held=near["id"].to_pylist() == [key])


def start_spark(scratch: Path):
    """A session, or None when PySpark is not there."""
    if importlib.util.find_spec("pyspark") is None:
        return None
    from weir.spark.session import session

    warnings.simplefilter("ignore")  # of PySpark about pandas, of Lance about the start of the JVM
    with (scratch / "spark.log").open("w") as log, quiet(log):
        spark = session(
            "weir-demo",
            {
                "spark.master": "local[2]",
                "spark.driver.memory": "1g",
                "spark.sql.warehouse.dir": str(scratch / "warehouse"),
                "spark.sql.shuffle.partitions": "4",
            },
        )
    spark.sparkContext.setLogLevel("OFF")
    return spark


@contextlib.contextmanager
def quiet(log):
    """Standard error of processes that start meanwhile goes into `log`: Spark greets at length."""
    kept = os.dup(2)
    os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextlib.contextmanager
def place(store: str, keep: Path | None):
    """The root for tables and its storage options, and a folder for all else."""
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weir-demo-")))
        if store == "s3":
            from weir.testing.seaweed import SeaweedServer

            server = stack.enter_context(SeaweedServer())
            yield server.make_bucket("demo"), server.storage_options(), scratch
        else:
            yield str((keep or scratch / "tables").absolute()), {}, scratch


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--store", choices=["local", "s3"], default="local")
    parser.add_argument("--rows", type=int, default=20_000, help="events in the stream")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave the tables there")
    parser.add_argument("--no-spark", action="store_true", help="do it all in this process")
    asked = parser.parse_args()
    with place(asked.store, asked.keep) as (root, options, scratch):
        spark = None if asked.no_spark else start_spark(scratch)
        demo = Demo(root, options, scratch, asked.rows)
        where = "in this process" if spark is None else f"on Spark {spark.version}"
        try:
            with demo.step(f"Stream orders into {demo.table.uri}, {where}"):
                stream(demo, spark)
            with demo.step("Kill a writer"):
                kill(demo)
            with demo.step("Freeze a writer, take over, wake it up"):
                freeze(demo)
            with demo.step(f"Compact, {where}"):
                compact(demo, spark)
            with demo.step("Make a checkpoint, write on, clone the checkpoint"):
                moment = clone(demo)
            with demo.step("Collect garbage"):
                collect(demo)
            with demo.step("Verify"):
                verify(demo, moment)
        finally:
            if spark is not None:
                spark.stop()
    held = demo.checks - demo.failed
    demo.console.print(f"\n[bold]{held} of {demo.checks} checks held[/]; next: docs/quickstart.md")
    return 1 if demo.failed else 0


if __name__ == "__main__":
    sys.exit(main())
