"""Read a table's statistics and do its upkeep from a Spark program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from weir.routing.core import Core
from weir.spark.jobs import compact
from weir.spark.places import Place
from weir.upkeep.compact.run import CompactReport
from weir.upkeep.due import KeepPolicy, Upkeep, due
from weir.upkeep.gc.report import GcReport
from weir.upkeep.perform import JobReport, perform

Options = Mapping[str, str] | None


def stats(spark: SparkSession, uri: str, *, storage_options: Options = None) -> DataFrame:
    """`Table.stats` as a DataFrame for use in SQL, one row for each shard."""
    table = Place(uri, dict(storage_options or {})).current()
    rows = [_plain(asdict(shard)) for shard in table.stats().shards]
    return spark.createDataFrame(pa.Table.from_pylist(rows))


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert to values that Arrow and Spark have types for."""
    simple = (str, int, float, bool, type(None))
    return {
        name: value if isinstance(value, simple) else str(value) for name, value in values.items()
    }


@dataclass(frozen=True)
class KeepReport:
    """What one round of upkeep found and did."""

    due: Upkeep
    """What was due, and why."""
    done: tuple[JobReport, ...]
    """What became of each job that was due; one that failed before may still have to wait."""

    @property
    def compacted(self) -> CompactReport | None:
        """The compaction, if one was due and ran."""
        found = [job.report for job in self.done if isinstance(job.report, CompactReport)]
        return found[0] if found else None

    @property
    def collected(self) -> GcReport | None:
        """The collection, if one was due and ran."""
        found = [job.report for job in self.done if isinstance(job.report, GcReport)]
        return found[0] if found else None


def keep(
    spark: SparkSession,
    uri: str,
    *,
    policy: KeepPolicy | None = None,
    storage_options: Options = None,
) -> KeepReport:
    """Do what `weir.due` says: compaction on Spark, the rest on the driver.

    For a job that runs every few minutes. Safe beside all other work, including itself and `weir
    keep`, which decides by the same rules and reads the same record. A job that fails is in
    `report.done`, and tried again later.
    """
    table = Place(uri, dict(storage_options or {})).current()
    chosen, core = policy or KeepPolicy(), table.core

    def fold(_: Core) -> CompactReport:
        return compact(spark, uri, storage_options=storage_options)

    found = due(table, chosen)
    now = core.store.now
    jobs = [job for job in found if job.not_before is None]
    return KeepReport(found, tuple(perform(core, job, chosen, now, fold) for job in jobs))
