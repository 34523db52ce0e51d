"""Tasks that wait at a named gate, while a test kills or overtakes their executor.

A file controls the gate: while `{folder}/{name}` exists, the first task to reach it waits until the
file is removed. Executors import these functions by name.
"""

import time
from pathlib import Path
from typing import Any

from pyspark import TaskContext


def gate(folder: str, name: str, seconds: float = 60.0) -> None:
    """Wait while the gate is closed, once: the first caller leaves a marker file, others pass."""
    mark = Path(folder) / f"{name}.reached"
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return
    deadline = time.monotonic() + seconds
    while (Path(folder) / name).exists() and time.monotonic() < deadline:
        time.sleep(0.05)


def open_gate(folder: Path, name: str) -> None:
    """Release the waiting task."""
    (folder / name).unlink(missing_ok=True)


def close_gate(folder: Path, name: str) -> None:
    """Make the first task that reaches the gate wait."""
    (folder / f"{name}.reached").unlink(missing_ok=True)
    (folder / name).touch()


def await_reached(folder: Path, name: str) -> None:
    """Wait until a task has reached the gate."""
    deadline = time.monotonic() + 240
    while not (folder / f"{name}.reached").exists():
        assert time.monotonic() < deadline, f"nobody reached {name}"
        time.sleep(0.05)


def slow_rows(folder: str, name: str, *, after: int = 0) -> Any:
    """For `mapInArrow`: pass rows on; the first task past `after` batches waits at the gate."""

    def run(batches: Any) -> Any:
        for number, batch in enumerate(batches):
            if number >= after:
                gate(folder, name)
            yield batch

    return run


def partition() -> int:
    """The partition of the running task."""
    context = TaskContext.get()
    assert context is not None
    return int(context.partitionId())
