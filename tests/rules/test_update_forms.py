"""O-1: an update changes the columns its rows have, in whatever form the rows come."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pydantic import BaseModel

import weir
from weir import aio
from weir.format.schema import FIELD_ID, table_schema
from weir.log.intake import Intake
from weir.shard.request_builder import KNOWN_MAX, AskedRows, WriteSpec

SCHEMA = pa.schema(
    [pa.field("id", pa.int64()), pa.field("price", pa.float64()), pa.field("stock", pa.int64())]
)


@dataclass
class Row:
    id: int
    stock: int


class Named(NamedTuple):
    id: int
    stock: int


class Model(BaseModel):
    id: int
    stock: int


class OnlyArrowArray:
    """Has the Arrow interface of one batch, and nothing else."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        return BATCH.__arrow_c_array__(requested_schema)


GIVEN = {"id": 1, "stock": 2}
TABLE = pa.table({"id": [1], "stock": [2]})
BATCH = TABLE.to_batches()[0]
STRUCTURED = np.array([(1, 2)], dtype=[("id", "i8"), ("stock", "i8")])
FORMS: dict[str, Callable[[], Any]] = {
    "a dict": lambda: GIVEN,
    "a list of dicts": lambda: [GIVEN],
    "a tuple of dicts": lambda: (GIVEN,),
    "the values of a dict": lambda: {1: GIVEN}.values(),
    "a generator": lambda: (row for row in [GIVEN]),
    "a map": lambda: map(dict, [GIVEN]),
    "a deque": lambda: deque([GIVEN]),
    "a dataclass": lambda: Row(**GIVEN),
    "a list of dataclasses": lambda: [Row(**GIVEN)],
    "a named tuple": lambda: Named(**GIVEN),
    "a list of named tuples": lambda: [Named(**GIVEN)],
    "a pydantic model": lambda: Model(**GIVEN),
    "a list of pydantic models": lambda: [Model(**GIVEN)],
    "a record batch": lambda: BATCH,
    "a list of record batches": lambda: [BATCH],
    "a table": lambda: TABLE,
    "a generator of tables": lambda: (table for table in [TABLE]),
    "a reader": lambda: pa.RecordBatchReader.from_batches(TABLE.schema, [BATCH]),
    "an Arrow array": OnlyArrowArray,
    "a list of Arrow arrays": lambda: [OnlyArrowArray()],
    "a pandas DataFrame": lambda: TABLE.to_pandas(),
    "a list of pandas DataFrames": lambda: [pd.DataFrame([GIVEN])],
    "a polars DataFrame": lambda: pl.DataFrame([GIVEN]),
    "a structured numpy array": lambda: STRUCTURED,
    "a list of structured numpy arrays": lambda: [STRUCTURED],
}


@pytest.fixture
def table(tmp_path: Path) -> weir.Table:
    table = weir.create(tmp_path / "t", SCHEMA, primary_key="id", sharding=weir.Bucket("id", 2))
    with table.writer() as writer:
        writer.put([{"id": n, "price": n + 0.5, "stock": 0} for n in range(1, 5)])
    return table


def test_o1_update_keeps_the_columns_left_out_in_every_form(table: weir.Table) -> None:
    wrong = {}
    with table.writer() as writer:
        for name, form in FORMS.items():
            writer.put([{"id": 1, "price": 1.5, "stock": 0}])
            counts = writer.update(form())
            row = table.get([1]).to_pylist()[0]
            if counts.updated != 1 or row != {"id": 1, "price": 1.5, "stock": 2}:
                wrong[name] = (counts, row)
    assert not wrong


def test_o1_update_of_one_shard_keeps_the_columns_left_out_in_every_form(tmp_path: Path) -> None:
    table = weir.create(tmp_path / "one", SCHEMA, primary_key="id")
    wrong = {}
    with table.shard(0).writer() as writer:
        for name, form in FORMS.items():
            writer.put([{"id": 1, "price": 1.5, "stock": 0}])
            counts = writer.update(form())
            row = writer.get([1]).to_pylist()[0]
            if counts.updated != 1 or row != {"id": 1, "price": 1.5, "stock": 2}:
                wrong[name] = (counts, row)
    assert not wrong


def test_o1_update_by_tasks_keeps_the_columns_left_out_in_every_form(table: weir.Table) -> None:
    async def run() -> dict[str, object]:
        wrong: dict[str, object] = {}
        opened = await aio.open(table.uri)
        async with opened.writer() as writer:
            for name, form in FORMS.items():
                await writer.put([{"id": 1, "price": 1.5, "stock": 0}])
                counts = await writer.update(form())
                row = (await opened.get([1])).to_pylist()[0]
                if counts.updated != 1 or row != {"id": 1, "price": 1.5, "stock": 2}:
                    wrong[name] = (counts, row)
        return wrong

    assert not asyncio.run(run())


def test_o1_rows_of_one_update_may_have_different_columns(table: weir.Table) -> None:
    def rows() -> Any:
        yield {"id": 1, "stock": 7}
        yield {"id": 2, "price": 9.5}
        yield pa.table({"id": [3], "stock": [8]})
        yield Row(4, 9)
        yield {"id": 1, "price": None}

    with table.writer() as writer:
        assert writer.update(rows()).updated == 5
    assert sorted(table.scan().to_table().to_pylist(), key=lambda row: row["id"]) == [
        {"id": 1, "price": None, "stock": 7},
        {"id": 2, "price": 9.5, "stock": 0},
        {"id": 3, "price": 3.5, "stock": 8},
        {"id": 4, "price": 4.5, "stock": 9},
    ]


@pytest.mark.parametrize("rows", [{"id": 1, "prise": 2}, [{"id": 1, "prise": 2}] * 20])
def test_update_of_a_column_that_is_not_there_names_those_that_are(
    table: weir.Table, rows: Any
) -> None:
    expected = r"no column 'prise'; it has \['id', 'price', 'stock'\]"
    with table.shard(0).writer() as writer, pytest.raises(weir.SchemaMismatch, match=expected):
        writer.update(rows)


@pytest.mark.parametrize(
    "rows", [[GIVEN | {"_tombstone": True}], TABLE.append_column("_tombstone", [[True]])]
)
def test_update_takes_no_deletes(table: weir.Table, rows: Any) -> None:
    with table.writer() as writer, pytest.raises(weir.InvalidInput, match="use delete"):
        writer.update(rows)


@pytest.mark.parametrize("rows", [7, "text", [7], [object()]])
def test_update_of_what_holds_no_rows_is_refused(table: weir.Table, rows: Any) -> None:
    with table.writer() as writer, pytest.raises(weir.InvalidInput, match=r"rows from|each row"):
        writer.update(rows)


def test_m6_sets_of_columns_are_not_remembered_for_ever() -> None:
    names = [f"c{number}" for number in range(2 * KNOWN_MAX)]
    fields = [
        pa.field(name, pa.int64(), name != "id", {FIELD_ID: str(number)})
        for number, name in enumerate(["id", *names])
    ]
    partial = AskedRows(Intake(table_schema(pa.schema(fields), ("id",), len(names))))
    for name in names:
        (batch,) = partial.shape([{"id": 1, name: 2}], WriteSpec("update"))
        assert batch.schema.names[:2] == ["id", name]
    assert len(partial._known) <= KNOWN_MAX
