"""Bulk load: write a DataFrame straight into the base table, distributed, in one commit.

The rows bypass the log, and change feeds of the table stop: no entry tells of the load. Keys must
be unique in the DataFrame. Rows with the same keys that were written before the call are replaced,
wherever they are; rows that writers put while it runs are newer and stay on top (L-9).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

import weir
from weir.config import WriterConfig
from weir.errors import InvalidInput, NotAWeirTable, WeirError
from weir.format import paths
from weir.format.sharding import Sharding
from weir.lake.api import Base
from weir.lake.base import fold
from weir.making import complete
from weir.routing.core import Core
from weir.spark.failures import unwrap_errors
from weir.spark.making import TableSpec
from weir.spark.places import Place, backquoted, resolved
from weir.spark.runner import SparkRunner, slots_of, watched
from weir.spark.types import arrow_schema, check_written, from_spark, with_columns
from weir.store.api import put_new
from weir.upkeep.compact.split import fragment_shares
from weir.upkeep.compact.tidying import tidy
from weir.upkeep.drop import drop
from weir.upkeep.loads import PreparedLoad, load
from weir.upkeep.tasks import Progress

logger = logging.getLogger("weir.spark")

_KEY_FILE_ROWS = 4_000_000


@dataclass(frozen=True)
class BulkReport:
    """What a bulk load did."""

    base_version: int
    rows: int
    files: int
    notes: tuple[str, ...] = ()
    """What was left undone after the commit, and who does it: indexes that could not be updated."""


def bulk_load(
    df: DataFrame,
    uri: str,
    *,
    primary_key: str | Sequence[str] | None = None,
    sharding: Sharding | None = None,
    replace: bool = False,
    tasks: int | None = None,
    indexes: bool = True,
    wal_uri: str | None = None,
    writer_defaults: WriterConfig | None = None,
    storage_options: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> BulkReport:
    """Write `df` into the base of the table at `uri`, which is created if there is none.

    All or nothing, in one commit. `replace` replaces everything the table held when the commit was
    planned; rows that others write after that stay. On a table with a key, or with `replace`,
    writers of shards whose log holds rows are fenced: those rows are older, and go below the load
    first. Raises `InvalidInput` when a key occurs twice in `df`, `CommitConflict` when a compaction
    is running, when one took over midway (this process did not renew its claim for a minute), or
    when another program changed the base: run it again. `tasks`: the least number of files.
    `indexes`: update the table's indexes with the new rows after the commit, in one task.
    `primary_key`, `sharding`, `wal_uri` and `writer_defaults` are those of `weir.create`; only key
    columns become NOT NULL. A table that is created is found when all rows are in, and not before.
    """
    place = Place(uri, dict(storage_options or {}))
    key = (primary_key,) if isinstance(primary_key, str) else primary_key
    spec = TableSpec(None if key is None else tuple(key), sharding, wal_uri, writer_defaults)
    table, place = _table(place, df, spec)
    core = table.core
    try:
        check_written(df.schema, table.schema, table.primary_key, None)
        with unwrap_errors():
            report, keys = _load(df, table, place, replace=replace, tasks=tasks, progress=progress)
        if place.maker is not None:
            complete(table)
    except Exception:
        if place.maker is not None:
            with contextlib.suppress(WeirError):
                drop(core)
        raise
    runner = SparkRunner(df.sparkSession, place, group="weir-bulk")
    notes = _afterwards(
        core, "deleting the staged keys (gc does it)", lambda: core.store.delete(keys)
    )
    if indexes:
        notes += _afterwards(
            core,
            "updating the indexes (compact does it)",
            lambda: tidy(core, rewrite=False, engine=runner),
        )
    return dataclasses.replace(report, notes=tuple(notes))


def _afterwards(core: Core, what: str, act: Callable[[], list[str] | None]) -> list[str]:
    """The notes of work after the commit. It cannot fail the load, whose rows are in: a load that
    is reported as failed is run again (L-7)."""
    try:
        return act() or []
    except Exception as error:  # noqa: BLE001  Spark's too
        logger.warning("bulk.after.failed table=%s work=%s reason=%s", core.uri, what, error)
        return [f"all rows are in; {what} failed: {error}"]


def _load(
    df: DataFrame,
    table: weir.Table,
    place: Place,
    *,
    replace: bool,
    tasks: int | None,
    progress: Progress | None,
) -> tuple[BulkReport, list[str]]:
    """What was loaded, and the files of staged keys."""
    uri = place.uri
    core = table.core
    job = uuid.uuid4().hex
    spark = df.sparkSession
    count = tasks or max(slots_of(spark), 1)
    keys: list[str] = []

    def write(base: Base) -> PreparedLoad:
        hides = bool(table.primary_key and not replace and base.fragments())
        frame = _spread(df, table.primary_key, count)
        told = frame.mapInArrow(
            _write_function(place, base.version, job, stage_keys=hides), "result string"
        )
        with watched(spark, f"weir-bulk {uri}", "bulk_load", count, progress):
            results = [json.loads(row["result"]) for row in told.collect()]
        parts = [fold.VersionEdit.from_json(result["changes"]) for result in results]
        rows = sum(result["rows"] for result in results)
        keys.extend(path for result in results for path in result["keys"])
        if keys:
            parts += _hide(spark, place, core, base, keys, rows, progress)
        return PreparedLoad(fold.combine(parts), rows)

    runner = SparkRunner(spark, place, group="weir-bulk")
    version, written = load(core, write, job_id=job, replaces=replace, engine=runner)
    return BulkReport(version, written.rows, len(written.changes.added)), keys


def _table(place: Place, df: DataFrame, spec: TableSpec) -> tuple[weir.Table, Place]:
    """The table; one that is created has a place of its own until its rows are in (P-9)."""
    try:
        table = place.current()
    except NotAWeirTable:
        place = dataclasses.replace(place, maker=str(uuid.uuid4()))
        return spec.create(place, arrow_schema(df.schema)), place
    spec.require_same(table)
    return table, place


def _spread(df: DataFrame, key: Sequence[str], count: int) -> DataFrame:
    """Send all rows of a key to one task, sorted: duplicates are adjacent, files are clustered."""
    if not key:
        return df
    names = [backquoted(resolved(name, df.columns)) for name in key]
    number = F.expr(f"cast((hash({', '.join(names)}) & 2147483647) % {count} as int)")
    return df.repartitionById(count, number).sortWithinPartitions(*names)


def _write_function(
    place: Place, version: int, job: str, *, stage_keys: bool
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Not a cached handle: it may be of a failed load, whose table was dropped.
        table = place.current()
        base = table.core.lake.open_base(version)
        load = _LoadTask(table, job, stage_keys=stage_keys)
        try:
            changes = fold.write_rows(base, load.rows(batches))
        except WeirError:
            # Lance reads the rows, and would report a refused row as an error of its own.
            if load.refused is not None:
                raise load.refused from None
            raise
        result = {"changes": changes.to_json(), "rows": load.count, "keys": load.key_files()}
        yield pa.RecordBatch.from_pydict({"result": [json.dumps(result)]})

    return run


class _LoadTask:
    """The rows of one task on their way to the file."""

    def __init__(self, table: weir.Table, job: str, *, stage_keys: bool) -> None:
        self._table = table
        self._key = list(table.primary_key)
        self._job = job
        self._keys: list[pa.RecordBatch] | None = [] if stage_keys else None
        self._last: pa.Table | None = None
        self.count = 0
        self.refused: WeirError | None = None

    def rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows in the base's columns; `InvalidInput` for a key that is null or occurs twice."""
        try:
            yield from self._rows(batches)
        except WeirError as error:
            self.refused = error
            raise

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = self._table.schema
        for raw in batches:
            if not raw.num_rows:
                continue
            batch = with_columns(from_spark(raw, schema, None), schema)
            if self._key:
                self._check(batch.select(self._key))
            self.count += batch.num_rows
            yield batch

    def _check(self, keys: pa.RecordBatch) -> None:
        for name in self._key:
            if keys.column(name).null_count:
                raise InvalidInput(
                    f"key column {name!r} holds a null; every row needs its key. Nothing was"
                    " written"
                )
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
                raise InvalidInput(
                    f"the DataFrame holds the key {key} twice; deduplicate it by key. Nothing was"
                    " written"
                )
        self._last = table.slice(table.num_rows - 1)
        if self._keys is not None:
            self._keys.append(keys)

    def key_files(self) -> list[str]:
        """Stage the keys for the tasks that look for replaced rows; returns the files."""
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
            put_new(core.store, path, memoryview(sink.getvalue()).cast("B"))
            files.append(path)
        return files


def _hide(
    spark: Any,
    place: Place,
    core: Core,
    base: Base,
    keys: list[str],
    rows: int,
    progress: Progress | None,
) -> list[fold.VersionEdit]:
    runner = SparkRunner(spark, place, group="weir-bulk")
    tasks = [
        {"run": "loads.hide_rows", "version": base.version, "keys": keys, **share}
        for share in fragment_shares(base, max(rows, 1), runner.slots)
    ]
    results = runner.run(core, tasks, progress)
    return [fold.VersionEdit.from_json(result["changes"]) for result in results]
