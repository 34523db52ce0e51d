"""Upkeep as Spark jobs: the same plans, tasks and commits as in process, on executors."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final, Literal, get_args

from pyspark.sql import SparkSession

from weir.durations import Duration
from weir.errors import InvalidInput
from weir.format.sharding import Sharding
from weir.read.survey import survey
from weir.records.checkpoints import Ref
from weir.spark.places import Place
from weir.spark.runner import SparkRunner, slots_of
from weir.table import Table
from weir.upkeep import clone as cloning
from weir.upkeep import reshard as resharding
from weir.upkeep.compact import run as compaction
from weir.upkeep.compact.plan import find_pending
from weir.upkeep.defaults import FENCE_RETENTION, LEASE, MIN_AGE
from weir.upkeep.gc.report import GcReport, Kind, Veto
from weir.upkeep.tasks import LocalRunner, Progress, Runner

Engine = Literal["auto", "local", "spark"]

AUTO_BYTES: Final = 256 << 20
AUTO_SLOTS: Final = 4
"""Least waiting bytes, and least processors of a cluster, for which executors are used.

Measured with four times the driver's processors (benchmarks/spark_engine.py --base 20000000
--own-cores 1 --rivals 1): 71 MiB take 1.2 s in process, 5.5 s as a first job, which starts the
workers, and 1.0 s as a later one; 283 MiB 3.8, 5.2 and 2.8 s; 567 MiB 5.6, 8.1 and 5.4 s; 1134 MiB
11.2, 14.5 and 11.0 s. On the driver's own processors executors are never faster.
"""

Options = Mapping[str, str] | None


def compact(
    spark: SparkSession,
    uri: str,
    *,
    engine: Engine = "auto",
    fold_wal: bool | None = None,
    cluster: bool = False,
    indexes: bool = True,
    rewrite: bool | None = None,
    lease: Duration = LEASE,
    storage_options: Options = None,
    progress: Progress | None = None,
) -> compaction.CompactReport:
    """Fold waiting rows into the base table, on executors when there is enough work.

    `engine`: "auto" chooses by bytes, and by whether Spark has processors of its own. `fold_wal` to
    `lease` are those of `Table.compact`. The commit is made here, on the driver, and only here.
    `progress(kind, done, total)` is called as tasks finish.
    """
    _check_engine(engine)
    place = Place(uri, dict(storage_options or {}))
    table = place.current()
    runner = _runner(spark, place, table, engine)
    return compaction.compact(
        table.core,
        engine=runner,
        fold_wal=fold_wal,
        cluster=cluster,
        indexes=indexes,
        rewrite=rewrite,
        lease=lease,
        progress=progress,
    )


def _check_engine(engine: str) -> None:
    if engine not in get_args(Engine):
        raise InvalidInput(f"engine must be auto, local or spark, got {engine!r}")


def _runner(spark: SparkSession, place: Place, table: Table, engine: Engine) -> Runner:
    if engine == "auto":
        waiting = find_pending(table.core, survey(table.core), fold_wal=None)
        amount = sum(w.nbytes for w in waiting)
        engine = choose(amount, AUTO_BYTES, slots=_slots(spark), slots_enough=AUTO_SLOTS)
    return LocalRunner() if engine == "local" else SparkRunner(spark, place, group="weir-compact")


def choose(
    amount: int, enough: int, *, slots: int, slots_enough: int = 1
) -> Literal["local", "spark"]:
    """Which engine "auto" means: executors for enough work, where they add processors."""
    return "spark" if slots >= slots_enough and amount >= enough else "local"


def _slots(spark: SparkSession) -> int:
    """Processors of the executors; 0 when these are threads of the driver's own machine.

    A cluster that starts executors on demand is assumed to have enough.
    """
    master = spark.conf.get("spark.master", "") or ""
    if master.startswith("local") and not master.startswith("local-cluster"):
        return 0
    if spark.conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        return max(AUTO_SLOTS, slots_of(spark))
    return slots_of(spark)


def gc(
    spark: SparkSession,
    uri: str,
    *,
    min_age: Duration = MIN_AGE,
    fence_retention: Duration = FENCE_RETENTION,
    dry_run: bool = False,
    kinds: Collection[Kind] | None = None,
    veto: Veto | None = None,
    storage_options: Options = None,
    progress: Progress | None = None,
) -> GcReport:
    """Collect garbage, on the driver: bulk deletes are as fast as the store, not as the cluster.

    `min_age` to `veto` are those of `Table.gc`: with `dry_run` nothing is written or deleted.
    """
    del spark  # as the first argument of every job; this one needs no executors
    table = Place(uri, dict(storage_options or {})).current()
    return table.gc(
        min_age,
        fence_retention,
        dry_run=dry_run,
        kinds=kinds,
        progress=progress,
        veto=veto,
    )


def reshard(
    spark: SparkSession,
    uri: str,
    sharding: Sharding,
    *,
    engine: Engine = "auto",
    storage_options: Options = None,
    progress: Progress | None = None,
) -> resharding.ReshardReport:
    """Change how rows are routed to shards, then fold the old shards on executors.

    `compaction` of the report says what the fold did.
    """
    _check_engine(engine)
    place = Place(uri, dict(storage_options or {}))
    report = resharding.reshard(place.current().core, sharding, compact=False)
    folded = compact(spark, uri, engine=engine, storage_options=storage_options, progress=progress)
    return replace(report, compaction=folded)


def clone(
    spark: SparkSession,
    uri: str,
    destination: str,
    *,
    checkpoint: Ref | None = None,
    deep: bool = False,
    wal_uri: str | None = None,
    accept_loss: bool = False,
    engine: Engine = "auto",
    storage_options: Options = None,
) -> Table:
    """Make a table at `destination` from a checkpoint of the table at `uri`, as `Table.clone` does.

    Executors copy the base of a deep clone ("auto": from 256 MiB on, on a cluster), and reach both
    places with `storage_options`. After a failure run it again to finish.
    """
    _check_engine(engine)
    place = Place(uri, dict(storage_options or {}))
    core = place.current().core
    if engine == "auto":
        nbytes = sum(meta.size for meta in core.store.list("data")) if deep else 0
        engine = choose(nbytes, AUTO_BYTES, slots=_slots(spark), slots_enough=AUTO_SLOTS)
    runner = LocalRunner() if engine == "local" else SparkRunner(spark, place, group="weir-clone")
    made = cloning.clone(
        core,
        destination,
        checkpoint,
        wal_uri,
        storage_options=dict(place.storage),
        deep=deep,
        accept_loss=accept_loss,
        engine=runner,
    )
    return Table(made)
