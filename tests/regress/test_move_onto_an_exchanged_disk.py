"""S-1: a disk swapped in while the log moves back does not get the id of the first disk.

The id was read from the store and the move was prepared; when the id was written, an empty disk had
replaced the first. Two disks had the same id, and each machine used the one it saw as the log.
Found by seed 11032610.
"""

from dataclasses import replace

import pyarrow as pa

import weir
from weir.env import SYSTEM
from weir.log.stamp import read_store_id
from weir.store.open import open_store

SCHEMA = pa.schema([("id", pa.int64())])


def test_s1_a_known_id_is_not_written_to_a_disk_that_came_in_between(tmp_path):
    disk, removed = tmp_path / "disk", tmp_path / "removed"
    disk.mkdir()
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id", wal_uri=str(disk))
    shard = table.shards()[0].id
    with table.writer() as writer:
        writer.put([{"id": 1}])
    table.move_wal(None)
    known = read_store_id(open_store(str(disk)), shard)
    assert known is not None

    def exchange(name):
        if name == "move.prepared" and not removed.exists():
            disk.rename(removed)
            disk.mkdir()

    moving = weir.open(table.uri, env=replace(SYSTEM, failpoint=exchange))
    moving.move_wal(str(disk))

    assert removed.exists(), "the disk was not exchanged"
    assert read_store_id(open_store(str(removed)), shard) == known
    found = read_store_id(open_store(str(disk)), shard)
    assert found is not None
    assert found != known
    with weir.open(table.uri).writer() as writer:
        writer.put([{"id": 2}])
    assert sorted(weir.open(table.uri).scan().to_table()["id"].to_pylist()) == [1, 2]
