"""Rewrites small files and extends indexes of the base, in process or by tasks elsewhere (P-5).

Rows do not change and no claim is held: work that loses a race is left for the next run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, cast

from weir.errors import CommitConflict
from weir.lake.base.fold import ROWS_PER_FILE
from weir.lake.pylance_lake import PylanceLake
from weir.routing.core import Core
from weir.upkeep.tasks import Progress, Result, Run, Runner, Task

SMALL_FRAGMENTS: Final = 16
"""From this many fragments of less than a quarter file on, rewriting them is worth it."""


def tidy(
    core: Core,
    *,
    indexes: bool = True,
    rewrite: bool | None = None,
    engine: Literal["local"] | Runner = "local",
    progress: Progress | None = None,
) -> list[str]:
    """Rewrite small files, on request or if there are many, and extend indexes to all rows.

    Returns what was left for the next run, in words. An `engine` other than this process runs the
    work as tasks.
    """
    lake = cast("PylanceLake", core.lake)
    runner = None if isinstance(engine, str) or engine.name == "local" else engine
    try:
        if rewrite or (rewrite is None and _many_small(lake.open_base().fragments())):
            if runner is None:
                lake.compact_files(target_rows_per_fragment=ROWS_PER_FILE)
            else:
                _rewrite(core, runner, progress)
        names = lake.index_names() if indexes else []
        if names and runner is None:
            lake.optimize_indices()
        elif runner is not None:
            tasks: list[Task] = [{"run": "compact.tidying.optimize", "name": n} for n in names]
            for task in tasks:  # each is a commit; concurrent ones would only conflict
                runner.run(core, [task], progress)
    except CommitConflict as lost:
        return [f"small files and indexes were not optimized, the next compaction does it: {lost}"]
    return []


def _many_small(fragments: Sequence[tuple[int, int]]) -> bool:
    return sum(1 for _, rows in fragments if rows < ROWS_PER_FILE // 4) >= SMALL_FRAGMENTS


def _rewrite(core: Core, runner: Runner, progress: Progress | None) -> None:
    lake = cast("PylanceLake", core.lake)
    plan = lake.plan_files(target_rows_per_fragment=ROWS_PER_FILE)
    tasks: list[Task] = [{"run": "compact.tidying.rewrite", "task": text} for text in plan.tasks]
    if tasks:
        results = runner.run(core, tasks, progress)
        lake.commit_files(plan, [str(result["result"]) for result in results])


def rewrite(core: Core, task: Task) -> Result:
    """New files for some fragments; the driver commits them."""
    return {"result": cast("PylanceLake", core.lake).rewrite_files(str(task["task"]))}


def optimize(core: Core, task: Task) -> Result:
    """Extend one index to the rows added since. A second run finds nothing to do."""
    lake = cast("PylanceLake", core.lake)
    return {"version": lake.optimize_indices([str(task["name"])])}


TASKS: Final[dict[str, Run]] = {"rewrite": rewrite, "optimize": optimize}
