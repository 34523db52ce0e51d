"""Progress of a job on the driver's console: one bar for each kind of task."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql import SparkSession

from weir.upkeep.tasks import Progress

Show = Progress | bool | None
"""A function called with `(kind, done, total)`; True: a bar on stderr; False: nothing; None: a bar
if stderr is a terminal on which Spark does not draw its own."""

_WORDS: Final = {
    "compact": "folding",
    "gc": "deleting",
    "loads": "replacing",
    "bulk_load": "loading",
    "write": "writing",
}
_OWN_BAR: Final = "spark.ui.showConsoleProgress"


@contextlib.contextmanager
def shown(progress: Show, uri: str, spark: SparkSession | None = None) -> Iterator[Progress | None]:
    """Yield the progress callback for a job; `spark`: the session whose executors work, if any."""
    if progress is not None and not isinstance(progress, bool):
        yield progress
        return
    if progress is None:
        progress = sys.stderr.isatty() and not _draws_itself(spark)
    if not progress:
        yield None
        return
    with _bars(uri.rstrip("/").rpartition("/")[2]) as tell:
        yield tell


def _draws_itself(spark: SparkSession | None) -> bool:
    if spark is None:
        return False
    try:
        return str(spark.sparkContext.getConf().get(_OWN_BAR, "false")).lower() == "true"
    except Exception:  # noqa: BLE001  Connect has no context, and several ways to say so
        return False


@contextlib.contextmanager
def _bars(table: str) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    console = Console(file=sys.stderr)
    bars = Progress(*columns, TextColumn("tasks"), TimeElapsedColumn(), console=console)
    known: dict[str, Any] = {}

    def tell(kind: str, done: int, total: int) -> None:
        name = kind.partition(".")[0]
        if name not in known:
            known[name] = bars.add_task(f"{table}: {_WORDS.get(name, name)}", total=total)
        bars.update(known[name], completed=done, total=total)

    with bars:
        yield tell
