"""A decimal column read from an Arrow IPC stream is aligned to 8 bytes, not 16. Lance panicked when
such rows were flushed, which ended the writer and every later writer that replayed them."""

from decimal import Decimal

import pyarrow as pa
import pytest

import weir

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("price", pa.decimal128(5, 2)),
        pa.field("deep", pa.struct([("sum", pa.decimal256(40, 2))])),
        pa.field("many", pa.list_(pa.decimal128(9, 1))),
    ]
)
ROWS = [
    {"id": i, "price": Decimal("1.20"), "deep": {"sum": Decimal(i)}, "many": [Decimal(i)] * 2}
    for i in range(7)
]


def shifted(by: int) -> pa.Table:
    """The rows as read from a buffer that begins `by` bytes after an aligned address."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_table(pa.Table.from_pylist(ROWS, SCHEMA))
    stored = sink.getvalue().to_pybytes()
    raw = pa.allocate_buffer(len(stored) + 64)
    memoryview(raw).cast("B")[by : by + len(stored)] = stored
    return pa.ipc.open_stream(raw.slice(by)).read_all()


@pytest.mark.parametrize("by", [0, 8, 3])
@pytest.mark.parametrize("key", ["id", None])
def test_rows_from_a_stream_are_flushed_replayed_and_compacted(tmp_path, by, key):
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key=key)
    rows = shifted(by)
    with table.writer() as writer:
        writer.put(rows)
    assert table.scan(freshness="flushed").to_table().sort_by("id") == rows
    table.compact()
    assert table.scan(freshness="base").to_table().sort_by("id") == rows
    assert table.scan(filter="price > 1").count() == len(ROWS)
