"""The demo from end to end, with every count checked against the generator."""

from __future__ import annotations

import json
import shutil
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.markup import escape

import weir
from weir.colors import THEME
from weir.demo.engines import Engine, InProcess, why_no_spark
from weir.demo.place import Place, place
from weir.demo.processes import Victim
from weir.demo.show import Show, Step
from weir.demo.stream import SCHEMA, Orders

SHARDS = 4
FILES = 60
STREAM_FILES = 10
PAUSE_S = 0.02
READ_EVERY_S = 1.0
CHECKED = ["id", "status", "cents", "revision"]


@dataclass
class Demo:
    """What the steps share."""

    place: Place
    show: Show
    orders: Orders
    engine: Engine
    table: weir.Table
    rows: int
    files: int = 0
    figures: dict[str, Any] = field(default_factory=dict)

    def write_files(self, count: int, rows: int | None = None) -> list[tuple[Path, pa.Table]]:
        """`count` files with the next events, each with what the table must hold after it."""
        rows = self.rows // FILES if rows is None else rows
        made = []
        for _ in range(count):
            path = self.place.scratch / f"events-{self.files:05d}.parquet"
            self.files += 1
            pq.write_table(self.orders.batch(rows), path)
            made.append((path, self.orders.expected()))
        return made

    def put_all(self, files: list[Path]) -> weir.TableWriter:
        """Put the files through a writer of this process and close it."""
        with self.table.writer() as writer:
            for file in files:
                writer.put(pq.read_table(file))
        return writer


def run(
    *,
    store: str = "local",
    rows: int = 60_000,
    use_spark: bool = True,
    keep: Path | None = None,
    seed: int = 7,
    as_json: bool = False,
) -> bool:
    """Run the demo; True when every check held."""
    console = Console(stderr=as_json, highlight=False, quiet=as_json, theme=THEME)
    show = Show(console)
    where = "local disk" if store == "local" else "S3 (its own SeaweedFS server)"
    console.print(f"[bold]weir demo[/]  {rows:,} events of a shop, {SHARDS} shards, {where}\n")
    with place(store, keep) as here:
        engine = _engine(console, use_spark=use_spark, scratch=here.scratch)
        try:
            demo = _create(here, show, engine, rows, seed)
            _stream(demo)
            _kill(demo)
            _freeze(demo)
            _compact(demo)
            _freeze_a_moment(demo)
            _collect(demo)
            _verify(demo)
        finally:
            engine.close()
        _finish(demo, keep=keep, as_json=as_json)
    return show.passed


def _engine(console: Console, *, use_spark: bool, scratch: Path) -> Engine:
    missing = why_no_spark() if use_spark else "--no-spark was given"
    if missing is not None:
        console.print(
            f"[warn]without Spark:[/] {escape(missing)}; the same work runs in this process\n"
        )
        return InProcess()
    from weir.demo.spark_engine import SparkEngine

    return SparkEngine(scratch)


def _create(here: Place, show: Show, engine: Engine, rows: int, seed: int) -> Demo:
    with show.step("Create a table") as step:
        table = weir.create(
            here.uri("orders"),
            SCHEMA,
            primary_key="id",
            sharding=weir.Bucket("id", SHARDS),
            storage_options=here.options,
        )
        step.say(f"{table.uri}: key id, {len(table.shards())} shards, put-if-absent verified")
    return Demo(here, show, Orders(seed), engine, table, rows)


def _stream(demo: Demo) -> None:
    """Put most of the events through the engine, with concurrent reads."""
    count = min(STREAM_FILES, max(3, demo.rows // 1500))  # each file is a micro-batch of Spark
    size = demo.rows * 2 // 3 // count
    with demo.show.step(f"Stream orders in, {demo.engine.name}") as step:
        files = demo.write_files(count, size)
        done = threading.Event()
        acknowledged = [0]
        notes: list[str] = []
        failed: list[Exception] = []

        def ingest() -> None:
            try:
                paths = [path for path, _ in files]
                notes.extend(demo.engine.ingest(demo.table, paths, acknowledged.append))
            except Exception as error:  # noqa: BLE001  raised below, in the thread of the caller
                failed.append(error)
            finally:
                done.set()

        threading.Thread(target=ingest, daemon=True).start()
        reads, fresh = 0, 0
        while not done.wait(READ_EVERY_S):
            fresh = demo.table.scan().count()
            reads += 1
            step.progress(acknowledged[-1], count, f"{fresh:,} rows visible to another reader")
        if failed:
            raise failed[0]
        step.say(
            f"{count * size:,} events: {demo.orders.puts:,} puts and"
            f" {demo.orders.deletes:,} deletes",
            events=count * size,
        )
        if reads:
            words = f"{reads} fresh counts by another reader meanwhile, from the store alone"
            step.say(words, reads=reads)
        for note in notes:
            step.say(note)
        _compare(step, demo.table, files[-1][1], "after the stream")


def _kill(demo: Demo) -> None:
    """A writer process dies midway; every row whose put was acknowledged to it is there."""
    count = FILES // 6
    with demo.show.step("Kill a writer") as step:
        files = demo.write_files(count)
        paths = [path for path, _ in files]
        before = {s.shard: s.epoch for s in demo.table.stats().shards}
        with Victim(demo.table, paths, pause=PAUSE_S) as victim:
            victim.until(lambda: victim.acked >= count // 2)
            victim.kill()
            acked = victim.acked
        # The file in flight was not acknowledged and may be there in part: leave its keys out.
        flying = pq.read_table(paths[acked + 1])["id"] if acked + 1 < count else None
        _compare(step, demo.table, files[acked][1], "every acknowledged row", without=flying)
        step.say(f"SIGKILL after {acked + 1} of {count} files: every acknowledged row is there")
        writer = demo.table.writer()
        with writer:
            for path in paths[acked + 1 :]:
                writer.put(pq.read_table(path))
            found = [w.stats() for w in writer.shard_writers().values()]
        entries = sum(w.replayed_entries for w in found)
        took = max((w.replay_seconds for w in found), default=0.0)
        after = {s.shard: s.epoch for s in demo.table.stats().shards}
        step.check("the epoch of every shard rose", all(after[s] > before[s] for s in before))
        step.say(
            f"epoch {max(after.values())} took over: a fence in each log, {entries} entries"
            f" replayed in {took * 1000:.0f} ms",
            replayed_entries=entries,
        )
        _compare(step, demo.table, files[-1][1], "after the takeover")


def _freeze(demo: Demo) -> None:
    """A writer sleeps through a takeover; when it wakes up it can acknowledge nothing."""
    count = FILES // 12
    with demo.show.step("Freeze a writer, take over, wake it up") as step:
        files = demo.write_files(count)
        paths = [path for path, _ in files]
        with Victim(demo.table, paths, pause=PAUSE_S) as victim:
            victim.until(lambda: victim.acked >= 0)
            victim.freeze()
            acked = victim.acked
            demo.put_all(paths[acked + 1 :])
            victim.thaw()
            fenced = victim.fenced or {}
        step.check("the old writer was fenced", fenced.get("by", 0) > fenced.get("epoch", 0))
        step.say(
            f"frozen as epoch {fenced.get('epoch')} while epoch {fenced.get('by')} took over;"
            " on waking up: FencedError"
        )
        _compare(step, demo.table, files[-1][1], "after it woke up")


def _compact(demo: Demo) -> None:
    with demo.show.step(f"Compact into the base, {demo.engine.name}") as step:
        waiting = demo.table.stats().generations
        report = demo.engine.compact(demo.table)
        base = demo.table.scan(freshness="base").count()
        step.say(
            f"{waiting} SSTables in one commit; any Lance reader sees the {base:,} rows",
            base_rows=base,
            **report,
        )
        step.check("the base holds every row", base == len(demo.orders.rows))


def _freeze_a_moment(demo: Demo) -> None:
    """Make a checkpoint, write more, clone the checkpoint; table and clone then diverge."""
    with demo.show.step("Checkpoint, then clone it") as step:
        demo.table.checkpoint(scope="durable", name="demo", ttl="1h")
        moment = demo.orders.expected()
        later = demo.write_files(FILES // 12)
        demo.put_all([path for path, _ in later])
        copy = demo.table.clone(demo.place.uri("orders-copy"), checkpoint="demo")
        _compare(step, copy, moment, "the clone holds the rows of the checkpoint")
        with copy.writer() as writer:
            writer.delete(moment["id"].slice(0, 10).to_pylist())
        _compare(step, copy, moment.slice(10), "the clone accepts writes")
        _compare(step, demo.table, later[-1][1], "writes to the clone do not affect the table")
        step.say(
            f"the clone shares the base and has {moment.num_rows:,} rows, the table now has"
            f" {later[-1][1].num_rows:,}"
        )
        demo.figures["moment"] = moment


def _collect(demo: Demo) -> None:
    with demo.show.step("Collect garbage") as step:
        demo.engine.compact(demo.table)
        report = demo.table.gc(min_age=0, fence_retention="2m")
        kinds = ", ".join(f"{k.deleted:,} {name}" for name, k in report.kinds.items() if k.deleted)
        step.say(
            f"deleted {report.deleted:,} objects, {report.deleted_bytes / 2**20:.1f} MiB: {kinds}",
            deleted=report.deleted,
        )
        step.say("kept: what the checkpoint pins, and the fence of every epoch")
        step.check("collection had no errors", report.ok)
        step.check("collection deleted something", report.deleted > 0)


def _verify(demo: Demo) -> None:
    with demo.show.step("Verify everything against the generator") as step:
        table = weir.open(demo.table.uri, storage_options=demo.place.options)
        _compare(step, table, demo.orders.expected(), "the table")
        moment = demo.figures["moment"]
        pinned = table.scan(columns=CHECKED, checkpoint="demo").to_table()
        step.check("the checkpoint still has its own rows", _same(pinned, moment))
        some = demo.orders.expected().slice(0, 100)
        got = table.get(some["id"].to_pylist(), columns=CHECKED)
        step.check("lookups by key", _same(got, some))
        one = table.get(some["id"].to_pylist()[:1], columns=["id", "embedding"])
        near = table.search("embedding", one["embedding"][0].as_py(), k=1, columns=["id"])
        step.check("search by vector", near["id"].to_pylist() == one["id"].to_pylist())
        rows = demo.orders.expected().num_rows
        step.say(
            f"{rows:,} rows compared key by key; lookups, a vector search, the checkpoint",
            rows=rows,
        )


def _finish(demo: Demo, *, keep: Path | None, as_json: bool) -> None:
    show, orders = demo.show, demo.orders
    if as_json:
        figures = {key: value for step in show.steps for key, value in step.figures.items()}
        report = {
            "passed": show.passed,
            "engine": demo.engine.name,
            "events": orders.events,
            "rows": len(orders.rows),
            "steps": [
                {"title": s.title, "seconds": round(s.seconds, 3), "passed": s.passed}
                for s in show.steps
            ],
            "figures": figures,
        }
        sys.stdout.write(json.dumps(report) + "\n")
        return
    stats = demo.table.stats()
    # The command as the user must type it: `make demo` runs in an environment that is not active.
    program = "weir" if shutil.which("weir") else sys.argv[0]
    end = show.summary(
        "weir demo",
        {
            "stream": f"{orders.events:,} events: {orders.puts:,} puts, {orders.deletes:,} deletes",
            "table": f"{len(orders.rows):,} rows in {SHARDS} shards and a base of"
            f" {stats.base_rows:,}",
            "safety": "one writer killed, one frozen; checked for lost and duplicate rows",
            "engine": demo.engine.name,
        },
        {
            "look around": f"{program} {f'stats {demo.table.uri}' if keep else 'demo --keep DIR'}",
            "your own table": "docs/quickstart.md",
            "how it works": f"docs/concepts.md, and {program} --help",
        },
    )
    show.console.print(end)


def _compare(
    step: Step, table: weir.Table, expected: pa.Table, what: str, without: Any = None
) -> None:
    found = table.scan(columns=CHECKED).to_table()
    if without is not None:
        found = found.filter(pa.compute.invert(pa.compute.is_in(found["id"], without)))
        expected = expected.filter(pa.compute.invert(pa.compute.is_in(expected["id"], without)))
    step.check(
        f"{what}: {found.num_rows:,} rows found, {expected.num_rows:,} expected, with equal values",
        _same(found, expected),
    )


def _same(found: pa.Table, expected: pa.Table) -> bool:
    ordered = found.select(CHECKED).sort_by("id").combine_chunks()
    return bool(ordered.cast(expected.schema).equals(expected.combine_chunks()))
