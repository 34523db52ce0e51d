"""Spark in local mode as the engine of the demo, in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import weir
from weir.demo.engines import Tell


class SparkEngine:
    """Sends orders to `weir.demo.spark_job` and reads its answers."""

    name = "on Spark"

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._log = (scratch / "spark.log").open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "weir.demo.spark_job"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._started = False
        self._send({"scratch": str(scratch / "spark")})

    def ingest(self, table: weir.Table, files: Sequence[Path], tell: Tell) -> list[str]:
        """Structured Streaming from a folder of files, exactly once."""
        folder = self._scratch / "incoming"
        folder.mkdir(exist_ok=True)
        for number, file in enumerate(files):
            target = folder / file.name
            shutil.copyfile(file, target)
            # Spark's file source orders by modification time; files with equal times have no order.
            os.utime(target, (1_700_000_000 + number, 1_700_000_000 + number))
        version = self._ready()
        answer = self._ask(
            {
                "do": "stream",
                "folder": str(folder),
                "checkpoint": str(self._scratch / "query"),
                **_where(table),
            },
            lambda said: tell(said["batch"]),
        )
        return [
            f"Structured Streaming, Spark {version}, {answer['batches']} micro-batches",
            "the last one was sent twice, as after a lost commit, and applied once",
        ]

    def compact(self, table: weir.Table) -> dict[str, Any]:
        """`weir.spark.compact`, then a count by `weir.spark.scan`."""
        self._ready()
        answer = self._ask({"do": "compact", **_where(table)})
        return {**answer["report"], "spark_rows": answer["rows"]}

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()

    def _ready(self) -> str:
        if not self._started:
            self._version = str(self._hear()["version"])
            self._started = True
        return self._version

    def _ask(
        self, order: dict[str, Any], between: Callable[[Any], None] = lambda _: None
    ) -> dict[str, Any]:
        self._send(order)
        return self._hear(between)

    def _send(self, order: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        # Through the pipe and not on the command line: the options may hold secrets.
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def _hear(self, between: Callable[[Any], None] = lambda _: None) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.startswith("{"):
                continue
            said: dict[str, Any] = json.loads(line)
            if "done" not in said:
                between(said)
            elif said["done"] == "failed":
                raise weir.WeirError(f"the Spark job of the demo failed: {said['error']}")
            else:
                return said
        self._log.flush()
        words = Path(self._log.name).read_text(encoding="utf-8").strip().splitlines()
        last = words[-1] if words else "(empty)"
        raise weir.WeirError(f"the Spark process of the demo ended; last line of its log: {last}")


def _where(table: weir.Table) -> dict[str, Any]:
    return {"uri": table.uri, "storage_options": dict(table.core.storage_options)}
