"""Deleting as a task: what is in it was settled when it was planned (`weir.upkeep.gc.tasks`)."""

from __future__ import annotations

from typing import Final

from weir.errors import WeirError
from weir.routing.core import Core
from weir.upkeep.gc.tasks import Batch, delete_batch
from weir.upkeep.tasks import Result, Run, Task


def delete(core: Core, task: Task) -> Result:
    """Delete one batch; a failure is told, so that the others go on (G-10)."""
    batch = Batch.from_dict(task)
    store = core.wal if batch.where == "wal" else core.store
    try:
        return {"deleted": delete_batch(store, batch.paths), "error": None}
    except WeirError as error:
        return {"deleted": 0, "error": f"deleting {batch.kind} from {batch.paths[0]} on: {error}"}


TASKS: Final[dict[str, Run]] = {"delete": delete}
