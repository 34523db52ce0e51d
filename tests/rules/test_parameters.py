"""`params=` and pyarrow expressions in every verb that takes a filter or a condition."""

import asyncio
import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import weir
from weir import aio
from weir.errors import InvalidInput

NASTY = "o'hara') or 1=1 --"
NOW = dt.datetime(2024, 7, 1, 9, 30, 0, 5, dt.UTC)
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("user", pa.string()),
        pa.field("raw", pa.binary()),
        pa.field("x", pa.float64()),
        pa.field("ok", pa.bool_()),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("ref", pa.uuid()),
    ]
)
VALUES: dict[str, Any] = {
    "user": NASTY,
    "raw": b"\x00'",
    "x": 0.1,
    "ok": True,
    "day": dt.date(2024, 7, 1),
    "at": NOW,
    "price": Decimal("9.50"),
    "ref": UUID(int=5),
}


def row(number: int, **values: Any) -> dict[str, Any]:
    return {"id": number, "user": "u", "x": 0.0, **values}


@pytest.fixture
def table(tmp_path: Path) -> weir.Table:
    """Row 1 and others in the base, 2 in an SSTable, 3 in the log; these three have `VALUES`."""
    made = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id", sharding=weir.Bucket("id", 2))
    with made.writer() as writer:
        writer.put([row(1, **VALUES), *(row(number) for number in range(10, 20))])
    made.compact()
    with made.writer() as writer:
        writer.put([row(2, **VALUES), row(20)])
    writer = made.writer()
    writer.put([row(3, **VALUES), row(30)])
    writer.flush_wal()
    return made


def ids(found: pa.Table) -> list[int]:
    return sorted(found["id"].to_pylist())


@pytest.mark.parametrize("column", VALUES)
def test_a_value_finds_its_rows_at_every_level(table: weir.Table, column: str) -> None:
    text, params = f"{column} = $v", {"v": VALUES[column]}
    assert ids(table.scan(["id"], text, params=params).to_table()) == [1, 2, 3]
    assert table.count(text, params=params) == 3
    with table.writer() as writer:
        assert writer.delete_where(text, params=params).deleted == 3
    assert table.count() == 12


def test_searches_take_parameters(tmp_path: Path) -> None:
    schema = pa.schema(
        [("id", pa.int64()), ("user", pa.string()), ("vec", pa.list_(pa.float32(), 2))]
    )
    table = weir.create(str(tmp_path / "t"), schema, primary_key="id")
    shard = table.shard(0).writer()
    shard.put([{"id": 1, "user": NASTY, "vec": [0, 0]}, {"id": 2, "user": "hara", "vec": [0, 0]}])
    text, params = "user = $u", {"u": NASTY}
    assert ids(table.search("vec", [0, 0], filter=text, params=params)) == [1]
    assert ids(table.search("user", "hara", filter=text, params=params)) == [1]
    queries = {"vec": [0.0, 0.0], "user": "hara"}
    assert ids(table.hybrid_search(queries, filter=text, params=params)) == [1]
    assert ids(shard.search("vec", [0, 0], filter=text, params=params)) == [1]
    assert ids(shard.scan(filter=text, params=params).read_all()) == [1]
    shard.close()


@pytest.mark.parametrize("kind", ["table", "shard"])
def test_writes_that_look_first_take_parameters(tmp_path: Path, kind: str) -> None:
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id")
    with table.writer() if kind == "table" else table.shard(0).writer() as writer:
        writer.put([row(1, **VALUES), row(2), row(3, user="x")])
        changed = writer.update_where(
            "user = $old and id < $below",
            {"user": "concat($new, user)", "x": "$x", "ok": "$nothing", "ref": "$ref"},
            params={
                "old": "u",
                "below": 100,
                "new": NASTY,
                "x": 0.5,
                "nothing": None,
                "ref": UUID(int=7),
            },
        )
        assert changed.updated == 1
        (found,) = table.get([2]).to_pylist()
        assert (found["user"], found["x"], found["ok"]) == (NASTY + "u", 0.5, None)
        assert found["ref"] == UUID(int=7)
        when = "current.user = $u or incoming.x > $least"
        counts = writer.put(
            [row(1, x=1.0), row(3, x=1.0), row(4, x=9.0)],
            when=when,
            params={"u": NASTY, "least": 5.0},
        )
        assert (counts.updated, counts.inserted, counts.skipped) == (1, 1, 1)
        assert writer.delete_where("user = $u", params={"u": NASTY + "u"}).deleted == 1
    assert ids(table.scan().to_table()) == [1, 3, 4]


WRITES: dict[str, Callable[[Any, dict[str, Any] | None], object]] = {
    "delete_where": lambda w, p: w.delete_where("user = $u", params=p),
    "update_where": lambda w, p: w.update_where("user = 'u'", {"user": "$u"}, params=p),
    "put": lambda w, p: w.put([row(1)], when="incoming.user = $u", params=p),
}


@pytest.mark.parametrize("params", [None, {}, {"v": 1}, {"u": "a", "v": 1}, {"u": [1]}])
@pytest.mark.parametrize("verb", WRITES)
def test_missing_unused_and_odd_parameters_are_refused_before_anything_is_claimed(
    tmp_path: Path, verb: str, params: dict[str, Any] | None
) -> None:
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id")
    with table.writer() as writer:
        with pytest.raises(InvalidInput, match=r"\$u|\['v'\]"):
            WRITES[verb](writer, params)
        assert writer.shard_writers() == {}
    with table.shard(0).writer() as shard, pytest.raises(InvalidInput, match=r"\$u|\['v'\]"):
        WRITES[verb](shard, params)
    assert table.count() == 0


def test_parameters_by_position_are_refused_with_an_example(table: weir.Table) -> None:
    positional = cast("Any", ["u1"])
    with pytest.raises(InvalidInput, match=r"values by name: 'id = .i' takes"):
        table.count("user = ?", params=positional)


def test_reads_and_puts_refuse_parameters_that_have_no_text(table: weir.Table) -> None:
    for read in (
        lambda: table.scan(params={"u": 1}),
        lambda: table.count(pc.field("id") == 1, params={"u": 1}),
        lambda: table.scan(filter="user = $u").to_table(),
        lambda: table.search("user", "u", filter="user = $u"),
    ):
        with pytest.raises(InvalidInput, match="params"):
            read()
    with table.writer() as writer, pytest.raises(InvalidInput, match="when= is not given"):
        writer.put([row(1)], params={"u": 1})  # type: ignore[call-overload]


def test_new_values_that_are_no_dict_are_refused(table: weir.Table) -> None:
    with table.writer() as writer:
        for act in (
            lambda: writer.update_where("ok", None),  # type: ignore[arg-type]
            lambda: writer.update_where("ok", "x = 1"),  # type: ignore[arg-type]
        ):
            with pytest.raises(InvalidInput, match="must be a dict of columns"):
                act()


@pytest.mark.parametrize("kind", ["table", "shard"])
def test_expressions_say_the_same_as_text(tmp_path: Path, kind: str) -> None:
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id")
    with table.writer() if kind == "table" else table.shard(0).writer() as writer:
        writer.put([row(number, x=float(number)) for number in range(10)])
        writer.flush()
        writer.put([row(10, x=10.0), row(11, x=None)])
        old = (pc.field("x") >= 8) & (pc.field("user") == "u")
        assert writer.update_where(old, {"user": "'old'"}).updated == 3
        assert writer.delete_where(pc.field("id").isin([1, 9])).deleted == 2
        newer = pc.field("incoming", "x") > pc.field("current", "x")
        counts = writer.put([row(2, x=3.0), row(3, x=3.0), row(12, x=1.0)], when=newer)
        assert (counts.updated, counts.inserted, counts.skipped) == (1, 0, 2)
        either = newer | pc.field("current", "id").is_null()
        counts = writer.put([row(2, x=4.0), row(3, x=3.0), row(12, x=1.0)], when=either)
        assert (counts.updated, counts.inserted, counts.skipped) == (1, 1, 1)
    found = {r["id"]: (r["user"], r["x"]) for r in table.scan().to_table().to_pylist()}
    assert sorted(found) == [0, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12]
    assert found[8] == ("old", 8.0)
    assert found[11] == ("u", None)
    assert found[2] == ("u", 4.0)


def test_expressions_of_columns_that_only_pyarrow_filters(tmp_path: Path) -> None:
    """Unsigned numbers cannot be sent to Lance: the same evaluator scans and decides."""
    schema = pa.schema([("id", pa.int64()), ("n", pa.uint64())])
    table = weir.create(str(tmp_path / "t"), schema, primary_key="id")
    with table.writer() as writer:
        writer.put([{"id": number, "n": 2**63 + number} for number in range(5)])
        writer.flush()
        assert writer.delete_where(pc.field("n") > pa.scalar(2**63 + 2, pa.uint64())).deleted == 2
    assert ids(table.scan().to_table()) == [0, 1, 2]


def test_an_expression_that_does_not_fit_is_refused_before_anything_is_claimed(
    tmp_path: Path,
) -> None:
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id")
    with table.writer() as writer:
        for act in (
            lambda: writer.delete_where(pc.field("nope") == 1),
            lambda: writer.delete_where(pc.field("user") > 5),
            lambda: writer.update_where(pc.field("nope") == 1, {"user": "'x'"}),
            lambda: writer.put([row(1)], when=pc.field("user") == "u"),
            lambda: writer.delete_where(5),  # type: ignore[arg-type]
        ):
            with pytest.raises(InvalidInput):
                act()
        assert writer.shard_writers() == {}


@pytest.mark.parametrize("kind", ["table", "shard"])
def test_m7_a_filter_that_names_no_column_ends_no_writer(tmp_path: Path, kind: str) -> None:
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id")
    with table.writer() if kind == "table" else table.shard(0).writer() as writer:
        writer.put([row(1), row(2)])
        assert writer.update_where(pc.scalar(True), {"user": "'x'"}).updated == 2
        writer.flush()
        assert writer.delete_where(pc.scalar(False)).deleted == 0
        assert writer.delete_where(pc.scalar(True)).deleted == 2
        writer.put([row(3)])
    assert ids(table.scan().to_table()) == [3]


def _odd(_: Any, values: pa.Array) -> pa.Array:
    if len(values):
        raise LookupError("the user's own error")
    return pa.array([], pa.bool_())


def test_m7_a_function_of_the_caller_that_raises_ends_no_writer(tmp_path: Path) -> None:
    pc.register_scalar_function(
        _odd, "weir_odd", {"summary": "", "description": ""}, {"x": pa.int64()}, pa.bool_()
    )
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id")
    with table.shard(0).writer() as writer:
        writer.put([row(1)])
        odd = pc.Expression._call("weir_odd", [pc.field("incoming", "id")])
        with pytest.raises(InvalidInput, match="LookupError: the user's own error"):
            writer.put([row(1)], when=odd)
        writer.put([row(2)])
    assert ids(table.scan().to_table()) == [1, 2]


PANICS = ["id = ?", "id = :a", "id = $1", "cast(id as decimal(40, 2)) = 1"]
"""Texts on which Lance panics, which is no `Exception`."""


@pytest.mark.parametrize("text", PANICS)
@pytest.mark.parametrize("kind", ["table", "shard"])
def test_m7_sql_on_which_lance_panics_is_refused_and_ends_no_writer(
    tmp_path: Path, kind: str, text: str
) -> None:
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id")
    with table.writer() if kind == "table" else table.shard(0).writer() as writer:
        writer.put([row(1)])
        for act in (
            lambda: writer.put([row(1)], when=text.replace("id", "incoming.id")),
            lambda: writer.update_where("true", {"ok": text}),
            lambda: writer.delete_where(text),
        ):
            with pytest.raises(InvalidInput):
                act()
        writer.put([row(2)])
    with pytest.raises(InvalidInput):
        table.scan(columns={"n": text}).to_table()
    table.compact()
    with pytest.raises(InvalidInput):
        table.count(text)
    assert ids(table.scan().to_table()) == [1, 2]


def test_concurrent_conditions_with_expressions_are_each_decided_by_their_own(
    tmp_path: Path,
) -> None:
    """Requests of one group are decided together only if they ask the same."""
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id")

    async def run() -> None:
        async with aio.Table(table).writer() as writer:
            await writer.put([row(number, x=float(number)) for number in range(40)])
            counts = await asyncio.gather(
                *(
                    writer.put([row(number, x=-1.0)], when=pc.field("current", "x") >= bound)
                    for number, bound in enumerate([0, 30] * 20)
                ),
                *(
                    writer.delete_where("x = $x", params={"x": float(number)})
                    for number in (36, 38)
                ),
            )
            assert len(counts) == 42

    asyncio.run(run())
    found = {r["id"]: r["x"] for r in table.scan().to_table().to_pylist()}
    assert found.keys() >= set(range(36))
    for number in range(30):
        assert found[number] == (-1.0 if number % 2 == 0 else float(number)), number
    assert found[31] == -1.0


def test_the_plan_of_a_bound_filter_uses_the_index(table: weir.Table) -> None:
    table.create_index("at")
    text = weir.lake.params.bind("at = $at", {"at": NOW})
    assert "ScalarIndexQuery" in lance.dataset(table.uri).scanner(filter=text).explain_plan()
