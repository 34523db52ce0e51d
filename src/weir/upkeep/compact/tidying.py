"""Rewrites files of the base that are small or hold many deleted rows, and extends its indexes, by
tasks that run in this process or elsewhere (P-5).

Rows do not change and no claim is held: work that loses a race is left for the next run.
"""

from __future__ import annotations

from typing import Final

from weir.errors import CommitConflict
from weir.lake.api import Base
from weir.lake.base.fold import ROWS_PER_FILE
from weir.routing.core import Core
from weir.upkeep.tasks import LOCAL, Progress, Result, Run, Runner, Task

SMALL_FRAGMENTS: Final = 16
"""From this many fragments of less than a quarter file on, rewriting them is worth it."""
DELETED_SHARE: Final = 0.2
"""From this share of deleted rows in the files on, rewriting those that have many is worth it."""


def tidy(
    core: Core,
    *,
    indexes: bool = True,
    rewrite: bool | None = None,
    engine: Runner = LOCAL,
    progress: Progress | None = None,
) -> list[str]:
    """Rewrite files that are small or hold deleted rows, on request or if there are many such, and
    extend indexes to all rows, by tasks of `engine`.

    Returns what was left for the next run, in words.
    """
    lake = core.lake
    notes: list[str] = []
    try:
        wanted = rewrite or (rewrite is None and _is_worth_it(lake.open_base()))
        borrowed = [i.name for i in lake.indexes() if i.is_borrowed] if wanted else []
        if borrowed:
            # Lance 14 looks for a moved index in the parent's folder, where it never was.
            notes.append(
                f"small files were not rewritten: the indexes {borrowed} share files with the table"
                " that this one is a clone of, and Lance would lose them. Make them anew with"
                " table.create_index(..., replace=True), then compact"
            )
        elif wanted:
            _rewrite(core, engine, progress)
        if indexes and lake.indexes():
            engine.run(core, [{"run": "compact.tidying.optimize"}], progress)
    except CommitConflict as lost:
        notes.append(
            f"small files and indexes were not optimized, the next compaction does it: {lost}"
        )
    return notes


def _is_worth_it(base: Base) -> bool:
    live = [rows for _, rows in base.fragments()]
    deleted = base.deleted_rows()
    return (
        sum(rows < ROWS_PER_FILE // 4 for rows in live) >= SMALL_FRAGMENTS
        or deleted > DELETED_SHARE * (deleted + sum(live)) > 0
    )


def _rewrite(core: Core, runner: Runner, progress: Progress | None) -> None:
    lake = core.lake
    plan = lake.plan_files(target_rows_per_fragment=ROWS_PER_FILE)
    tasks: list[Task] = [{"run": "compact.tidying.rewrite", "task": text} for text in plan.tasks]
    if tasks:
        results = runner.run(core, tasks, progress)
        lake.commit_files(plan, [str(result["result"]) for result in results])


def rewrite(core: Core, task: Task) -> Result:
    """New files for some fragments; the driver commits them."""
    return {"result": core.lake.rewrite_files(str(task["task"]))}


def optimize(core: Core, _: Task) -> Result:
    """Extend the indexes to the rows added since. A second run finds nothing to do."""
    return {"version": core.lake.optimize_indices()}


TASKS: Final[dict[str, Run]] = {"rewrite": rewrite, "optimize": optimize}
