"""F-9: a put of a random name that says "exists" was applied before, and repeated by a layer below:
the object is ours, and the work goes on."""

from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.spark import SCHEMA, in_weir, make_table, once
from weir.shard.tokens import Tokens
from weir.spark.bulk import _LoadTask
from weir.spark.shard_sink import ShardSink, Token
from weir.spark.staging import Stage, read_staged
from weir.spark.writers import ShardWriters
from weir.store.api import Bytes, ObjectExists
from weir.table import Table

ROWS = {key: f"v{key}" for key in range(10)}
BATCH = pa.RecordBatch.from_pylist([{"id": k, "v": v} for k, v in ROWS.items()], schema=SCHEMA)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return make_table(tmp_path, buckets=1)


def repeat(monkeypatch: pytest.MonkeyPatch, table: Table, part: str) -> list[str]:
    """Apply each put whose path holds `part`, and answer as to its repetition; those paths."""
    store = table.core.store
    put, repeated = store.put_if_absent, []

    def twice(path: str, data: Bytes) -> float | None:
        answer = put(path, data)
        if part in path:
            repeated.append(path)
            raise ObjectExists(path)
        return answer

    monkeypatch.setattr(store, "put_if_absent", twice)
    return repeated


def test_f9_a_large_batch_whose_announcement_was_repeated_is_published(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeated = repeat(monkeypatch, table, "/load-")
    sink = ShardSink(ShardWriters(table.core), 0, Token("app", 1), entry_bytes=BATCH.nbytes // 2)
    for start in range(BATCH.num_rows):
        sink.add(BATCH.slice(start, 1))
    sink.finish()
    assert repeated
    assert in_weir(table) == once(ROWS)
    assert Tokens(table.shard(0).site).load("app") == 1


def test_f9_staged_rows_whose_put_was_repeated_are_staged(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeated = repeat(monkeypatch, table, "job")
    stage = Stage(table.core, "job", 0, limit=1 << 20)
    stage.add(BATCH)
    (staged,) = stage.finish()
    assert repeated == [staged.path]
    assert pa.Table.from_batches(read_staged(table.core, staged)).num_rows == len(ROWS)


def test_f9_staged_keys_whose_put_was_repeated_are_staged(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeated = repeat(monkeypatch, table, "job")
    load = _LoadTask(table, "job", stage_keys=True)
    assert sum(batch.num_rows for batch in load.rows(iter([BATCH]))) == len(ROWS)
    assert load.key_files() == repeated
