"""Messages name the thing that is wrong, by the caller's own names, and what to do about it."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import weir

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("v", pa.float32()),
        pa.field("note", pa.string()),
    ]
)
OF_LANCE = ("_row", "_distance", "_score", "weir_anchor", "Valid fields")


@pytest.fixture
def table(tmp_path: Path) -> weir.Table:
    table = weir.create(
        str(tmp_path / "t"), SCHEMA, primary_key="id", sharding=weir.Bucket("id", 4)
    )
    with table.writer() as writer:
        writer.put([{"id": n, "v": n} for n in range(20)])
    return table


def update(table: weir.Table, filter: object) -> None:
    with table.writer() as writer:
        writer.update_where(filter, {"v": "1"})


def delete(table: weir.Table, filter: object) -> None:
    with table.writer() as writer:
        writer.delete_where(filter)


def assign(table: weir.Table, filter: object) -> None:
    with table.writer() as writer:
        writer.update_where("id = 1", {"v": "nope"})


def count(table: weir.Table, filter: object) -> None:
    table.count(filter)


def scan(table: weir.Table, filter: object) -> None:
    table.scan(["id"], filter=filter).to_table()


@pytest.mark.parametrize("level", ["log", "sstable", "base"])
@pytest.mark.parametrize("filter", ["nope > 1", pc.field("nope") > 1], ids=["sql", "pyarrow"])
@pytest.mark.parametrize("verb", [update, delete, assign, count, scan])
def test_l3_an_unknown_column_is_told_with_those_of_the_table_and_no_others(
    table: weir.Table,
    verb: Callable[[weir.Table, object], None],
    filter: object,
    level: str,
) -> None:
    if level == "base":
        table.compact()
    elif level == "log":
        table.compact()
        with table.writer(weir.WriterConfig(enable_memtable=False)) as writer:
            writer.put([{"id": 100}])
    with pytest.raises(weir.InvalidInput, match="nope") as refused:
        verb(weir.open(table.uri), filter)
    said = str(refused.value)
    assert all(name in said for name in SCHEMA.names), said
    assert not [name for name in OF_LANCE if name in said], said


def test_m9_a_number_that_a_column_would_round_is_told_with_the_cast(table: weir.Table) -> None:
    told = r"cast it first, as in numpy\.float32\(0\.1\)"
    with table.writer() as writer, pytest.raises(weir.SchemaMismatch, match=told):
        writer.put([{"id": 1, "v": 0.1}])


def test_a_row_of_another_shard_is_told_with_its_shard(table: weir.Table) -> None:
    first, second = table.shards()[:2]
    own, foreign = (next(n for n in range(50) if takes(s, n)) for s in (first, second))
    told = rf"{{'id': {foreign}}} belongs to another shard, that of {second.value} \({second.id}\)"
    with first.writer() as writer, pytest.raises(weir.InvalidInput, match=told):
        writer.put([{"id": own}, {"id": foreign}])


def takes(shard: weir.Shard, key: int) -> bool:
    with shard.writer() as writer:
        try:
            writer.put([{"id": key}])
        except weir.InvalidInput:
            return False
    return True


def test_f2_a_fenced_writer_is_not_told_to_fence_back(table: weir.Table) -> None:
    shard = table.shards()[0]
    key = next(n for n in range(50) if takes(shard, n))
    old = shard.writer()
    weir.open(table.uri).shards()[0].writer().close()
    with pytest.raises(weir.FencedError, match="only on purpose") as fenced:
        old.put([{"id": key}])
    assert "to take the shard back." not in str(fenced.value)


def test_c16_the_error_of_a_dropped_table_is_made_of_whole_sentences(table: weir.Table) -> None:
    shard = table.shards()[0]
    key = next(n for n in range(50) if takes(shard, n))
    old = shard.writer()
    weir.drop(table.uri)
    with pytest.raises(weir.FencedError, match=r"weir\.open\. The writer was stopped"):
        old.put([{"id": key}])


def test_a_column_added_since_the_writer_was_opened_is_told_with_the_way(
    table: weir.Table,
) -> None:
    with table.writer() as writer:
        weir.open(table.uri).add_columns([pa.field("n", pa.int64())])
        told = "no column 'n'; it has .*added since this writer was opened, open a new writer"
        with pytest.raises(weir.SchemaMismatch, match=told):
            writer.put([{"id": 1, "n": 1}])
    with weir.open(table.uri).writer() as writer:
        writer.put([{"id": 1, "n": 1}])
    assert weir.open(table.uri).get([1])["n"].to_pylist() == [1]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda table: table.gc(workers=0), "workers must be a whole number above 0, got 0"),
        (lambda table: table.gc(workers="a"), "workers must be a whole number above 0, got 'a'"),
        (lambda table: table.checkpoint("durable", name=3), "a checkpoint's name is .*, not 3"),
    ],
)
def test_wrong_arguments_of_upkeep_are_refused_by_name(
    table: weir.Table, call: Callable[[weir.Table], object], said: str
) -> None:
    with pytest.raises(weir.InvalidInput, match=said):
        call(table)
