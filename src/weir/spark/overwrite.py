"""Mode overwrite: the rows that tasks staged replace what the table held, or what a filter names.

One base commit, made on the driver: all or nothing for the whole table (L-4). Rows that writers put
in the meantime are newer and stay. Like a bulk load it bypasses the log, and stops the change feeds
of the table. Tables too large for one process go through
`weir.spark.bulk_load(replace=True)`, which writes the files on executors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.errors import InvalidInput
from weir.format.keys import pk_values
from weir.format.schema import TableSchema
from weir.format.sharding import Value
from weir.keys.keyset import KeySet
from weir.lake.api import Base
from weir.lake.base import fold
from weir.lake.expressions import filter_mask
from weir.log.intake import Intake
from weir.merge.levels import MemLevel, shaped
from weir.merge.merge import winners
from weir.routing.core import Core
from weir.spark.shard_sink import ENTRY_BYTES
from weir.spark.staging import Staged, read_staged, shards_at_once
from weir.upkeep.loads import PreparedLoad, find_matching, fold_older, load


def overwrite(
    core: Core, staged: Mapping[Value, Sequence[Staged]], job: str, *, where: str | None = None
) -> int:
    """Replace the rows that match `where`, in Lance's SQL, or all, by the staged ones; returns the
    base version that holds them.

    Of several rows with one key the last counts, as in a write. With `where` all staged rows must
    match it (`InvalidInput`), a row of one of their keys is replaced whether it matches or not, and
    what was written before is folded first, which fences writers. Raises `CommitConflict` when a
    compaction took over midway: then nothing was replaced, and the job can be run again.
    """
    key = core.record.primary_key
    if where is not None and not key:
        fold_older(core)  # L-9; with a key, the load itself does it

    def write(base: Base) -> PreparedLoad:
        schema = base.schema
        keys: list[pa.Array] = []

        def one(files: Sequence[Staged]) -> PreparedLoad:
            levels = [_StagedLevel(core, schema, file) for file in reversed(files)]
            count = 0

            def newest() -> Iterator[pa.RecordBatch]:
                nonlocal count
                for batch in winners(levels, schema, core.env):
                    count += batch.num_rows
                    rows = shaped(batch, schema.plain)
                    if where is not None:
                        _require_matching(core, rows, where)
                        keys.extend([pk_values(rows, key)] if key else [])
                    yield rows

            changes = fold.write_rows(base, newest())
            return PreparedLoad(changes, count)

        workers = shards_at_once(staged.values(), ENTRY_BYTES)
        done = core.env.threads.map(one, list(staged.values()), workers=workers)
        edits = [part.changes for part in done]
        if where is not None:
            edits.append(_hidden(base, where, keys))
        return PreparedLoad(fold.combine(edits), sum(part.rows for part in done))

    version, _ = load(core, write, job_id=job, replaces=where is None)
    return version


def _require_matching(core: Core, rows: pa.RecordBatch, where: str) -> None:
    matches = filter_mask(where, pa.Table.from_batches([rows]))
    if not pc.all(matches).as_py():
        row = rows.filter(pc.invert(matches)).slice(0, 1).to_pylist()[0]
        raise InvalidInput(
            f"{core.uri}: the row {row} is not one of those to replace ({where}): run again, it"
            " would stay beside the new ones. Filter the rows, or write it apart. Nothing was"
            " written"
        )


def _hidden(base: Base, where: str, keys: Sequence[pa.Array]) -> fold.VersionEdit:
    """Hides the rows that match, and those of the keys; each fragment is changed once."""
    found = find_matching(base, where)
    if keys:
        wanted = KeySet.of(keys, keys[0].type, sum(map(len, keys)))
        for number, _ in base.fragments():
            offsets = fold.find_keys(base, number, wanted).astype(np.uint64)
            found.append(offsets | np.uint64(number << 32))
    return fold.hide_addresses(base, [np.unique(np.concatenate(found))] if found else [])


@dataclass(frozen=True)
class _StagedLevel:
    """One staged file as a level, read when it is scanned: the last row of each key."""

    core: Core
    schema: TableSchema
    staged: Staged

    @property
    def rows(self) -> int:
        return self.staged.rows

    def scan(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        intake = Intake(self.schema)
        rows = [
            shape for batch in read_staged(self.core, self.staged) for shape in intake.rows(batch)
        ]
        return MemLevel(rows, self.schema, self.core.env).scan(columns)
