"""What is due of a table's upkeep, done from a Spark program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import SparkSession

from weir.routing.core import Core
from weir.spark.jobs import compact
from weir.spark.places import Place
from weir.upkeep.compact.run import CompactReport
from weir.upkeep.due import KeepPolicy, Upkeep, due
from weir.upkeep.gc.report import GcReport
from weir.upkeep.perform import JobReport, perform

Options = Mapping[str, str] | None


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
