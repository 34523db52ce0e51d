"""Mode overwrite: the rows that tasks staged, in the place of everything the table held.

One base commit, made on the driver: all or nothing for the whole table (L-4). Writers' rows that
come while it is made are newer and stay. As bulk loads do, it passes the log by: a change feed sees
neither the rows that go nor those that come. Tables too large for one process go through
`weir.spark.bulk_load(replace=True)`, which writes the files on executors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, cast

import pyarrow as pa

import weir
from weir.format.keys import pk_type, pk_values
from weir.format.sharding import Value
from weir.keys.seen import KeySet
from weir.lake.base import fold
from weir.lake.pylance_lake import PylanceLake
from weir.log.intake import Intake
from weir.merge.levels import MemLevel, shaped
from weir.spark.bulk import close_logs, commit_replacing
from weir.spark.staging import Staged, read_staged
from weir.upkeep.exclusive import without_compaction

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
        marks = close_logs(table)
        base = lake.open_base()

        def one(files: list[Staged]) -> tuple[fold.Changes, int]:
            rows = _Newest(table, files)
            return fold.write_rows(base, rows.batches()), rows.count

        done = core.env.threads.map(one, list(staged.values()), workers=WORKERS)
        added = fold.together(changes for changes, _ in done).added
        count = sum(rows for _, rows in done)
        return commit_replacing(lake, hold, base, added, marks, job, count)


class _Newest:
    """The newest row of each key of one shard, from its staged files."""

    def __init__(self, table: weir.Table, files: Sequence[Staged]) -> None:
        self._core = table.core
        self._schema = table.core.schema()
        self._files = files
        self.count = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Newest file first; keys that were seen are older rows."""
        schema = self._schema
        key = schema.primary_key
        intake = Intake(schema)
        seen = KeySet(pk_type(schema.key_schema, key)) if key else None
        for staged in reversed(self._files):
            rows = [
                shape for batch in read_staged(self._core, staged) for shape in intake.rows(batch)
            ]
            for batch in MemLevel(rows, schema, self._core.env).scan():
                kept = batch
                if seen is not None:
                    keys = pk_values(batch, key)
                    mask = seen.new(keys)
                    kept = batch if mask is None else batch.filter(pa.array(mask))
                    seen.add(keys)
                if kept.num_rows:
                    self.count += kept.num_rows
                    yield shaped(kept, schema.plain)
