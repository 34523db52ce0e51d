"""Mode overwrite: the rows that tasks staged, in the place of everything the table held.

One base commit, made on the driver: all or nothing for the whole table (L-4). Writers' rows that
come while it is made are newer and stay. As bulk loads do, it passes the log by: a change feed sees
neither the rows that go nor those that come. Tables too large for one process go through
`weir.spark.bulk_load(replace=True)`, which writes the files on executors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, cast

import pyarrow as pa

import weir
from weir.format.schema import TableSchema
from weir.format.sharding import Value
from weir.lake.base import fold
from weir.lake.pylance_lake import PylanceLake
from weir.log.intake import Intake
from weir.merge.levels import MemLevel, shaped
from weir.merge.merge import winners
from weir.routing.core import Core
from weir.spark.bulk import ROWS
from weir.spark.staging import Staged, read_staged
from weir.upkeep.exclusive import without_compaction
from weir.upkeep.loads import close_logs, commit_replacing

WORKERS: Final = 2
"""Shards written at once; each holds one staged file and the keys of its shard."""


def overwrite(table: weir.Table, staged: dict[Value, list[Staged]], job: str) -> int:
    """Replace all rows of `table` by what was staged; the base version they are in.

    Of several rows with one key the last counts, as in a write. Raises `CommitConflict` when a
    compaction took over in the middle: nothing was replaced then, run it again.
    """
    core = table.core
    lake = cast("PylanceLake", core.lake)
    with without_compaction(core) as hold:
        ended = close_logs(core)
        base = lake.open_base()

        schema = base.schema

        def one(files: list[Staged]) -> tuple[fold.Changes, int]:
            levels = [_StagedLevel(core, schema, file) for file in reversed(files)]
            count = 0

            def newest() -> Iterator[pa.RecordBatch]:
                nonlocal count
                for batch in winners(levels, schema, core.env):
                    count += batch.num_rows
                    yield shaped(batch, schema.plain)

            changes = fold.write_rows(base, newest())
            return changes, count

        done = core.env.threads.map(one, list(staged.values()), workers=WORKERS)
        added = fold.combine(changes for changes, _ in done).added
        count = sum(rows for _, rows in done)
        return commit_replacing(
            core, hold, base, added, ended, job_id=job, properties={ROWS: str(count)}
        )


@dataclass(frozen=True)
class _StagedLevel:
    """One staged file as a level: read when its turn comes, the last row of each key."""

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
