"""A snapshot split into parts that engine tasks or workers read independently.

Keeps
  L-2  a part returns the rows that a merge of the whole snapshot would: fragments of the base
       without the keys of fresh rows, and fresh rows of shards whose keys no other part holds
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pyarrow as pa

from weir.lake.api import Base
from weir.merge.merge import merge_scan
from weir.read.reader import SnapshotReader
from weir.read.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Part:
    """Fragments of the base, or shards."""

    fragments: tuple[int, ...] = ()
    shards: tuple[UUID, ...] = ()
    rows: int = 0
    """Estimated number of rows."""


def base_parts(base: Base, split_rows: int) -> list[Part]:
    """The fragments of the base, neighbours grouped up to `split_rows` rows."""
    parts: list[Part] = []
    for fragment, rows in base.fragments():
        if parts and parts[-1].rows + rows <= split_rows:
            last = parts.pop()
            parts.append(Part((*last.fragments, fragment), (), last.rows + rows))
        else:
            parts.append(Part((fragment,), (), rows))
    return parts


def fresh_parts(snapshot: Snapshot, base: Base) -> list[Part]:
    """The shards that hold rows not yet in the base."""
    folded = base.compacted
    fresh = [
        cut
        for cut in snapshot.cuts
        if not cut.closed
        or cut.staged is not None
        or any(table.generation > folded.get(cut.shard, 0) for table in cut.sstables)
    ]
    if any(cut.sealed or cut.shard in snapshot.overlapping for cut in fresh):
        # Another shard may hold newer rows of the keys of a sealed shard or of one that is not of
        # the routing, so one part reads them all.
        return [Part((), tuple(cut.shard for cut in fresh))]
    return [Part((), (cut.shard,)) for cut in fresh]


def read_part(
    reader: SnapshotReader, part: Part, *, columns: Sequence[str] | None, filter: Any
) -> Iterator[pa.RecordBatch]:
    """The rows of one part, fragments in the order of `part.fragments`."""
    if not part.fragments:
        levels = reader.levels(part.shards)
    else:
        # guard: L-2 never test_a_pass_has_every_row_once
        levels = reader.levels() if reader.schema.primary_key else []
    _, rows = merge_scan(
        levels,
        reader.base if part.fragments else None,
        reader.schema,
        columns=columns,
        filter=filter,
        fragments=part.fragments or None,
        alive=reader.alive,
        env=reader.core.env,
    )
    return rows
