"""Finding the base rows that a bulk load replaces: a task over staged keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from weir.format.keys import pk_values
from weir.lake import fold
from weir.lake.base import LanceBase
from weir.lake.keysets import key_set
from weir.table.core import Core
from weir.upkeep.compact_tasks import only_slice
from weir.upkeep.tasks import Result, Run, Task


def hide_rows(core: Core, task: Task) -> Result:
    """Deletion vectors for a share of the fragments; keys are read pass by pass."""
    base = core.lake.open_base(int(task["version"]))
    assert isinstance(base, LanceBase), "a bulk load works on Lance"
    names = base.schema.primary_key
    passes = int(task["passes"])
    found: dict[int, list[fold.Offsets]] = {int(f): [] for f in task["fragments"]}
    for number in range(passes):
        parts = [only_slice(batch, names, (number, passes)) for batch in _keys(core, task["keys"])]
        keys = key_set(pk_values(pa.Table.from_batches(parts, base.schema.key_schema), names))
        for fragment, offsets in found.items():
            offsets.append(fold.find_keys(base, fragment, keys))
    hidden = [
        fold.hide_rows(base, fragment, np.unique(np.concatenate(offsets)))
        for fragment, offsets in found.items()
    ]
    return {"changes": fold.together(hidden).to_json()}


def _keys(core: Core, files: list[str]) -> Iterator[pa.RecordBatch]:
    for path in files:
        yield from pa.ipc.open_stream(core.store.get(path).data)


TASKS: Final[dict[str, Run]] = {"hide_rows": hide_rows}
