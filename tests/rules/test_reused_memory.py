"""M-9: rows are what they were when the call was made, whatever becomes of the caller's memory."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import weir
from weir import aio
from weir.config import WriterConfig
from weir.testing.faulty import FaultyStores

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.float64())])
ROWS = 600
EXPECTED = [{"id": i, "v": float(i)} for i in range(ROWS)]


def numpy_table(ids: Any, values: Any) -> Any:
    return pa.table({"id": ids, "v": values})


def numpy_batch(ids: Any, values: Any) -> Any:
    return pa.record_batch({"id": ids, "v": values})


def frame(ids: Any, values: Any) -> Any:
    return pd.DataFrame({"id": ids, "v": values}, copy=False)


def polars_frame(ids: Any, values: Any) -> Any:
    return pl.DataFrame({"id": ids, "v": values})


def batches(ids: Any, values: Any) -> Any:
    return iter(numpy_table(ids, values).to_batches(max_chunksize=100))


FORMS = [numpy_table, numpy_batch, frame, polars_frame, batches]
VERBS: dict[str, Callable[[Any, Any], Any]] = {
    "put": lambda writer, rows: writer.put(rows),
    "nowait": lambda writer, rows: writer.put(rows, wait=False),
    "insert": lambda writer, rows: writer.insert(rows),
    "when": lambda writer, rows: writer.put(rows, when="current IS NULL"),
    "once": lambda writer, rows: writer.put_once(rows, app="app", version=1),
}


def held(table: Any) -> list[dict[str, Any]]:
    return table.scan().to_table().sort_by("id").to_pylist()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("verb", VERBS)
def test_m9_a_buffer_that_is_used_again_changes_no_row(tmp_path, form, verb):
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id")
    ids, values = np.arange(ROWS), np.arange(ROWS) * 1.0
    with table.writer() as writer:
        VERBS[verb](writer, form(ids, values))
        ids += 1_000_000
        values[:] = -1
        own = next(iter(writer.shard_writers().values()))
        assert own.scan().read_all().sort_by("id").to_pylist() == EXPECTED
    assert held(table) == EXPECTED


def test_m9_keys_and_updates_that_are_used_again_change_no_row(tmp_path):
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id")
    ids, values = np.arange(ROWS), np.arange(ROWS) * 1.0
    with table.writer() as writer:
        writer.put(numpy_table(ids, values * 0))
        writer.update(numpy_table(ids, values))
        values[:] = -1
        keys = np.arange(10)
        writer.delete(keys)
        keys += 500
    assert held(table) == EXPECTED[10:]


def test_m9_the_values_of_a_dictionary_that_are_used_again_change_no_row(tmp_path):
    kinds = pa.dictionary(pa.int32(), pa.int64())
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("kind", kinds)])
    table = weir.create(str(tmp_path / "t"), schema, primary_key="id")
    codes, values = np.array([0, 1, 0], "int32"), np.array([70, 80])
    with table.writer() as writer:
        column = pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(values))
        writer.put(pa.table({"id": [1, 2, 3], "kind": column}))
        codes[:], values[:] = 1, 0
    assert [row["kind"] for row in held(table)] == [70, 80, 70]


def test_m6_a_slice_does_not_keep_what_it_was_cut_from(tmp_path):
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id")
    with table.writer(WriterConfig(max_memtable_age=None)) as writer:
        before = pa.total_allocated_bytes()
        for first in range(0, 1_000, 100):
            ids = pa.array(list(range(first, first + 100_000)))
            writer.put(pa.table({"id": ids, "v": ids.cast(pa.float64())}).slice(0, 100))
        del ids
        assert pa.total_allocated_bytes() - before < 1 << 20


@pytest.mark.parametrize("form", [lambda row: row, lambda row: [row]], ids=["dict", "list"])
def test_m9_a_dict_that_changes_while_its_put_waits_changes_no_row(tmp_path, form):
    stores = FaultyStores()
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])

    async def story() -> list[dict[str, Any]]:
        table = await aio.create(
            str(tmp_path / "t"),
            schema,
            primary_key="id",
            sharding=weir.Bucket("id", 2),
            env=stores.env,
        )
        one, other = [
            next(key for key in range(20) if table.sync.shard_of(key).value == bucket)
            for bucket in (0, 1)
        ]
        async with table.writer() as writer:
            await writer.put([{"id": key, "v": "old"} for key in range(20)])
            gate = stores.at(table.uri).on("put_if_absent", "*/wal/*").pause()
            first = asyncio.create_task(writer.put({"id": one, "v": "first"}))
            await asyncio.to_thread(gate.wait_reached)
            row = {"id": one, "v": "second"}
            second = asyncio.create_task(writer.put(form(row)))
            await asyncio.sleep(0)  # the call is made, and waits for the entry before it
            assert not second.done()
            row["id"], row["v"] = other, "third"
            gate.release()
            await asyncio.gather(first, second)
        return (await table.get([one])).to_pylist()

    assert [row["v"] for row in asyncio.run(story())] == ["second"]
