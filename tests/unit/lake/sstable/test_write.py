"""Writing an SSTable on a store that repeats requests."""

import uuid

import pyarrow as pa
import pytest

from tests.unit.lake.conftest import MakeLake
from weir.lake.pylance_lake import PylanceLake
from weir.store.api import Bytes, ObjectExists, Store
from weir.store.open import open_store


def test_f9_a_deletion_vector_whose_put_was_repeated_is_our_own(
    make_lake: MakeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = make_lake()
    store: Store = open_store(lake.uri)
    put = store.put_if_absent

    def repeated(path: str, data: Bytes) -> float | None:
        answer = put(path, data)
        if "/_deletions/" in path:
            raise ObjectExists(path)
        return answer

    monkeypatch.setattr(store, "put_if_absent", repeated)
    schema = lake.open_base().schema
    rows = pa.record_batch(
        {"id": [1, 1, 2], "v": ["a", "b", "c"], "_tombstone": [False] * 3}, schema=schema.wal
    )
    writer, shard = PylanceLake(lake.uri, None, store), uuid.uuid4()
    writer.write_sstable(shard, "0a0b0c0d_gen_1", [rows], schema)
    found = writer.open_sstable(shard, "0a0b0c0d_gen_1", schema).scan()
    assert sorted(pa.Table.from_batches(found).column("v").to_pylist()) == ["b", "c"]
