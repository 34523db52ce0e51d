"""The shape all upkeep shares: a small plan, tasks that are pure functions of it, one commit.

A task is JSON: the name of a function of this package and its arguments. Each executor opens the
table itself; executors share nothing but the store (P-4). A runner returns one result for each
task, in order, however often a task was tried; nothing refers to what the other attempts wrote.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, Protocol

from weir.errors import InvalidInput
from weir.routing.core import Core

Task = dict[str, Any]
Result = dict[str, Any]
Run = Callable[[Core, Task], Result]
Progress = Callable[[str, int, int], None]
"""`progress(kind, done, total)`: for display, called when a task has finished."""

LOCAL_WORKERS: Final = 2
"""Concurrent tasks in one process: one computes while another waits for the store."""


class Runner(Protocol):
    """Runs tasks somewhere: in this process, or on an engine."""

    name: str
    slots: int
    """How many tasks it runs at once; a plan makes at least that many if there is enough work."""

    def run(self, core: Core, tasks: Sequence[Task], progress: Progress | None) -> list[Result]:
        """The result of each task, in order; the first error is raised."""


class LocalRunner:
    """Runs tasks in threads of this process."""

    name = "local"

    def __init__(self, slots: int = LOCAL_WORKERS) -> None:
        self.slots = slots

    def run(self, core: Core, tasks: Sequence[Task], progress: Progress | None) -> list[Result]:
        """The result of each task, in order; the first error is raised."""
        lock = core.env.threads.lock()
        done = 0

        def one(task: Task) -> Result:
            nonlocal done
            result = run_task(core, task)
            with lock:
                done += 1
                if progress is not None:
                    progress(str(task["run"]), done, len(tasks))
            return result

        return core.env.threads.map(one, list(tasks), workers=self.slots)


LOCAL: Final = LocalRunner()


def runner_of(engine: Literal["local"] | Runner) -> Runner:
    """The runner that a caller of `Table` means."""
    if not isinstance(engine, str):
        return engine
    if engine != "local":
        raise InvalidInput(
            f"engine must be 'local' or a runner, got {engine!r}; on Spark call weir.spark.compact"
        )
    return LOCAL


def run_task(core: Core, task: Task) -> Result:
    """Run one task on an open table. The function is looked up in its module's `TASKS`."""
    module, _, name = str(task["run"]).rpartition(".")
    tasks: dict[str, Run] = {}
    if module and importlib.util.find_spec(f"weir.upkeep.{module}") is not None:
        tasks = getattr(importlib.import_module(f"weir.upkeep.{module}"), "TASKS", {})
    if name not in tasks:
        raise InvalidInput(f"unknown task {task['run']!r}; install the same weir on all workers")
    return tasks[name](core, task)
