"""`shard_of` and `shards_of` give the shard that a writer gives, without asking the store."""

import asyncio
from dataclasses import dataclass
from datetime import date, datetime
from typing import NamedTuple

import lance
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import weir
from tests.support.tables import count_requests
from weir import aio

NAMES = ["ada", "bob", "käthe", "", "x" * 300]
CASES = [
    (pa.int64(), [0, 1, -1, 2**62, -(2**63)]),
    (pa.int8(), [0, 1, -1, 127, -128]),
    (pa.uint16(), [0, 1, 65535]),
    (pa.uint64(), [0, 2**64 - 1]),
    (pa.string(), NAMES),
    (pa.large_string(), NAMES),
    (pa.bool_(), [True, False]),
]
BUCKETS_ONLY = [
    (pa.float64(), [0.5, -0.0, 0.0, float("inf")]),
    (pa.date32(), [date(2026, 11, 18)]),
    (pa.timestamp("us"), [datetime(2026, 11, 18, 1, 2, 3)]),  # noqa: DTZ001
]


def taken_by(table, row):
    """The shard to which a writer sends the row."""
    with table.writer() as writer:
        (shard,) = writer.put([row]).positions
    return shard


def make(place, dtype, sharding, *, key=("a", "k")):
    fields = [pa.field("a", pa.int64()), pa.field("k", dtype), pa.field("v", pa.string())]
    fields = [f.with_nullable(f.name not in key) for f in fields]
    return weir.create(str(place), pa.schema(fields), primary_key=key or None, sharding=sharding)


@pytest.mark.parametrize("sharding", [weir.Bucket("k", 5), weir.Identity("k")])
@pytest.mark.parametrize(("dtype", "values"), CASES, ids=lambda case: str(case)[:9])
def test_every_value_is_placed_where_a_writer_puts_it(tmp_path, sharding, dtype, values):
    table = make(tmp_path / "t", dtype, sharding)
    rows = [{"a": n, "k": value, "v": "x"} for n, value in enumerate(values)]
    real = [taken_by(table, row) for row in rows]
    assert [table.shard_of(row).id for row in rows] == real
    assert [table.shard_of((row["a"], row["k"])).id for row in rows] == real
    assert [table.shard_of({"k": row["k"]}).id for row in rows] == real
    assert [shard.id for shard in table.shards_of(rows)] == real
    assert [s.id for s in table.shards_of(pa.Table.from_pylist(rows, table.schema))] == real
    assert {s.id: s.value for s in table.shards()}.items() >= {
        (s.id, s.value) for s in table.shards_of(rows)
    }


@pytest.mark.parametrize(("dtype", "values"), BUCKETS_ONLY, ids=lambda case: str(case)[:9])
def test_values_that_cannot_be_keys_are_placed_in_append_only_tables(tmp_path, dtype, values):
    table = make(tmp_path / "t", dtype, weir.Bucket("k", 5), key=())
    rows = [{"a": 1, "k": value} for value in [*values, None]] + [{"a": 1}]
    real = [taken_by(table, row) for row in rows]
    assert [table.shard_of(row).id for row in rows] == real
    assert [shard.id for shard in table.shards_of(rows)] == real
    assert [s.id for s in table.shards_of(pa.table({"a": [1, 2]}))] == [real[-1]] * 2


def test_after_a_reshard_the_answer_is_that_of_the_new_routing(tmp_path):
    table = make(tmp_path / "t", pa.int64(), weir.Bucket("k", 2), key=("k",))
    other, router = weir.open(table.uri), weir.open(table.uri)
    before = [router.shard_of(n) for n in range(20)]
    with other.writer() as writer:
        writer.put([{"k": n} for n in range(20)])
        table.reshard(weir.Identity("k"), compact=False)
        writer.put({"k": 7})  # this handle meets the reshard here
        real = taken_by(table, {"k": 7})
        assert other.shard_of(7).id == real == table.shard_of(7).id
    assert router.shards_of(range(20)) == before  # nothing told this one
    assert router.refresh()
    assert router.shard_of(7).id == real
    assert not router.refresh()


def test_an_unsharded_table_has_one_answer(tmp_path):
    table = make(tmp_path / "t", pa.int64(), weir.Unsharded(), key=("k",))
    (only,) = table.shards()
    assert table.shard_of(3) == only
    assert hash(table.shard_of(3)) == hash(only)
    for three in ([1, 2, 3], pa.array([1, 2, 3]), pa.table({"k": [1, 2, 3]}), [{"k": 1}] * 3):
        assert table.shards_of(three) == [only] * 3
    assert only != only.id


@dataclass
class Order:
    k: int


class Line(NamedTuple):
    a: int
    k: int


def test_rows_and_keys_may_have_every_form_that_put_and_delete_take(tmp_path):
    table = make(tmp_path / "t", pa.int64(), weir.Bucket("k", 5), key=("k",))
    wanted = table.shard_of({"k": 17})
    for one in (17, np.int64(17), (17,), Order(17), Line(1, 17), {"k": 17, "else": 1}):
        assert table.shard_of(one) == wanted
    three = [table.shard_of(n) for n in (17, 4, 9)]
    batch = pa.record_batch({"k": pa.array([17, 4, 9], pa.int32())})
    for several in (
        [17, 4, 9],
        (n for n in (17, 4, 9)),
        np.array([17, 4, 9]),
        pa.chunked_array([[17], [4, 9]]),
        pd.DataFrame({"k": [17, 4, 9]}),
        batch,
        pa.RecordBatchReader.from_batches(batch.schema, [batch]),
        [batch.slice(0, 1), Order(4), 9],
    ):
        assert table.shards_of(several) == three
    assert table.shards_of([]) == table.shards_of(batch.slice(0, 0)) == []


@pytest.mark.parametrize("sharding", [weir.Bucket("k", 5), weir.Identity("k")])
def test_what_a_put_refuses_is_refused(tmp_path, sharding):
    table = make(tmp_path / "t", pa.int64(), sharding)
    for bad, error, words in (
        (17, weir.InvalidInput, "pass that many values"),
        ((1, 2, 3), weir.InvalidInput, "pass that many values"),
        (pa.table({"k": [1]}), weir.InvalidInput, "call shards_of"),
        ({"a": 1}, weir.InvalidInput, "missing from"),
        ({"k": None}, weir.InvalidInput, "holds a null"),
        ((1, "text"), weir.SchemaMismatch, "'k'"),
        ({"k": 2**70}, weir.SchemaMismatch, "'k'"),
    ):
        with pytest.raises(error, match=words):
            table.shard_of(bad)
    for bad, error in (
        (pa.array([1]), weir.InvalidInput),
        (pa.table({"k": ["text"]}), weir.SchemaMismatch),
        (pa.table({"k": [1, None]}), weir.InvalidInput),
        ([(1, 1), (1, None)], weir.InvalidInput),
    ):
        with pytest.raises(error):
            table.shards_of(bad)


@pytest.mark.parametrize("sharding", [weir.Bucket("k", 5), weir.Identity("k")])
def test_text_that_no_column_holds_is_refused_as_a_put_of_several_rows_refuses_it(
    tmp_path, sharding
):
    table = make(tmp_path / "t", pa.string(), sharding, key="k")
    bad = {"k": "a\ud800"}
    with table.writer() as writer:
        writer.put([{"k": "a"}])
        for act in (
            lambda: writer.put([bad]),
            lambda: writer.put([{"k": "a"}, bad]),
            lambda: writer.delete(["a\ud800"]),
            lambda: table.shard_of(bad),
            lambda: table.shards_of([bad]),
        ):
            with pytest.raises(weir.SchemaMismatch, match="column 'k'"):
                act()


def test_a_mistyped_column_is_no_null(tmp_path):
    table = make(tmp_path / "t", pa.int64(), weir.Bucket("k", 5), key=())
    with pytest.raises(weir.InvalidInput, match="missing from"):
        table.shard_of({"K": 1})
    with pytest.raises(weir.InvalidInput, match="append-only"):
        table.shard_of(1)


def test_a_sharding_column_that_is_gone_is_named(tmp_path):
    table = make(tmp_path / "t", pa.int64(), weir.Bucket("v", 5), key=())
    lance.dataset(table.uri).alter_columns({"path": "v", "name": "w"})
    with pytest.raises(weir.InvalidInput, match="'v', a column that no longer exists"):
        weir.open(table.uri).shard_of({"w": "a"})


def test_no_call_but_the_first_makes_a_request(tmp_path, monkeypatch):
    table = make(tmp_path / "t", pa.int64(), weir.Identity("k"), key=("k",))
    table.shard_of(1)
    store = count_requests(table)
    monkeypatch.setattr(table.core.lake, "open_base", None)
    assert len({table.shard_of(n).id for n in range(5000)}) == 5000  # more than are remembered
    assert len(set(table.shards_of(range(5000)))) == 5000
    assert store.requests == 0


def test_tasks_ask_in_the_loop(tmp_path, monkeypatch):
    table = make(tmp_path / "t", pa.int64(), weir.Bucket("k", 5), key=("k",))

    async def run():
        mine = await aio.open(table.uri)
        first = await mine.shard_of(17)
        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "to_thread", None)
            assert await mine.shard_of({"k": 17}) == first
        assert await mine.shards_of([17, 4]) == [first, await mine.shard_of(4)]
        assert not await mine.refresh()

    asyncio.run(run())
