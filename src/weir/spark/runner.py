"""Run upkeep's tasks on Spark's executors: one row for each task, one result for each row.

Works on classic sessions and on Spark Connect: no RDDs, no broadcasts, no JVM. Results are
collected once, since every action would run the tasks again.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from weir.routing.core import Core
from weir.spark.failures import unwrap_errors
from weir.spark.places import Place
from weir.upkeep.tasks import Progress, Result, Task, run_task

SLOTS_UNKNOWN: Final = 8
"""Assumed concurrent tasks where the session does not say (Spark Connect)."""
_WATCH_SECONDS: Final = 0.2
_GROUP: Final = "spark.jobGroup.id"
_RESULT: Final = "number long, result string"


class SparkRunner:
    """Runs tasks on the executors of a session."""

    name = "spark"

    def __init__(self, spark: SparkSession, place: Place, *, group: str = "weir") -> None:
        self._spark = spark
        self._place = place
        self._group = group
        self.slots = slots_of(spark)

    def run(self, core: Core, tasks: Sequence[Task], progress: Progress | None) -> list[Result]:
        """The result of each task, in order; the first error is raised."""
        if not tasks:
            return []
        texts = [json.dumps(task) for task in tasks]
        kind = str(tasks[0]["run"]).partition(".")[0]
        frame = run_each(
            self._spark, texts, _task_function(self._place, core.record.table_id, texts), _RESULT
        )
        watch = watched(self._spark, f"{self._group} {core.uri}", kind, len(tasks), progress)
        with unwrap_errors(), watch:
            rows = frame.collect()
        found = {row["number"]: json.loads(row["result"]) for row in rows}
        assert len(found) == len(tasks), "one result for each task"
        return [found[number] for number in range(len(tasks))]


def slots_of(spark: SparkSession) -> int:
    """How many tasks the session runs at once."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:  # noqa: BLE001  Connect has no context, and several ways to say so
        return SLOTS_UNKNOWN


def run_each(
    spark: SparkSession,
    items: Sequence[Any],
    run: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: Any,
) -> DataFrame:
    """A DataFrame of one task for each item; `run` gets the numbers of its items."""
    count = max(1, len(items))
    return spark.range(0, len(items), 1, count).mapInArrow(run, schema)


def _task_function(
    place: Place, table_id: UUID, texts: Sequence[str]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                core = place.planned(table_id).core
                result = run_task(core, json.loads(texts[number]))
                yield pa.RecordBatch.from_pydict(
                    {"number": pa.array([number], pa.int64()), "result": [json.dumps(result)]}
                )

    return run


@contextlib.contextmanager
def watched(
    spark: SparkSession, group: str, kind: str, total: int, progress: Progress | None
) -> Iterator[None]:
    """Name the job in Spark's listeners and web UI, and call `progress` as tasks finish.

    The job has at least `total` tasks; stages that Spark adds are counted as they appear.
    """
    try:
        context = spark.sparkContext
    except Exception:  # noqa: BLE001  Spark Connect
        with _tagged(spark, kind, progress):
            yield
        return
    # A job that already has a group keeps it: a stream cancels its batches by their group.
    own = context.getLocalProperty(_GROUP)
    if own is None:
        context.setJobGroup(group, f"{kind}: {total} tasks", interruptOnCancel=True)
    group = own or group
    done = threading.Event()
    tracker = context.statusTracker()
    # Jobs of earlier calls carry the same group.
    before = frozenset(tracker.getJobIdsForGroup(group))
    most = total

    def watch() -> None:
        nonlocal most
        while not done.wait(_WATCH_SECONDS):
            finished = tasks = 0
            for job in set(tracker.getJobIdsForGroup(group)) - before:
                info = tracker.getJobInfo(job)
                for stage in () if info is None else info.stageIds:
                    running = tracker.getStageInfo(stage)
                    finished += 0 if running is None else running.numCompletedTasks
                    tasks += 0 if running is None else running.numTasks
            most = max(most, tasks)
            if progress is not None:
                progress(kind, min(finished, most), most)

    watcher = threading.Thread(target=watch, name="weir-spark-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
        if own is None:
            for name in (_GROUP, "spark.job.description", "spark.job.interruptOnCancel"):
                context.setLocalProperty(name, None)  # type: ignore[arg-type]
    if progress is not None:
        progress(kind, most, most)


@contextlib.contextmanager
def _tagged(spark: SparkSession, kind: str, progress: Progress | None) -> Iterator[None]:
    """The same as `watched` for Spark Connect, whose client reports on tasks itself."""
    tag = f"weir-{kind}"

    def heard(stages: Any, *_: Any, **__: Any) -> None:
        if progress is not None and stages:
            done = sum(int(stage.num_completed_tasks) for stage in stages)
            progress(kind, done, sum(int(stage.num_tasks) for stage in stages))

    spark.addTag(tag)
    spark.registerProgressHandler(heard)  # type: ignore[arg-type]
    try:
        yield
    finally:
        spark.removeProgressHandler(heard)  # type: ignore[arg-type]
        spark.removeTag(tag)
