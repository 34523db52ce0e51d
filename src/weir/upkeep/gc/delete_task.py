"""Deleting as a task: what is in it was settled when it was planned (`weir.upkeep.gc.tasks`).

Keeps
  S-8  a task deletes from the store it names, by URI and id, or from none: stores change hands
       between a plan and its tasks
"""

from __future__ import annotations

from typing import Final

from weir.errors import WalStoreMismatch, WeirError
from weir.routing.core import Core
from weir.store.api import Store
from weir.upkeep.gc.tasks import Batch, delete_batch
from weir.upkeep.tasks import Result, Run, Task


def delete(core: Core, task: Task) -> Result:
    """Delete one batch; a failure is told, so that the others go on (G-10)."""
    batch = Batch.from_dict(task)
    try:
        return {"deleted": delete_batch(_store_of(core, batch), batch), "error": None}
    except WeirError as error:
        return {"deleted": 0, "error": f"deleting {batch.kind} from {batch.paths[0]} on: {error}"}


def _store_of(core: Core, batch: Batch) -> Store:
    """The store a batch names; `WalStoreMismatch` when another is there now."""
    if batch.shard is not None and batch.store_id is not None:
        return core.wal_stores.bearing(batch.shard, batch.uri, batch.store_id)
    # The record is read again: an engine keeps tables open longer than users keep them in place.
    if batch.uri != core.store.uri or batch.store_id != str(core.refresh().table_id):
        raise WalStoreMismatch(
            f"{core.uri} is another table than the one this deletion was planned for"
            f" ({batch.uri}, id {batch.store_id}); nothing was deleted. Plan the collection again"
        )
    return core.store


TASKS: Final[dict[str, Run]] = {"delete": delete}
