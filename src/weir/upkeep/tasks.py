"""The shape all upkeep shares: a small plan, tasks that are pure functions of it, one commit.

A task is JSON: the name of a function of this package and its arguments. Each executor opens the
table itself; executors share nothing but the store (P-4). A runner returns one result for each
task, in order, however often a task was tried; nothing refers to what the other attempts wrote.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

from weir.env import Env
from weir.errors import InvalidInput
from weir.routing.core import Core

Task = dict[str, Any]
Result = dict[str, Any]
Run = Callable[[Core, Task], Result]
Progress = Callable[[str, int, int], None]
"""`progress(kind, done, total)`."""

logger = logging.getLogger("weir.upkeep")

PROGRESS_INTERVAL_SECONDS: Final = 60.0
"""How often a run reports that it is alive, whether or not a task has finished."""

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

        def tell(kind: str, more: int) -> None:
            nonlocal done
            with lock:
                done += more
                if progress is not None:
                    progress(kind, done, len(tasks))

        def one(task: Task) -> Result:
            result = run_task(core, task)
            tell(str(task["run"]), 1)
            return result

        with regularly(core.env, lambda: tell(str(tasks[0]["run"]), 0)):
            return core.env.threads.map(one, list(tasks), workers=self.slots)


@contextmanager
def regularly(env: Env, act: Callable[[], None]) -> Iterator[None]:
    """Call `act` every minute while the block runs.

    One task may be a whole compaction that takes hours. The progress callback renews the claim
    under which it runs. If it were called only when the task ends, the run would be presumed dead
    and replaced again and again.
    """
    condition = env.threads.condition()
    ended: list[bool] = []

    def beat() -> None:
        with condition:
            while not ended:
                condition.wait(PROGRESS_INTERVAL_SECONDS)
                if ended:
                    return
                try:
                    act()
                except Exception as error:  # noqa: BLE001  the work goes on, and so does this
                    logger.warning("tasks.progress.failed reason=%r", error)

    thread = env.threads.start(beat, name="weir-tasks-progress")
    if thread is None:  # the work is still done, and reported task by task (F-16)
        logger.warning("tasks.progress.alone")
    try:
        yield
    finally:
        with condition:
            ended.append(True)
            condition.notify_all()
        if thread is not None:
            thread.join()


def run_task(core: Core, task: Task) -> Result:
    """Run one task on an open table. The function is looked up in its module's `TASKS`."""
    module, _, name = str(task["run"]).rpartition(".")
    tasks: dict[str, Run] = {}
    if module and importlib.util.find_spec(f"weir.upkeep.{module}") is not None:
        tasks = getattr(importlib.import_module(f"weir.upkeep.{module}"), "TASKS", {})
    if name not in tasks:
        raise InvalidInput(f"unknown task {task['run']!r}; install the same weir on all workers")
    return tasks[name](core, task)
