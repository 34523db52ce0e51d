"""Found by the simulator (seed 7002971): a fenced writer that did not know it yet read its own
rows. Its successor's generation, which has the same number, had been folded into the base, so the
rows in the zombie's memory counted as folded and were left out."""

from pathlib import Path

import pyarrow as pa
import pytest

import weir

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.utf8())])
BUFFERED = weir.WriterConfig(durable_write=False, max_wal_flush_interval="1h")


def zombie_of(folder: Path, key: str | None) -> weir.ShardWriter:
    """A zombie that holds a row that is not durable; its successor's rows are in the base."""
    table = weir.create(str(folder / "t"), SCHEMA, primary_key=key)
    zombie = table.shard(None).writer(BUFFERED)
    zombie.put([{"id": 1, "v": "buffered"}])
    with weir.open(table.uri).shard(None).writer() as successor:
        successor.put([{"id": 1, "v": "newer"}, {"id": 2, "v": "newer"}])
    weir.open(table.uri).compact()
    return zombie


@pytest.mark.parametrize("key", ["id", None])
def test_m1_a_scan_that_cannot_show_what_was_put_tells_that_the_writer_was_fenced(
    tmp_path: Path, key: str | None
) -> None:
    zombie = zombie_of(tmp_path, key)
    with pytest.raises(weir.FencedError):
        zombie.scan()
    assert zombie.fenced
    with pytest.raises(weir.FencedError) as told:
        zombie.close()
    assert [b.column("v").to_pylist() for b in told.value.not_written] == [["buffered"]]


def test_m1_a_lookup_in_memory_shows_what_was_put(tmp_path: Path) -> None:
    zombie = zombie_of(tmp_path, "id")
    assert zombie.get([1]).to_pylist() == [{"id": 1, "v": "buffered"}]
    with pytest.raises(weir.FencedError):
        zombie.close()
