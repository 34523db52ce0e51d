"""Finding the base rows that a bulk load replaces: a task over staged keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from weir.lake.base import LanceBase
from weir.table.core import Core
from weir.upkeep.compact_tasks import hide_in_passes
from weir.upkeep.tasks import Result, Run, Task


def hide_rows(core: Core, task: Task) -> Result:
    """Deletion vectors for a share of the fragments; keys are read pass by pass."""
    base = core.lake.open_base(int(task["version"]))
    assert isinstance(base, LanceBase), "a bulk load works on Lance"
    changes = hide_in_passes(base, task, lambda: _keys(core, task["keys"]), rows=0)
    return {"changes": changes.to_json()}


def _keys(core: Core, files: list[str]) -> Iterator[pa.RecordBatch]:
    for path in files:
        yield from pa.ipc.open_stream(core.store.get(path).data)


TASKS: Final[dict[str, Run]] = {"hide_rows": hide_rows}
