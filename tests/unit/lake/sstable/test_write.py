"""Writing an SSTable: whose the directory is, and which rows it gets."""

import uuid
from pathlib import Path

import pyarrow as pa
import pytest

import weir
from tests.unit.lake.conftest import SCHEMA, MakeLake
from weir.env import SYSTEM
from weir.lake.pylance_lake import PylanceLake
from weir.store.api import Bytes, LostAnswer, Store
from weir.store.open import open_bare
from weir.store.retry import RetryingStore

NAME = "0a0b0c0d_gen_1"


def test_f17_of_two_writers_with_one_name_and_a_lost_answer_one_has_the_directory(
    make_lake: MakeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim of the first is there when the second one's request fails without an answer."""
    lake = make_lake(SCHEMA, ())
    schema = lake.open_base().schema
    rows = pa.record_batch({"id": [1], "v": ["a"], "_tombstone": [False]}, schema=schema.wal)
    shard = uuid.uuid4()
    lake.write_sstable(shard, NAME, [rows], schema)
    bare: Store = open_bare(lake.uri)
    put, failed = bare.put_if_absent, []

    def lost_once(path: str, data: Bytes) -> float | None:
        if not failed:
            failed.append(path)
            raise LostAnswer("no answer")
        return put(path, data)

    monkeypatch.setattr(bare, "put_if_absent", lost_once)
    second = PylanceLake(lake.uri, None, RetryingStore(bare, SYSTEM))
    with pytest.raises(weir.StoreError, match="already has this name"):
        second.write_sstable(shard, NAME, [rows], schema)
    assert failed


def test_l2_only_the_newest_row_of_a_key_is_written(make_lake: MakeLake) -> None:
    lake = make_lake()
    schema, shard = lake.open_base().schema, uuid.uuid4()
    rows = pa.record_batch(
        {"id": [1, 1, 2], "v": ["a", "b", "c"], "_tombstone": [False] * 3}, schema=schema.wal
    )
    info = lake.write_sstable(shard, NAME, [rows.slice(0, 1), rows.slice(1)], schema)
    found = pa.Table.from_batches(lake.open_sstable(shard, NAME, schema).scan())
    assert found.column("v").to_pylist() == ["b", "c"]
    assert info.rows == 2
    assert not Path(lake.uri, "_mem_wal", str(shard), NAME, "_deletions").exists()
