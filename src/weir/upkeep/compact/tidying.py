"""Rewrites files of the base that are small or hold many deleted rows, and extends its indexes, in
process or by tasks elsewhere (P-5).

Rows do not change and no claim is held: work that loses a race is left for the next run.
"""

from __future__ import annotations

from typing import Final, Literal

from weir.errors import CommitConflict
from weir.lake.api import Base
from weir.lake.base.fold import ROWS_PER_FILE
from weir.routing.core import Core
from weir.upkeep.tasks import Progress, Result, Run, Runner, Task

SMALL_FRAGMENTS: Final = 16
"""From this many fragments of less than a quarter file on, rewriting them is worth it."""
DELETED_SHARE: Final = 0.2
"""From this share of deleted rows in the files on, rewriting those that have many is worth it."""


def tidy(
    core: Core,
    *,
    indexes: bool = True,
    rewrite: bool | None = None,
    engine: Literal["local"] | Runner = "local",
    progress: Progress | None = None,
) -> list[str]:
    """Rewrite files that are small or hold deleted rows, on request or if there are many such, and
    extend indexes to all rows.

    Returns what was left for the next run, in words. An `engine` other than this process runs the
    work as tasks.
    """
    lake = core.lake
    runner = None if isinstance(engine, str) or engine.name == "local" else engine
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
            if runner is None:
                lake.compact_files(target_rows_per_fragment=ROWS_PER_FILE)
            else:
                _rewrite(core, runner, progress)
        names = [index.name for index in lake.indexes()] if indexes else []
        if names and runner is None:
            lake.optimize_indices()
        elif runner is not None:
            tasks: list[Task] = [{"run": "compact.tidying.optimize", "name": n} for n in names]
            for task in tasks:  # each is a commit; concurrent ones would only conflict
                runner.run(core, [task], progress)
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


def optimize(core: Core, task: Task) -> Result:
    """Extend one index to the rows added since. A second run finds nothing to do."""
    return {"version": core.lake.optimize_indices([str(task["name"])])}


TASKS: Final[dict[str, Run]] = {"rewrite": rewrite, "optimize": optimize}
