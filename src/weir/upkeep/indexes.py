"""Indexes of a table: Lance's own, on the base.

Rows in the log and in SSTables are searched beside the base, so an index made or dropped at any
moment changes no answer, only how fast it comes. Writers opened later build the base's indexes into
their SSTables (`weir.lake.index`), and compaction adds the rows it folds. What native programs are
told of the indexes is in the MemWAL index entry, which the next compaction brings up to date (X-5).
"""

from __future__ import annotations

from typing import Final

from weir.lake.api import Lake
from weir.lake.base.indexes import IndexSpec, TableIndex
from weir.routing.core import Core

LACKING: Final = 0.1
"""From this share of the base's rows on that an index lacks, extending it is work of its own."""


def lacking(core: Core) -> list[TableIndex]:
    """The indexes that lack many rows, which a load or another program brought: compaction extends
    them with the rows that it folds. One listing, one head."""
    return [
        index
        for index in core.lake.indexes()
        if index.rows_not_indexed > LACKING * (index.rows_indexed + index.rows_not_indexed)
    ]


def create_index(core: Core, spec: IndexSpec) -> str:
    """See `Table.create_index`."""
    return _lake(core).create_index(spec)


def indexes(core: Core) -> list[TableIndex]:
    """See `Table.indexes`."""
    return _lake(core).indexes()


def drop_index(core: Core, name: str) -> None:
    """See `Table.drop_index`."""
    _lake(core).drop_index(name)


def _lake(core: Core) -> Lake:
    core.record_number()  # guard: C-16 test_drop
    core.base()  # guard: L-8 test_overwritten_base
    return core.lake
