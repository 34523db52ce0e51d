"""Tasks that wait at a named moment, so that a test can kill or overtake their executor.

A file says how: while `{folder}/{name}` exists, the first attempt to get there waits for its end.
Functions here are imported by executors, by name.
"""

import time
from pathlib import Path
from typing import Any

from pyspark import TaskContext


def gate(folder: str, name: str, seconds: float = 60.0) -> None:
    """Wait here once, if asked to: the first to come leaves a mark and stays."""
    mark = Path(folder) / f"{name}.reached"
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return
    deadline = time.monotonic() + seconds
    while (Path(folder) / name).exists() and time.monotonic() < deadline:
        time.sleep(0.05)


def open_gate(folder: Path, name: str) -> None:
    """Let the waiting one go on."""
    (folder / name).unlink(missing_ok=True)


def close_gate(folder: Path, name: str) -> None:
    """Make the first that comes wait."""
    (folder / f"{name}.reached").unlink(missing_ok=True)
    (folder / name).touch()


def await_reached(folder: Path, name: str) -> None:
    """Until somebody waits at the gate."""
    deadline = time.monotonic() + 240
    while not (folder / f"{name}.reached").exists():
        assert time.monotonic() < deadline, f"nobody reached {name}"
        time.sleep(0.05)


def slow_rows(folder: str, name: str, *, after: int = 0) -> Any:
    """For `mapInArrow`: rows pass, but the first task with `after` batches behind it waits."""

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
