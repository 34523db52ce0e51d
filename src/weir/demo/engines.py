"""Engines for the heavy work of the demo: this process, or Spark in local mode."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow.parquet as pq

import weir

Tell = Callable[[int], None]
"""Called with the number of files put so far."""


class Engine(Protocol):
    """Ingests files of events, and compacts."""

    name: str

    def ingest(self, table: weir.Table, files: Sequence[Path], tell: Tell) -> list[str]:
        """Put every file, in order, exactly once; returns notes to show."""

    def compact(self, table: weir.Table) -> dict[str, Any]:
        """Fold everything into the base; the report."""

    def close(self) -> None:
        """Release all resources."""


class InProcess:
    """The library alone."""

    name = "in this process"

    def ingest(self, table: weir.Table, files: Sequence[Path], tell: Tell) -> list[str]:
        """One put for each file."""
        with table.writer() as writer:
            for number, file in enumerate(files, 1):
                writer.put(pq.read_table(file))
                tell(number)
        return []

    def compact(self, table: weir.Table) -> dict[str, Any]:
        """`Table.compact`."""
        report = table.compact()
        return {"sstables": report.sstables, "rows_written": report.rows_written}

    def close(self) -> None:
        """Nothing is open."""


def why_no_spark() -> str | None:
    """What is missing for Spark, or None."""
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed (pip install 'lance-weir[spark]')"
    home = os.environ.get("JAVA_HOME")
    if not (home and (Path(home) / "bin" / "java").exists()) and shutil.which("java") is None:
        return "Java was not found (set JAVA_HOME to a Java 17, or use make demo)"
    if not hasattr(weir.spark, "compact"):
        return "this build of weir has no Spark support"
    return None
