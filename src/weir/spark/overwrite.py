"""Mode overwrite: the rows that tasks staged replace everything the table held.

One base commit, made on the driver: all or nothing for the whole table (L-4). Rows that writers put
in the meantime are newer and stay. Like a bulk load it bypasses the log, and stops the change feeds
of the table. Tables too large for one process go through
`weir.spark.bulk_load(replace=True)`, which writes the files on executors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from weir.format.schema import TableSchema
from weir.format.sharding import Value
from weir.lake.api import Base
from weir.lake.base import fold
from weir.log.intake import Intake
from weir.merge.levels import MemLevel, shaped
from weir.merge.merge import winners
from weir.routing.core import Core
from weir.spark.staging import Staged, read_staged
from weir.upkeep.loads import PreparedLoad, load

WORKERS: Final = 2
"""Shards written at once; each holds one staged file and the keys of its shard."""


def overwrite(core: Core, staged: Mapping[Value, Sequence[Staged]], job: str) -> int:
    """Replace all rows of the table by the staged ones; returns the base version that holds them.

    Of several rows with one key the last counts, as in a write. Raises `CommitConflict` when a
    compaction took over midway: then nothing was replaced, and the job can be run again.
    """

    def write(base: Base) -> PreparedLoad:
        schema = base.schema

        def one(files: Sequence[Staged]) -> PreparedLoad:
            levels = [_StagedLevel(core, schema, file) for file in reversed(files)]
            count = 0

            def newest() -> Iterator[pa.RecordBatch]:
                nonlocal count
                for batch in winners(levels, schema, core.env):
                    count += batch.num_rows
                    yield shaped(batch, schema.plain)

            changes = fold.write_rows(base, newest())
            return PreparedLoad(changes, count)

        done = core.env.threads.map(one, list(staged.values()), workers=WORKERS)
        changes = fold.combine(part.changes for part in done)
        return PreparedLoad(changes, sum(part.rows for part in done))

    version, _ = load(core, write, job_id=job, replaces=True)
    return version


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
