"""A table with a list of UUIDs took no put: pyarrow makes no empty array of that type."""

import uuid

import pyarrow as pa
import pytest

import weir


@pytest.mark.parametrize("keyed", [True, False])
def test_a_list_of_uuids_hinders_no_verb(tmp_path, keyed):
    schema = pa.schema([pa.field("id", pa.int64()), ("n", pa.int64()), ("u", pa.list_(pa.uuid()))])
    made = weir.create(str(tmp_path / "t"), schema, primary_key="id" if keyed else None)
    one = uuid.UUID(int=1)
    with made.writer() as writer:
        writer.put([{"id": 1, "n": 1, "u": [one.bytes]}, {"id": 2, "n": 2}])
        if keyed:
            writer.put([{"id": 1, "n": 0, "u": []}], when="incoming.n > current.n")
            writer.update_where("n = 2", {"n": "n + 1"})
            writer.delete_where("n = 3")
    table = weir.open(made.uri)
    assert table.scan(filter="n < 0").to_table().num_rows == 0
    assert table.scan(columns=["u"], filter="id = 1").to_table()["u"].to_pylist() == [[one]]
    table.compact(fold_wal=True)
    assert table.scan().count() == (1 if keyed else 2)
    if keyed:
        table.add_columns({"m": "n + 1"})
        assert table.scan(filter="id = 1").to_table().to_pylist()[0]["m"] == 2
