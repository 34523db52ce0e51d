"""Every container of rows and keys is accepted, or refused by weir and not by a library."""

from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pydantic import BaseModel

import weir
from weir.errors import InvalidInput
from weir.format.schema import TableSchema
from weir.log.inputs import RUN_ROWS, arrow_batches
from weir.log.intake import Intake, key_table

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("v", pa.string()),
        pa.field("at", pa.struct([("x", pa.int32())])),
    ]
)


@dataclass
class Point:
    x: int


@dataclass
class Row:
    id: int
    v: str
    at: Point = field(default_factory=lambda: Point(1))


class Model(BaseModel):
    id: int
    v: str
    at: dict[str, int] = {"x": 1}


class Named(NamedTuple):
    id: int
    v: str
    at: dict[str, int]


DICT = {"id": 1, "v": "a", "at": {"x": 1}}
BATCH = pa.RecordBatch.from_pylist([DICT], SCHEMA)


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> TableSchema:
    place = tmp_path_factory.mktemp("inputs")
    return weir.create(place / "t", SCHEMA, primary_key="id").core.schema()


def taken(schema: TableSchema, data: object) -> list[dict[str, object]]:
    batches = Intake(schema).rows(data)
    return [row for batch in batches for row in batch.drop_columns("_tombstone").to_pylist()]


@pytest.mark.parametrize(
    "data",
    [
        DICT,
        [DICT],
        (DICT,),
        Row(1, "a"),
        [Row(1, "a")],
        [Model(id=1, v="a")],
        [Named(1, "a", {"x": 1})],
        BATCH,
        [BATCH],
        [pa.Table.from_batches([BATCH])],
        pa.RecordBatchReader.from_batches(SCHEMA, [BATCH]),
        pd.DataFrame([DICT]),
        pl.DataFrame([DICT]),
        [pl.DataFrame([DICT])],
    ],
    ids=lambda data: (
        type(data).__name__ + (f" of {type(data[0]).__name__}" if isinstance(data, list) else "")
    ),
)
def test_a_row_is_taken_from_whatever_holds_it(schema: TableSchema, data: object) -> None:
    assert taken(schema, data) == [DICT]


def test_rows_come_from_generators_in_order_and_mixed(schema: TableSchema) -> None:
    def rows():
        yield {"id": 1}
        yield pa.table({"id": [2, 3]})
        yield Row(4, "d")
        yield from ({"id": n} for n in range(5, 5 + RUN_ROWS))

    found = [row["id"] for row in taken(schema, rows())]
    assert found == list(range(1, 5 + RUN_ROWS))
    assert taken(schema, iter(())) == []


def test_a_structured_array_of_numpy_is_rows(schema: TableSchema) -> None:
    array = np.array([(1, "a"), (2, "b")], dtype=[("id", "i8"), ("v", "U1")])
    assert [(row["id"], row["v"]) for row in taken(schema, array)] == [(1, "a"), (2, "b")]


def test_structured_arrays_of_numpy_in_a_list_are_all_taken(schema: TableSchema) -> None:
    arrays = [np.array([(n, "a")], dtype=[("id", "i8"), ("v", "U1")]) for n in range(3)]
    assert [row["id"] for row in taken(schema, [*arrays, DICT])] == [0, 1, 2, 1]


@pytest.mark.parametrize("rows", [[{}], [{}, {}], [{"v": "a"}], {}])
def test_rows_without_their_key_are_refused_and_not_left_out(schema, rows) -> None:
    with pytest.raises(weir.InvalidInput, match="key column 'id'"):
        taken(schema, rows)


def test_rows_that_name_no_column_are_rows_of_nulls(tmp_path: Path) -> None:
    table = weir.create(tmp_path / "t", pa.schema([pa.field("v", pa.string())]))
    with table.writer() as writer:
        writer.put([{}, {}])
    assert table.scan().to_table().to_pylist() == [{"v": None}, {"v": None}]


@pytest.mark.parametrize("data", [7, "text", b"bytes", None, [7], [None], object(), [object()]])
def test_what_holds_no_rows_is_refused(schema: TableSchema, data: object) -> None:
    with pytest.raises(weir.InvalidInput, match=r"rows from|for each row"):
        taken(schema, data)


@pytest.mark.parametrize(
    "keys",
    [
        [1, 2],
        (1, 2),
        {1, 2},
        range(1, 3),
        (n for n in (1, 2)),
        {1: "a", 2: "b"}.keys(),
        [{"id": 1}, {"id": 2}],
        pa.array([1, 2]),
        pa.chunked_array([[1], [2]]),
        pa.table({"id": [1, 2]}),
        pa.record_batch({"id": [1, 2]}),
        np.array([1, 2]),
        np.array([1, 2], np.uint8),
        np.array([(1,), (2,)], dtype=[("id", "i8")]),
        pd.Series([1, 2]),
        pd.Index([1, 2]),
        pd.DataFrame({"id": [1, 2]}),
        pl.Series([1, 2]),
        pl.DataFrame({"id": [1, 2]}),
        [np.int64(1), np.int8(2)],
    ],
    ids=lambda keys: type(keys).__module__ + "." + type(keys).__name__,
)
def test_keys_are_taken_from_whatever_holds_them(schema: TableSchema, keys: object) -> None:
    assert key_table(keys, schema)["id"].to_pylist() == [1, 2]


@pytest.mark.parametrize("key", [1, np.int64(1), {"id": 1}])
def test_one_key_needs_no_list(schema: TableSchema, key: object) -> None:
    assert key_table(key, schema)["id"].to_pylist() == [1]


@pytest.mark.parametrize(
    "keys", [[73.5], 73.9, [True], ["1"], [date(2026, 1, 1)], np.datetime64("2026-01-01"), object()]
)
def test_a_key_that_is_another_one_is_refused(schema: TableSchema, keys: object) -> None:
    with pytest.raises(weir.InvalidInput, match="'id'"):
        key_table(keys, schema)


def test_a_value_between_two_keys_finds_and_deletes_nothing(tmp_path: Path) -> None:
    table = weir.create(tmp_path / "t", SCHEMA, primary_key="id")
    with table.writer() as writer:
        writer.put([{"id": 73}])
        for wrong in (lambda: writer.put([{"id": 73.5}]), lambda: writer.delete([73.9])):
            with pytest.raises(weir.SchemaMismatch, match="73"):
                wrong()
    with pytest.raises(weir.SchemaMismatch, match="73"):
        table.get([73.9])
    assert table.count() == 1


@pytest.mark.parametrize("wrong", [pl.col("id") > 1, 7, ["id > 1"], lambda row: True])
def test_a_filter_of_another_library_is_refused_by_name(tmp_path: Path, wrong: object) -> None:
    table = weir.create(tmp_path / "t", SCHEMA, primary_key="id")
    with pytest.raises(weir.InvalidInput, match="filter"):
        table.scan(filter=wrong)
    assert table.scan(filter=pc.field("id") > 1).count() == 0


FRAMES = {
    "vectors": {"e": [np.arange(400.0) + i for i in range(300)]},
    "lists": {"e": [[0.5] * 400] * 300},
    "texts": {"e": [str(i) for i in range(120_000)]},
    "a piece of nulls": {"e": [[0.5] * 400] * 150 + [None] * 150},
    "two kinds": {"e": [[1] * 400] * 150 + [[1.5] * 400] * 150},
    "decimals": {"e": [Decimal("1.5")] * 30_000 + [Decimal("1.25")] * 30_000},
    "categories": {"e": pd.Categorical(["a", "b"] * 60_000)},
}


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES.keys())
@pytest.mark.parametrize("index", [None, "k"])
def test_a_frame_is_the_same_in_pieces_as_at_once(frame, index):
    made = pd.DataFrame({"id": range(len(frame["e"])), **frame})
    made = made if index is None else made.set_index(made["id"].map(str).rename(index))
    whole = pa.table(made).replace_schema_metadata(None)
    (found,) = arrow_batches(made)
    found.validate(full=True)
    assert found.schema.equals(whole.schema)
    assert pa.Table.from_batches([found]).replace_schema_metadata(None).equals(whole)


@pytest.mark.parametrize(
    ("values", "items"),
    [([np.arange(4000.0)] * 300, 4000), ([[0.5] * 400] * 300, 400), (["a"] * 120_000, 1)],
    ids=["vectors", "lists", "texts"],
)
def test_no_conversion_of_a_frame_holds_the_lock_for_more_than_some_milliseconds(
    values, items, monkeypatch
):
    """A put of 5,000 vectors in a frame stopped every event loop of the process for 30 ms."""
    sizes = []
    convert = pa.table

    def noted(frame):
        sizes.append(len(frame) * items)
        return convert(frame)

    monkeypatch.setattr(pa, "table", noted)
    (found,) = arrow_batches(pd.DataFrame({"e": values}))
    assert len(found) == len(values)
    # Arrays are copied, some eight times as fast as lists are read.
    assert max(sizes) <= (400_000 if items == 4000 else 50_000)
    assert sum(sizes) == len(values) * items


def test_a_frame_without_objects_is_taken_as_it_is():
    frame = pd.DataFrame({"id": np.arange(120_000), "v": np.zeros(120_000)})
    (found,) = arrow_batches(frame)
    held = found.column("id").buffers()[1].address
    assert held == frame["id"].to_numpy().__array_interface__["data"][0], "not copied"


def test_a_key_column_that_is_there_twice_is_refused(schema: TableSchema) -> None:
    ids = pa.array([1, 2])
    twice = pa.table([ids, ids], names=["id", "id"])
    with pytest.raises(InvalidInput, match="'id' occurs twice"):
        key_table(twice, schema)
