"""Writes: batch and stream, each row to its shard, each batch once.

Keeps
  P-1  a task that owns its shards (layout checked row by row) writes them itself; any other task
       stages its rows under a fresh name, and the driver, alone, writes the shards
  P-2  the token of a batch: (appId or query id, batch id) of a stream, (appId, txnVersion) of a
       job, and without those an id of the job, which makes retried and zombie tasks harmless
`commit` gets one message for each partition, from the winning attempt; no message names the files
that losing attempts staged. `abort` deletes nothing: a commit that raised may have taken effect.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

import weir
from weir.errors import InvalidInput, SealedShard
from weir.format import paths
from weir.format.sharding import Value
from weir.routing.core import Core
from weir.routing.reroute import REROUTES, await_heirs
from weir.shard.request_builder import WriteSpec
from weir.spark.deciding import is_done, name_of
from weir.spark.layout import Layout
from weir.spark.making import merge_columns, open_or_create
from weir.spark.options import (
    WRITE,
    canonical_options,
    check_options,
    require_changeable,
    write_spec_of,
)
from weir.spark.places import Place, flag, number, resolved
from weir.spark.publish import StagedRows, by_shard, publish
from weir.spark.queries import require_own_numbers
from weir.spark.replacing import Replaced, names_rows
from weir.spark.shard_sink import ENTRY_BYTES, ShardSink, Token
from weir.spark.snapshots import RoutedSnapshot
from weir.spark.staging import Stage, Staged, remove_staged
from weir.spark.statement import Statement
from weir.spark.types import check_written, from_spark


@dataclass(frozen=True)
class Message(WriterCommitMessage):
    """What one task did."""

    partition: int
    query: str | None = None
    staged: tuple[Staged, ...] = ()


@dataclass(frozen=True)
class Sink:
    """The part that batch and stream writers share; travels to tasks and to the commit."""

    place: Place
    layout: Layout | None
    delete_column: str | None
    entry_bytes: int
    app: str | None
    version: int | None
    asked: WriteSpec | None = None
    """An update, insert or conditional put, which depends on existing rows; None: a plain put."""
    statement: str | None = None
    """The snapshot that an SQL statement read; rows that changed since make the write fail."""
    inserts: bool = False
    """The statement marks every row that it changes: a key it only puts must be a new one."""
    statement_id: str | None = None
    """By which a rerun of the statement is recognized."""
    table_id: str | None = None
    """The table that the write was planned on."""
    replaced: Replaced = field(default_factory=Replaced)
    """The rows that an overwrite replaces."""
    job: str = field(default_factory=lambda: uuid.uuid4().hex)

    @staticmethod
    def of(options: Mapping[str, str], schema: StructType) -> Sink:
        """Check the write against the table, so that a wrong DataFrame fails before any task."""
        options = canonical_options(options)
        check_options(options, WRITE, "a write to weir")
        place = Place.of(options)
        delete_column = options.get("deletecolumn")
        if delete_column is not None:
            delete_column = resolved(delete_column, schema.fieldNames())
        table = open_or_create(place, schema, options, delete_column=delete_column)
        merge_columns(table, schema, options, delete_column=delete_column)
        asked = write_spec_of(options)
        some = asked is not None and asked.verb == "update"
        check_written(
            schema, table.core.schema().plain, table.primary_key, delete_column, some_columns=some
        )
        statement = options.get("weir.statement")
        marks = "MERGE" if statement else "deleteColumn" if delete_column else None
        require_changeable(table, options, asked.verb if asked else marks)
        statement_id = options.get("statementid")
        if statement_id is not None:
            _require_named(table.core, statement_id, statement)
        layout = Layout.from_options(options)
        if layout is not None:
            layout.check_table(table)
        return Sink(
            place=place,
            layout=layout,
            delete_column=delete_column,
            entry_bytes=number(options, "maxEntryBytes") or ENTRY_BYTES,
            app=options.get("appid"),
            version=number(options, "txnVersion", least=0),
            asked=asked,
            statement=statement,
            inserts=flag(options, "weir.inserts"),
            statement_id=statement_id,
            table_id=str(table.core.record.table_id),
            replaced=Replaced.of(table, options),
        )

    def write(self, batches: Iterator[pa.RecordBatch], token: Token | None) -> Message:
        """In a task: write the shards that it owns, or stage the rows."""
        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
        table = self.place.current()
        schema = table.core.schema().marked  # one request less: it was just opened
        if self.app is not None and token is not None and query is not None:
            require_own_numbers(table.core, self.app, query, token.version)  # guard: P-6
        rows = (
            from_spark(batch, schema, self.delete_column) for batch in batches if batch.num_rows
        )
        if self.layout is not None:
            if token is None:
                raise InvalidInput(
                    f"{table.uri}: option layout needs a batch id, and this stream has none; leave"
                    " it out"
                )
            # Checked again: the routing may have changed since the job was planned.
            self.layout.check_table(table)
            self._own(rows, token, partition)
            return Message(partition, query)
        stage = Stage(table.core, self.job, partition, limit=self.entry_bytes)
        for batch in rows:
            stage.add(batch)
        return Message(partition, query, tuple(stage.finish()))

    def _own(self, rows: Iterator[pa.RecordBatch], token: Token, partition: int) -> None:
        writers = self.place.writers()
        assert self.layout is not None, "only a laid-out task owns shards"
        sinks: dict[Value, ShardSink] = {}
        try:
            for batch in rows:
                # guard: P-1 test_p1_a_wrong_layout_is_refused
                self.layout.check_rows(batch, partition)
                for value, part in writers.core.router.split(batch):
                    if value not in sinks:
                        sinks[value] = ShardSink(
                            writers,
                            value,
                            token,
                            entry_bytes=self.entry_bytes,
                            asked=self.asked,
                        )
                    sinks[value].add(part)
            for sink in sinks.values():
                sink.finish()
        finally:
            for sink in sinks.values():
                sink.close()

    def publish(
        self, messages: Sequence[Message | None], token: Token, table: weir.Table | None = None
    ) -> None:
        """On the driver: write the staged rows, shard by shard, in the order of partitions.

        `table`: the place's handle, if its record was read just now.
        """
        if not any(m.staged for m in messages if m) and self.statement_id is None:
            return
        # Not just the handle of this process: its table may have been dropped and created again.
        core = (table or self.place.current()).core
        for attempt in core.env.attempts(REROUTES):
            routing = core.record.routing_version
            try:
                self._publish(core, messages, token)
                return
            except SealedShard as sealed:
                # Under the new routing the token tells which rows are in; that of a job which gave
                # no name is of one routing.
                if attempt == REROUTES or not token.recurs:
                    raise
                if not await_heirs(core, routing, [sealed]):
                    raise

    def _publish(self, core: Core, messages: Sequence[Message | None], token: Token) -> None:
        read = None if self.statement is None else RoutedSnapshot.from_json(self.statement)
        staged = by_shard(
            core, _files(messages), self.job, read=None if read is None else read.routing
        )
        name = None if self.statement_id is None else name_of(core, self.statement_id)
        if name is not None and is_done(core, name):
            _remove(core, staged, messages)
            return
        publish(
            self.place.writers(),
            staged,
            token,
            entry_bytes=self.entry_bytes,
            asked=self.asked,
            statement=None if read is None else Statement(read.snapshot, token, self.inserts),
            name=name,
        )
        if read is None or (name is None and len(staged) < 2):  # else reads may need them (P-8)
            _remove(core, staged, messages)

    def replace(self, messages: Sequence[Message | None]) -> None:
        """On the driver: replace what the overwrite names by the staged rows."""
        core = self.place.current().core
        staged = by_shard(core, _files(messages), self.job, read=None)
        self.replaced.by(core, staged, self.job)
        _remove(core, staged, messages)


def _require_named(core: Core, statement_id: str, statement: str | None) -> None:
    """`InvalidInput` for an empty id, and for one of a write that reads nothing of its target."""
    name_of(core, statement_id)
    if statement is None:
        raise InvalidInput(
            f"{core.uri}: option statementId has no effect on INSERT and other plain writes, and a"
            " rerun would write its rows again; it is for UPDATE, DELETE and MERGE. Give the write"
            " the options appId and txnVersion instead: a rerun with the same two changes nothing"
        )


def _files(messages: Sequence[Message | None]) -> list[tuple[int, Sequence[Staged]]]:
    return [(message.partition, message.staged) for message in messages if message]


def _remove(core: Core, staged: StagedRows, messages: Sequence[Message | None]) -> None:
    """Delete what the tasks staged, and what was staged again."""
    files = {file.path: file for files in staged.values() for file in files}
    files |= {file.path: file for message in messages if message for file in message.staged}
    remove_staged(core, list(files.values()))


class BatchWriter(DataSourceArrowWriter):
    """One `df.write.format("weir")`; without a token, one that replaces rows by one base commit."""

    def __init__(self, sink: Sink, token: Token | None) -> None:
        self._sink = sink
        self._token = token

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        """In a task."""
        return self._sink.write(iterator, self._token)

    def commit(self, messages: list[Any]) -> None:
        """On the driver, after all tasks."""
        if self._token is None:
            self._sink.replace(messages)
        else:
            self._sink.publish(messages, self._token)

    def abort(self, messages: list[Any]) -> None:
        """Nothing to undo: nothing refers to the staged files."""


class StreamWriter(DataSourceStreamArrowWriter):
    """One micro-batch of `df.writeStream.format("weir")`."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        """In a task; Spark passes the batch id only as a property of the task."""
        context = TaskContext.get()
        token = None
        if context is not None:
            batch = context.getLocalProperty("streaming.sql.batchId")
            app = self._sink.app or context.getLocalProperty("sql.streaming.queryId")
            if batch is not None and app is not None:
                token = Token(app, int(batch))
        return self._sink.write(iterator, token)

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        """On the driver; a replayed batch finds its tokens and changes nothing."""
        query = next((m.query for m in messages if m is not None and m.query), None)
        app = self._sink.app or query
        if app is None:
            if any(m is not None and m.staged for m in messages):
                raise InvalidInput("Spark passed no query id to this stream; set the option appId")
            return
        sink = self._sink
        # Spark made this writer in this process just now, and so its table's record was read.
        table = None if sink.table_id is None else sink.place.planned(sink.table_id)
        sink.publish(messages, Token(app, batchId), table)

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        """Nothing to undo: the batch is replayed, or nothing refers to the files it staged."""


def batch_writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> DataSourceArrowWriter:
    """The writer of a batch job; refuses unsupported options before anything runs."""
    if overwrite:
        return _overwriter(options, schema)
    sink = _appending(options, schema)
    if (sink.app is None) != (sink.version is None):
        raise InvalidInput("appId and txnVersion go together: give both, or neither")
    app, version = sink.app, sink.version
    token = (
        Token(f"{paths.JOB_APP}{sink.job}", 0)
        if app is None or version is None
        else Token(app, version)
    )
    return BatchWriter(sink, token)


def stream_writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> DataSourceStreamArrowWriter:
    """The writer of a stream."""
    if overwrite:
        raise InvalidInput(
            "output mode complete would replace the table with every batch; use append, which"
            " upserts by key, or foreachBatch"
        )
    sink = _appending(options, schema)
    if sink.version is not None:
        raise InvalidInput("txnVersion is for batch jobs; a stream counts its own batches")
    return StreamWriter(sink)


def _appending(options: Mapping[str, str], schema: StructType) -> Sink:
    if names_rows(canonical_options(options)):
        raise InvalidInput(
            "options replaceWhere and partitionOverwriteMode go with mode overwrite, not append"
        )
    return Sink.of(options, schema)


def _overwriter(options: Mapping[str, str], schema: StructType) -> BatchWriter:
    options = canonical_options(options)  # Delta's names are refused as well
    if not (flag(options, "overwrite") or names_rows(options)):
        raise InvalidInput(
            "mode overwrite replaces every row of the table, and must be confirmed:"
            ' .mode("overwrite").option("overwrite", "true"), in SQL INSERT OVERWRITE t WITH'
            " ('overwrite' = 'true') SELECT ... . Or use"
            " weir.spark.bulk_load(df, uri, replace=True), or say which rows, by the option"
            " replaceWhere. To upsert by key, use mode append"
        )
    for name in ("deleteColumn", "appId", "statementId", "txnVersion", "weir.write", "when"):
        if name.lower() in options:
            raise InvalidInput(
                f"option {name} cannot be combined with mode overwrite; leave it out"
            )
    return BatchWriter(replace(Sink.of(options, schema), layout=None), None)
