"""A writer of an identity-sharded table checked for a reshard, slept, and then made a shard.

The table was resharded in between, and the shard did not exist when those of the old routing were
sealed. Its rows were acknowledged in a shard that has no order relative to the new ones, so an old
row could win over a newer one (C-11; seed 2002019 of the simulator, scenario reshards).
"""

import dataclasses

import pyarrow as pa
import pytest

import weir
from tests.support.hooks import HookStore
from weir.format import paths
from weir.table import Table

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])


def stores_of(table, action):
    """The table, which runs `action` right after its next read of the reshard chain."""
    hooked = HookStore(table.core.store, "list_folder", paths.reshard_chain(), action)
    return Table(dataclasses.replace(table.core, store=hooked))


def test_c11_no_row_is_acknowledged_in_a_shard_nobody_sealed(tmp_path):
    made = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="k", sharding=weir.Identity("k"))
    with made.writer() as writer:
        writer.put([{"k": 1, "v": 1}])
    old = made.core.route(2)

    def change():
        weir.open(made.uri).reshard(weir.Bucket("k", 2))

    slow = stores_of(made, change)
    with slow.writer() as writer:
        writer.put([{"k": 2, "v": 2}])
    assert not list(made.core.store.list(paths.wal_dir(old))), "rows under the old routing"
    rows = weir.open(made.uri).scan().to_table().to_pylist()
    assert sorted((row["k"], row["v"]) for row in rows) == [(1, 1), (2, 2)]


def test_c11_a_shard_left_by_another_slow_maker_takes_no_row_either(tmp_path):
    made = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="k", sharding=weir.Identity("k"))
    stale = weir.open(made.uri)

    def change():
        weir.open(made.uri).reshard(weir.Bucket("k", 2))

    with pytest.raises(weir.SealedShard):
        stores_of(made, change).core.ensure_shard(2)
    with pytest.raises(weir.SealedShard):
        stale.core.ensure_shard(2)
