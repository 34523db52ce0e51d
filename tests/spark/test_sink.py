"""What tasks stage and the driver writes, without a session: the table changes in between."""

import json
import os
import uuid
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

import weir
import weir.spark
from tests.crash.test_sink_commit import Here
from tests.support.spark import SCHEMA, in_weir, make_table, once, put
from weir.env import Env
from weir.errors import CommitConflict, FencedError, InvalidInput
from weir.shard.writer import ShardWriter
from weir.spark import places, writers
from weir.spark.places import Place
from weir.spark.shard_sink import ENTRY_BYTES, ShardSink, Token
from weir.spark.sink import Message, Sink, batch_writer, stream_writer
from weir.spark.snapshots import RoutedSnapshot
from weir.spark.types import spark_schema
from weir.spark.writers import ShardWriters
from weir.testing.seaweed import SeaweedServer


def sink_of(
    table: weir.Table, read: RoutedSnapshot | None = None, *, inserts: bool = False
) -> Sink:
    return Sink(
        place=Place(table.uri),
        layout=None,
        delete_column=None,
        entry_bytes=ENTRY_BYTES,
        app=None,
        version=None,
        statement=None if read is None else read.to_json(),
        inserts=inserts,
    )


def task(sink: Sink, partition: int, rows: dict[int, str]) -> Message:
    """What the task of that partition does."""
    columns = {"id": list(rows), "v": list(rows.values())}
    batch = pa.RecordBatch.from_pydict(columns, schema=SCHEMA)
    done = sink.write(iter([batch]), None)
    return Message(partition, done.query, done.staged)


def token() -> Token:
    return Token(uuid.uuid4().hex, 0)


@pytest.mark.parametrize("staged", ["before", "after"])
def test_p7_an_update_beside_a_reshard_does_not_undo_a_put(tmp_path: Path, staged: str) -> None:
    """The rows may be staged under either routing: the snapshot is of the old one."""
    table = make_table(tmp_path)
    put(table, {1: "0", 2: "0"})
    read = RoutedSnapshot.take(weir.open(table.uri))
    sink = sink_of(table, read)
    messages = [task(sink, 0, {1: "from 0"})] if staged == "before" else []
    put(table, {1: "100"})
    weir.open(table.uri).reshard(weir.Bucket("id", 5))
    messages = messages or [task(sink, 0, {1: "from 0"})]
    with pytest.raises(CommitConflict, match="resharded"):
        sink.publish(messages, token())
    assert in_weir(table) == once({1: "100", 2: "0"})


@pytest.mark.parametrize("keyed", [True, False])
def test_p1_tasks_that_staged_before_and_after_a_reshard_are_written_once(
    tmp_path: Path, keyed: bool
) -> None:
    table = make_table(tmp_path, keyed=keyed)
    sink = sink_of(table)
    first = task(sink, 0, dict.fromkeys(range(12), "first"))
    weir.open(table.uri).reshard(weir.Bucket("id", 5))
    second = task(sink, 1, dict.fromkeys(range(6, 18), "second"))
    sink.publish([second, first], token())
    found = in_weir(table)
    old = Counter((k, "first") for k in range(6 if keyed else 12))
    assert found == old + Counter((k, "second") for k in range(6, 18))
    assert not list(table.core.store.list("_weir/staging"))


def test_p2_a_reshard_inside_a_commit_neither_stops_nor_doubles_a_batch(tmp_path: Path) -> None:
    """Some shards have taken their rows when the others are sealed."""
    table = make_table(tmp_path, keyed=False)
    claims: list[str] = []

    def reached(step: str) -> None:
        if step == "claim.probed":
            claims.append(step)
            if len(claims) == 3:
                weir.open(table.uri).reshard(weir.Bucket("id", 5))

    here = weir.open(table.uri, env=Env(failpoint=reached))
    sink = replace(sink_of(table), place=cast("Place", Here(here)))
    rows = dict.fromkeys(range(60), "x")
    for _ in range(2):  # once more, as after a death of the driver
        sink.publish([task(sink, 0, rows)], Token("query", 0))
        assert in_weir(table) == once(rows)
    assert weir.open(table.uri).sharding == weir.Bucket("id", 5)


def test_l4_an_overwrite_beside_a_reshard_keeps_one_row_of_each_key(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    put(table, {1: "old", 99: "old"})
    sink = sink_of(table)
    first = task(sink, 0, dict.fromkeys(range(6), "first"))
    weir.open(table.uri).reshard(weir.Bucket("id", 5))
    second = task(sink, 1, dict.fromkeys(range(2, 8), "second"))
    sink.replace([first, second])
    expected = {k: "first" if k < 2 else "second" for k in range(8)}
    assert in_weir(table, freshness="base") == in_weir(table) == once(expected)


def test_l4_an_overwrite_replaces_the_table_of_now_and_not_a_dropped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process keeps the handle of a table that was dropped and made again with another key."""
    uri = str(tmp_path / "t")
    weir.create(uri, SCHEMA, primary_key="id")
    place = Place(uri)
    old = place.current()  # in the process of the commit, which wrote to it
    sink_of(old).replace([task(sink_of(old), 0, {1: "old"})])
    assert in_weir(old) == once({1: "old"})
    weir.drop(uri)
    table = weir.create(uri, SCHEMA)
    place.forget()
    messages = [task(sink_of(table), 0, {1: "a"})]  # in another process
    key = os.getpid(), place.uri, None
    monkeypatch.setitem(places._OPEN, key, places._Opened(old, ShardWriters(old.core), {}))
    sink_of(table).replace(messages)
    assert in_weir(table) == once({1: "a"})
    put(table, {1: "b"})
    assert in_weir(table).total() == 2


def test_p1_a_claim_that_is_lost_at_once_is_made_again(tmp_path: Path) -> None:
    """A statement claims its shards first; a stream beside it claims the same ones all the time."""
    table = make_table(tmp_path, buckets=1)
    put(table, {1: "a"})
    calls = []

    def guard(shard: uuid.UUID) -> None:
        calls.append(shard)
        if len(calls) < 3:
            raise FencedError("another writer took the shard over", epoch=1, fenced_by=2)

    sink = ShardSink(ShardWriters(table.core), 0, token(), guard=guard)
    sink.claim(SCHEMA)
    sink.add(pa.RecordBatch.from_pylist([{"id": 1, "v": "b"}], schema=SCHEMA))
    sink.finish()
    assert len(calls) == 3
    assert in_weir(table) == once({1: "b"})


def test_p2_a_batch_that_is_in_does_not_fail_when_the_shard_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the durable put and the close: an error would make an UPDATE be run twice."""
    monkeypatch.setattr(writers, "GAP_ENTRIES", 0)  # as after 48 batches: the writer flushes
    table = make_table(tmp_path, buckets=1)
    put(table, {1: "a"})
    put_once = ShardWriter.put_once

    def then_taken_over(writer: ShardWriter, *args: Any, **kwargs: Any) -> bool:
        done = put_once(writer, *args, **kwargs)
        with weir.open(table.uri).shard(0).writer() as other:
            other.put([{"id": 7, "v": "other"}])
        return done

    monkeypatch.setattr(ShardWriter, "put_once", then_taken_over)
    sink = sink_of(table)
    sink.publish([task(sink, 0, {1: "b"})], token())
    assert in_weir(table) == once({1: "b", 7: "other"})


def test_s7_a_sink_writes_where_the_store_of_the_log_was_lost_with_nothing_missing(
    tmp_path: Path,
) -> None:
    table = make_table(tmp_path, wal_uri=str(tmp_path / "wal"), buckets=1)
    put(table, {1: "a"})
    (tmp_path / "wal").rename(tmp_path / "gone")
    sink = sink_of(table)
    sink.publish([task(sink, 0, {2: "b"})], token())
    assert in_weir(table) == once({1: "a", 2: "b"})


def test_an_overwrite_refuses_deltas_names_of_refused_options(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    options = {"path": table.uri, "overwrite": "true", "txnappid": "nightly"}
    with pytest.raises(InvalidInput, match="appId cannot be combined"):
        batch_writer(options, spark_schema(table.schema), overwrite=True)


@pytest.mark.parametrize(
    "options", [{"replacewhere": "id = 1"}, {"partitionoverwritemode": "dynamic"}]
)
def test_what_names_rows_to_replace_is_refused_where_nothing_is_replaced(
    tmp_path: Path, options: dict[str, str]
) -> None:
    """A stream took it, and appended."""
    table = weir.create(f"{tmp_path}/t", SCHEMA, primary_key="id", sharding=weir.Identity("id"))
    for writer in (batch_writer, stream_writer):
        with pytest.raises(InvalidInput, match="go with mode overwrite"):
            writer({"path": table.uri, **options}, spark_schema(SCHEMA), overwrite=False)


def test_storage_options_from_the_environment_reach_the_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LAKE_SECRET", '{"aws_region": "x", "aws_endpoint": "y"}')
    options = {"storageOptionsFrom": "LAKE_SECRET", "walUri": "s3a://b/w"}
    place = Place.given("s3://b/t", {"aws_region": "own"}, options)
    assert place.storage == {"aws_region": "own", "aws_endpoint": "y"}
    assert place.wal_uri == "s3://b/w"


class Recorded:
    """Stands in for a session's reader: notes the options, and loads nothing."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self.readStream = self

    def format(self, name: str) -> "Recorded":
        assert name == "weir"
        return self

    def option(self, name: str, value: str) -> "Recorded":
        return self.options(**{name: value})

    def options(self, **given: str) -> "Recorded":
        self.found |= given
        return self

    def load(self, uri: str) -> dict[str, str]:
        return self.found | {"uri": uri}


def test_a_feed_from_now_reads_its_positions_with_options_from_the_environment(
    s3: SeaweedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver looks up where "latest" is; without the options it reached no server at all."""
    uri, given = f"s3://weir-test/{uuid.uuid4().hex}", s3.storage_options()
    table = weir.create(uri, SCHEMA, primary_key="id", storage_options=given)
    with table.writer() as writer:
        writer.put([{"id": 1, "v": "a"}])
    monkeypatch.setenv("LAKE_SECRET", json.dumps(given))
    options = {"storageOptionsFrom": "LAKE_SECRET"}
    session = cast("Any", Recorded())
    found = cast(
        "dict[str, str]", weir.spark.changes(session, uri, since="latest", options=options)
    )
    positions = json.loads(found.pop("startingOffsets"))
    assert positions == {str(table.shards()[0].id): int(table.shards()[0].log.tip())}
    assert found == {"uri": uri, "storageOptionsFrom": "LAKE_SECRET"}
