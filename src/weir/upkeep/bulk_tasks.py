"""Finding the base rows that a bulk load replaces: a task over staged keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from weir.format.keys import pk_values
from weir.lake.base.view import LanceBase
from weir.routing.core import Core
from weir.upkeep.compact.tasks import hide_keys
from weir.upkeep.tasks import Result, Run, Task


def hide_rows(core: Core, task: Task) -> Result:
    """Deletion vectors for a share of the fragments."""
    base = core.lake.open_base(int(task["version"]))
    assert isinstance(base, LanceBase), "a bulk load works on Lance"
    names = base.schema.primary_key

    def keys() -> Iterator[pa.Array]:
        return (pk_values(batch, names) for batch in _keys(core, task["keys"]))

    changes = hide_keys(base, task, keys)
    return {"changes": changes.to_json()}


def _keys(core: Core, files: list[str]) -> Iterator[pa.RecordBatch]:
    for path in files:
        yield from pa.ipc.open_stream(core.store.get(path).data)


TASKS: Final[dict[str, Run]] = {"hide_rows": hide_rows}
