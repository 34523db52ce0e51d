"""What a write says of a table that is there, and versions that can be read; without a session."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

import weir
from tests.support.spark import SCHEMA, make_table, put
from weir.format.sharding import Value
from weir.read.scan import Scan
from weir.spark.overwrite import overwrite
from weir.spark.sink import batch_writer
from weir.spark.source import asked_snapshot
from weir.spark.staging import Stage, Staged, shards_at_once
from weir.spark.types import spark_schema

MIB = 1 << 20


def write(table: weir.Table, **options: str) -> None:
    given = {"path": table.uri, **{name.lower(): text for name, text in options.items()}}
    batch_writer(given, spark_schema(SCHEMA), overwrite=False)


@pytest.mark.parametrize(
    ("option", "text", "says"),
    [
        ("primaryKey", "v", "primary key"),
        ("primaryKey", "", "primary key"),
        ("buckets", "8", "sharding"),
        ("shardBy", "v", "sharding"),
        ("writerDefaults", json.dumps({"max_memtable_rows": 7}), "writer defaults"),
    ],
)
def test_an_option_that_says_another_table_than_is_there_is_refused(
    tmp_path: Path, option: str, text: str, says: str
) -> None:
    table = make_table(tmp_path, buckets=2)
    with pytest.raises(weir.InvalidInput, match=f"has the {says} .* keeps it: leave it out"):
        write(table, **{option: text})


def test_options_that_say_what_is_there_are_taken(tmp_path: Path) -> None:
    """Also after a reshard: the stream that made the table is started again with its options."""
    table = make_table(tmp_path, buckets=2)
    write(table, primaryKey="ID", buckets="2")
    table.reshard(weir.Bucket("id", 3))
    write(table, primaryKey="id", buckets="2")
    write(table, buckets="3")


def staged(table: weir.Table, rows: dict[int, str]) -> dict[Value, list[Staged]]:
    stage = Stage(table.core, "job", 0, limit=MIB)
    stage.add(pa.record_batch({"id": list(rows), "v": list(rows.values())}, SCHEMA))
    found: dict[Value, list[Staged]] = {}
    for file in stage.finish():
        found.setdefault(file.value, []).append(file)
    return found


@pytest.mark.parametrize("keyed", [True, False])
def test_a_version_that_an_overwrite_left_can_be_read_and_others_are_refused(
    tmp_path: Path, keyed: bool
) -> None:
    table = make_table(tmp_path, keyed=keyed, buckets=2)
    put(table, {1: "old", 2: "old"})
    version = overwrite(table.core, staged(table, {1: "new", 3: "new"}), "job")
    put(table, {4: "later"})
    table.compact(fold_wal=True)
    table = weir.open(table.uri)

    def at(version: int) -> list[int]:
        taken = asked_snapshot(table, {"checkpoint": str(version)})
        found = Scan(table.core, pinned=taken.snapshot).to_table()
        return sorted(found["id"].to_pylist())

    assert table.count() == 3
    assert at(version) == [1, 3]
    newest = table.history(1)[0].version
    for other in (version - 1, newest, 10**30):
        with pytest.raises(weir.CheckpointNotFound, match="not known to be the whole table"):
            at(other)


def test_shards_with_many_rows_are_written_a_few_at_once() -> None:
    """The driver holds what it writes, some four times over."""

    def files(*sizes: int) -> list[Staged]:
        return [Staged(0, "p", 1, 0, size * MIB) for size in sizes]

    assert shards_at_once([], MIB) == 8
    assert shards_at_once([files(1)] * 20, 256 * MIB) == 8
    assert shards_at_once([files(1), files(100, 100)], 256 * MIB) == 2
    assert shards_at_once([files(300, 300)] * 3, 256 * MIB) == 2
    assert shards_at_once([files(900)], 1024 * MIB) == 1
