"""Writes that look first over many shards: routed, decided in each shard, counted together."""

from __future__ import annotations

import asyncio
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import weir
from weir import aio
from weir.env import Env
from weir.routing.guard import known_rivals

SCHEMA = pa.schema(
    [pa.field("k", pa.int64()), pa.field("n", pa.int64()), pa.field("s", pa.string())]
)


@pytest.fixture
def table(tmp_path: Path) -> weir.Table:
    return weir.create(str(tmp_path / "t"), SCHEMA, primary_key="k", sharding=weir.Bucket("k", 4))


def have(table: weir.Table) -> dict[int, tuple[int, str]]:
    rows = table.scan().to_table().to_pylist()
    return {row["k"]: (row["n"], row["s"]) for row in rows}


def test_every_verb_is_routed_and_counted_over_all_shards(table: weir.Table) -> None:
    with table.writer() as writer:
        rows = [{"k": key, "n": key, "s": "a"} for key in range(20)]
        assert writer.insert(rows) == weir.WriteCounts(inserted=20)
        assert writer.insert(rows, on_conflict="skip") == weir.WriteCounts(skipped=20)
        assert writer.update([{"k": key, "s": "b"} for key in range(10)]).updated == 10
        mixed = [{"k": 1, "s": "c"}, {"k": 30}, {"k": 1, "n": 100}]
        assert writer.update(mixed, missing="insert") == weir.WriteCounts(1, 2)
        newer = [{"k": key, "n": 15, "s": "w"} for key in range(20)]
        told = writer.put(newer, when="incoming.n > current.n")
        assert told == weir.WriteCounts(updated=14, skipped=6)
        assert writer.update_where("n = 15", {"n": "n * 2"}) == weir.WriteCounts(updated=15)
        assert writer.delete_where("n IS NULL OR n = 30") == weir.WriteCounts(deleted=16)
    assert have(table) == {1: (100, "c"), **{key: (key, "a") for key in range(16, 20)}}


def test_conflicts_of_several_shards_are_one_error_that_names_all_keys(table: weir.Table) -> None:
    with table.writer() as writer:
        writer.put([{"k": key, "n": 0, "s": "a"} for key in range(8)])
        with pytest.raises(weir.KeyConflict) as met:
            writer.insert([{"k": key, "n": 1, "s": "b"} for key in range(8)])
        assert sorted(met.value.keys) == list(range(8))
        with pytest.raises(weir.KeyConflict) as met:
            writer.update([{"k": 99, "n": 1}])
        assert met.value.keys == [99]
    assert have(table) == dict.fromkeys(range(8), (0, "a"))


def test_o2_nothing_is_decided_without_rows_that_a_reshard_left_behind(table: weir.Table) -> None:
    with table.writer() as writer:
        writer.put([{"k": key, "n": 0, "s": "a"} for key in range(8)])
    table.reshard(weir.Bucket("k", 2), compact=False)
    with table.writer() as writer:
        with pytest.raises(weir.WeirError, match=r"Run compact\(\)"):
            writer.insert([{"k": 3, "n": 1, "s": "b"}])
        table.compact()
        with pytest.raises(weir.KeyConflict):
            writer.insert([{"k": 3, "n": 1, "s": "b"}])
        assert writer.update([{"k": 3, "n": 5}]).updated == 1
    assert have(table)[3] == (5, "a")


@pytest.mark.parametrize("form", ["insert", "insert skip", "update", "when"])
def test_c11_the_first_look_of_a_writer_follows_a_reshard_by_another_process(
    table: weir.Table, form: str
) -> None:
    old, new = {"k": 3, "n": 0, "s": "a"}, {"k": 4, "n": 1, "s": "b"}
    with table.writer() as writer:
        writer.put([old, *({"k": key, "n": 7, "s": "c"} for key in range(20, 30))])
        weir.open(table.uri).reshard(weir.Bucket("k", 2))
        with weir.open(table.uri).writer() as other:
            other.put([{"k": key, "n": 7, "s": "c"} for key in range(10, 20)])
        match form:
            case "insert":
                told = writer.insert([new])
            case "insert skip":
                told = writer.insert([old, new], on_conflict="skip")
            case "update":
                told = writer.update([{"k": 3, "n": 5}, new], missing="insert")
            case _:
                told = writer.put([old, new], when="current IS NULL")
    assert told.inserted == 1
    # A routing that it did not know made none of the new shards one.
    assert not known_rivals(table.core)
    assert have(table)[3] == (5 if form == "update" else 0, "a")
    assert have(table)[4] == (1, "b")


def test_o2_a_row_that_was_changed_in_the_base_is_decided_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weir.shard.request_builder.WHERE_ROWS", 1)
    uri, actions = str(tmp_path / "t"), []

    def point(name: str) -> None:
        if name == "looking.looked" and actions:
            actions.pop()()

    table = weir.create(uri, SCHEMA, primary_key="k", env=Env(failpoint=point))
    with table.writer() as writer:
        writer.put([{"k": key, "n": 10 * key, "s": "a"} for key in (1, 2, 3)])
    table.compact()
    with table.writer() as writer:
        actions.append(lambda: lance.dataset(uri).update({"n": "500"}, where="k = 2"))
        told = writer.update_where("n < 100", {"n": "n + 1"})
    assert told == weir.WriteCounts(updated=2, skipped=1)
    assert have(table) == {1: (11, "a"), 2: (500, "a"), 3: (31, "a")}


def test_l11_an_expired_row_is_as_if_it_were_not_there_for_decisions(tmp_path: Path) -> None:
    schema = SCHEMA.append(pa.field("ts", pa.timestamp("us", "UTC")))
    expire = weir.Expire("ts", after="30d")
    table = weir.create(str(tmp_path / "e"), schema, primary_key="k", expire=expire)
    old = pa.scalar(0, pa.timestamp("us", "UTC")).as_py()
    with table.shard(0).writer() as writer:
        writer.put(
            [{"k": 1, "n": 1, "s": "old", "ts": old}, {"k": 2, "n": 2, "s": "b", "ts": None}]
        )
        assert writer.scan().read_all()["k"].to_pylist() == [2]
        assert writer.get([1, 2])["k"].to_pylist() == [2]
        assert writer.update([{"k": 1, "n": 5}], missing="skip") == weir.WriteCounts(skipped=1)
        fresh = {"k": 1, "n": 7, "s": "new", "ts": None}
        assert writer.insert([fresh]) == weir.WriteCounts(inserted=1)
        writer.flush()
        assert sorted(writer.scan().read_all()["n"].to_pylist()) == [2, 7]


def test_tasks_have_the_same_verbs(table: weir.Table) -> None:
    async def run() -> None:
        async with (await aio.open(table.uri)).writer() as writer:
            tasks = [writer.insert([{"k": key, "n": 0, "s": "a"}]) for key in range(8)]
            assert sum(told.inserted for told in await asyncio.gather(*tasks)) == 8
            assert (await writer.update([{"k": 3, "n": 9}])).updated == 1
            row = {"k": 3, "n": 5, "s": "b"}
            assert (await writer.put([row], when="incoming.n > current.n")).skipped == 1
            assert (await writer.update_where("n = 9", {"s": "'c'"})).updated == 1
            assert (await writer.delete_where("n = 0")).deleted == 7

    asyncio.run(run())
    assert have(table) == {3: (9, "c")}


@pytest.mark.parametrize("name", ["c", "a map"])
def test_conditions_and_filters_work_beside_and_over_a_map(tmp_path: Path, name: str) -> None:
    fields = [("k", pa.int64()), ("n", pa.int64()), (name, pa.map_(pa.string(), pa.int64()))]
    table = weir.create(tmp_path / "m", pa.schema(fields), primary_key="k")
    with table.writer() as writer:
        writer.put([{"k": key, "n": key, name: {"a": key}} for key in (1, 2, 3)])
        row = {"k": 1, "n": 5, name: {"a": 5}}
        assert writer.put([row], when="incoming.n > current.n").updated == 1
        assert writer.put([row], when=f"current.`{name}` IS NULL").skipped == 1
        assert writer.update_where("n = 2", {"n": "n + 10"}).updated == 1
        assert writer.delete_where("n = 3").deleted == 1
        assert writer.delete_where(f"`{name}` IS NULL").deleted == 0
    rows = sorted(table.scan().to_table().to_pylist(), key=lambda row: row["k"])
    assert rows == [
        {"k": 1, "n": 5, name: [("a", 5)]},
        {"k": 2, "n": 12, name: [("a", 2)]},
    ]


@pytest.mark.parametrize("call", ["get", "scan"])
def test_c11_own_reads_of_an_heir_wait_for_the_fold_of_what_a_reshard_left(tmp_path, call):
    """They showed older rows of the base, and missed new ones."""
    table = weir.create(str(tmp_path / "t"), OWN, primary_key="id")
    with table.writer() as writer:
        writer.put([{"id": 1, "v": 1}])
        writer.flush()
        table.compact()
        writer.put([{"id": 1, "v": 2}])
        table.reshard(weir.Bucket("id", 1), compact=False)
        writer.put([{"id": 2, "v": 5}])
        (heir,) = writer.shard_writers().values()
        read = (lambda: heir.get([1])) if call == "get" else (lambda: heir.scan().read_all())
        with pytest.raises(weir.CommitConflict, match="compact"):
            read()
        table.compact()
        assert {"id": 1, "v": 2} in read().to_pylist()


OWN = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64())])


@pytest.mark.parametrize("shards", [None, ["b"]])
def test_o2_a_filter_reaches_values_that_have_no_shard_yet(tmp_path, shards):
    """Rows that Lance appended were left out, and the counts said that none had passed."""
    group = pa.field("g", pa.string(), nullable=False)
    schema = pa.schema([group, pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
    rows = pa.table({"g": ["a", "b", "b"], "id": [1, 2, 3], "v": [0, 0, 0]}, schema=schema)
    lance.write_dataset(rows, str(tmp_path / "t"))
    table = weir.enable(str(tmp_path / "t"), primary_key=["g", "id"], sharding=weir.Identity("g"))
    with table.writer(shards=shards) as writer:
        assert writer.update_where("id = 3", {"v": "1"}).updated == 1
        assert writer.delete_where("id > 0").deleted == (3 if shards is None else 2)
    assert table.count() == (0 if shards is None else 1)


@pytest.mark.parametrize("of", ["table", "shard"])
@pytest.mark.parametrize("verb", ["delete_where", "update_where"])
def test_f16_a_condition_that_failed_hands_no_keys_back_as_rows(
    tmp_path: Path, of: str, verb: str
) -> None:
    """Put again, as the guide says of rows that were not written, keys would empty their rows."""
    table = weir.create(str(tmp_path / "one"), SCHEMA, primary_key="k")
    writer = table.writer() if of == "table" else table.shard(None).writer()
    writer.put([{"k": key, "n": key, "s": "a"} for key in range(3)])
    with weir.open(table.uri).writer() as successor:
        successor.put([{"k": 9, "n": 9, "s": "a"}])
        arguments = ("n > 0",) if verb == "delete_where" else ("n > 0", {"s": "'b'"})
        with pytest.raises(weir.FencedError) as fenced:
            getattr(writer, verb)(*arguments)
        assert fenced.value.unacknowledged == []
    writer.close()
    assert have(table) == {key: (key, "a") for key in (0, 1, 2, 9)}


@pytest.mark.parametrize(
    ("name", "dtype", "value", "when"),
    [
        ("st", pa.struct([("x", pa.int32())]), {"x": 1}, "current.st.x = 1"),
        ("tags", pa.list_(pa.string()), ["a"], "current.tags IS NOT NULL"),
        ("tags", pa.list_(pa.string()), ["a"], "incoming.s <> 'tags'"),
        ("größe", pa.large_list(pa.struct([("x", pa.int32())])), [{"x": 1}], "incoming.n = 2"),
        ("vec", pa.list_(pa.float32(), 2), [1.0, 2.0], "current.vec IS NOT NULL"),
        ("m", pa.map_(pa.string(), pa.int64()), [("a", 1)], "current.m IS NOT NULL"),
    ],
)
def test_o1_a_condition_reads_nested_columns_of_both_rows(
    tmp_path: Path, name: str, dtype: pa.DataType, value: object, when: str
) -> None:
    schema = SCHEMA.append(pa.field(name, dtype))
    table = weir.create(str(tmp_path / "nested"), schema, primary_key="k")
    with table.writer() as writer:
        writer.put([{"k": 1, "n": 1, "s": "a", name: value}])
        told = writer.put([{"k": 1, "n": 2, "s": "b", name: value}], when=when)
    assert told == weir.WriteCounts(updated=1)
    assert have(table) == {1: (2, "b")}


@pytest.mark.parametrize("verb", ["update", "insert", "put"])
def test_f16_a_shards_writer_that_may_not_decide_yet_hands_the_rows_back(
    table: weir.Table, verb: str
) -> None:
    rows = [{"k": 1, "n": 2, "s": "b"}]
    with table.writer() as writer:
        writer.put([{"k": 1, "n": 1, "s": "a"}])
    table.reshard(weir.Bucket("k", 1), compact=False)
    with table.shard(0).writer() as shard:
        act = {
            "update": lambda: shard.update(rows),
            "insert": lambda: shard.insert(rows),
            "put": lambda: shard.put(rows, when="incoming.n > current.n"),
        }[verb]
        with pytest.raises(weir.CommitConflict, match="compact") as told:
            act()
        assert [batch["k"].to_pylist() for batch in told.value.not_written] == [[1]]
