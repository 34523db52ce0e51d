"""Bulk load: a DataFrame straight into the base table, distributed, in one commit.

The rows do not pass the log: a change feed does not see the load. Keys must be unique in the
DataFrame; rows with the same keys that were written before the call are replaced, wherever they
are, and what writers write while it runs is newer and stays on top (L-9).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

import weir
from weir.errors import InvalidInput, NotAWeirTable
from weir.format import paths
from weir.format.sharding import Sharding
from weir.lake.base import fold
from weir.lake.base.fold_commit import hide_nothing
from weir.lake.base.view import LanceBase
from weir.lake.pylance_lake import PylanceLake
from weir.routing.core import Core
from weir.spark.console import Show, shown
from weir.spark.places import Place
from weir.spark.runner import SparkRunner, slots_of, watched
from weir.spark.types import arrow_schema, check_written, from_spark
from weir.upkeep.compact.cut import fragment_shares
from weir.upkeep.exclusive import Hold, without_compaction
from weir.upkeep.loads import close_logs, commit_replacing, fold_older
from weir.upkeep.tasks import Progress

ROWS = "weir.bulk"
"""Property of a bulk load's base commit: how many rows it brought."""
_KEY_FILE_ROWS = 4_000_000


@dataclass(frozen=True)
class BulkReport:
    """What a bulk load did."""

    base_version: int
    rows: int
    files: int


def bulk_load(
    df: DataFrame,
    uri: str,
    *,
    primary_key: str | Sequence[str] | None = None,
    sharding: Sharding | None = None,
    replace: bool = False,
    tasks: int | None = None,
    storage_options: Mapping[str, str] | None = None,
    progress: Show = None,
) -> BulkReport:
    """Write `df` into the base of the table at `uri`, made with that key when there is none.

    All or nothing, in one commit. `replace` puts the rows in the place of everything the table
    held when the commit was planned; rows written by others meanwhile stay. On a table with a key,
    and with `replace`, writers of shards whose log holds rows are fenced: those rows are older and
    are put below the load first. Raises `InvalidInput` when a key occurs twice in `df`,
    `CommitConflict` when a compaction is at work or took over in the middle (this process was not
    heard of for 15 minutes), or another program changed the base: run it again. `tasks`: into how
    many files at least.
    """
    place = Place(uri, dict(storage_options or {}))
    table = _table(place, df, primary_key, sharding)
    check_written(df.schema, table.schema, table.primary_key, None)
    core = table.core
    lake = cast("PylanceLake", core.lake)
    job = uuid.uuid4().hex
    spark = df.sparkSession
    if table.primary_key and not replace:
        fold_older(core, SparkRunner(spark, place, group="weir-bulk"))
    with shown(progress, uri, spark) as show, without_compaction(core) as hold:
        tell = hold.telling(show)
        ended = close_logs(core) if replace else ()
        base = lake.open_base()
        old = [] if replace else [fragment for fragment, _ in base.fragments()]
        count = tasks or max(slots_of(spark), 1)
        frame = _spread(df, table.primary_key, count)
        written = frame.mapInArrow(
            _write_function(place, base.version, job, stage_keys=bool(old and table.primary_key)),
            "result string",
        )
        with watched(spark, f"weir-bulk {uri}", "bulk_load", count, tell):
            results = [json.loads(row["result"]) for row in written.collect()]
        parts = [fold.Changes.from_json(result["changes"]) for result in results]
        rows = sum(result["rows"] for result in results)
        keys = [path for result in results for path in result["keys"]]
        if keys:
            parts += _hide(spark, place, core, base, keys, rows, tell)
        changes = fold.combine(parts)
        if replace:
            version = commit_replacing(
                core, hold, base, changes.added, ended, job_id=job, properties={ROWS: str(rows)}
            )
        else:
            version = _commit(lake, hold, base, changes, job, rows)
    core.store.delete(keys)
    return BulkReport(version, rows, len(changes.added))


def _table(
    place: Place,
    df: DataFrame,
    primary_key: str | Sequence[str] | None,
    sharding: Sharding | None,
) -> weir.Table:
    try:
        table = place.current()
    except NotAWeirTable:
        key = [primary_key] if isinstance(primary_key, str) else list(primary_key or ())
        fields = [
            f.with_nullable(f.nullable and f.name not in key) for f in arrow_schema(df.schema)
        ]
        return weir.create(
            place.uri,
            pa.schema(fields),
            primary_key=primary_key,
            sharding=sharding,
            storage_options=dict(place.storage),
        )
    wanted = (primary_key,) if isinstance(primary_key, str) else tuple(primary_key or ())
    if wanted and wanted != table.primary_key:
        raise InvalidInput(f"{table.uri} has the primary key {table.primary_key}, not {wanted}")
    if sharding is not None and sharding != table.sharding:
        raise InvalidInput(f"{table.uri} is sharded by {table.sharding}; table.reshard changes it")
    return table


def _commit(
    lake: PylanceLake, hold: Hold, base: LanceBase, changes: fold.Changes, job: str, rows: int
) -> int:
    hold.require()
    return lake.commit_fold(
        changes,
        claim=fold.Claim(hold.record.token, base.version),
        planned_at=base.version,
        fold_id=job,
        properties={ROWS: str(rows)},
        hide=None if base.schema.primary_key else hide_nothing,
    )


def _spread(df: DataFrame, key: Sequence[str], count: int) -> DataFrame:
    """All rows of a key in one task, sorted: duplicates are neighbours, files are clustered."""
    if not key:
        return df
    quoted = ", ".join("`" + name.replace("`", "``") + "`" for name in key)
    number = F.expr(f"cast((hash({quoted}) & 2147483647) % {count} as int)")
    return df.repartitionById(count, number).sortWithinPartitions(*key)


def _write_function(
    place: Place, version: int, job: str, *, stage_keys: bool
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        table = place.open()
        base = table.core.lake.open_base(version)
        assert isinstance(base, LanceBase), "a bulk load works on Lance"
        load = _Load(table, job, stage_keys=stage_keys)
        changes = fold.write_rows(base, load.rows(batches))
        result = {"changes": changes.to_json(), "rows": load.count, "keys": load.key_files()}
        yield pa.RecordBatch.from_pydict({"result": [json.dumps(result)]})

    return run


class _Load:
    """The rows of one task on their way to the file."""

    def __init__(self, table: weir.Table, job: str, *, stage_keys: bool) -> None:
        self._table = table
        self._key = list(table.primary_key)
        self._job = job
        self._keys: list[pa.RecordBatch] | None = [] if stage_keys else None
        self._last: pa.Table | None = None
        self.count = 0

    def rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """In the base's columns; `InvalidInput` for a key that occurs twice."""
        schema = self._table.schema
        for raw in batches:
            if not raw.num_rows:
                continue
            batch = _complete(from_spark(raw, schema, None), schema)
            if self._key:
                self._check(batch.select(self._key))
            self.count += batch.num_rows
            yield batch

    def _check(self, keys: pa.RecordBatch) -> None:
        table = pa.Table.from_batches([keys])
        joined = table if self._last is None else pa.concat_tables([self._last, table])
        joined = joined.combine_chunks()
        if joined.num_rows > 1:
            same = None
            for name in self._key:
                column = joined.column(name)
                equal = pc.equal(column.slice(1), column.slice(0, len(column) - 1))
                same = equal if same is None else pc.and_(same, equal)
            if pc.any(same).as_py():
                where = pc.index(same, True).as_py()
                key = joined.slice(where, 1).to_pylist()[0]
                raise InvalidInput(f"the DataFrame holds the key {key} twice; nothing was written")
        self._last = table.slice(table.num_rows - 1)
        if self._keys is not None:
            self._keys.append(keys)

    def key_files(self) -> list[str]:
        """The keys, staged for the tasks that look for replaced rows."""
        if not self._keys:
            return []
        core = self._table.core
        files = []
        keys = pa.Table.from_batches(self._keys).cast(core.schema().key_schema)
        for start in range(0, keys.num_rows, _KEY_FILE_ROWS):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, keys.schema) as writer:
                writer.write_table(keys.slice(start, _KEY_FILE_ROWS))
            path = paths.staged_path(self._job, f"keys-{core.env.new_id().hex}")
            core.store.put_if_absent(path, memoryview(sink.getvalue()).cast("B"))
            files.append(path)
        return files


def _complete(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """With columns the DataFrame left out, as nulls."""
    columns = [
        batch.column(f.name) if f.name in batch.schema.names else pa.nulls(batch.num_rows, f.type)
        for f in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _hide(
    spark: Any,
    place: Place,
    core: Core,
    base: LanceBase,
    keys: list[str],
    rows: int,
    progress: Progress | None,
) -> list[fold.Changes]:
    runner = SparkRunner(spark, place, group="weir-bulk")
    tasks = [
        {"run": "loads.hide_rows", "version": base.version, "keys": keys, **share}
        for share in fragment_shares(base, max(rows, 1), runner.slots)
    ]
    results = runner.run(core, tasks, progress)
    return [fold.Changes.from_json(result["changes"]) for result in results]
