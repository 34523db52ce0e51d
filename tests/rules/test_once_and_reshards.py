"""P-6: a batch that counts once and meets a reshard is whole after it was sent again."""

from pathlib import Path

import pyarrow as pa
import pytest

import weir
from weir.env import Env
from weir.testing.faulty import FaultyStores

SCHEMA = pa.schema(
    [pa.field("g", pa.int64(), nullable=False), pa.field("u", pa.int64(), nullable=False)]
)
ROWS = [{"g": g, "u": g} for g in range(8)]


def made(place: Path) -> tuple[weir.Table, FaultyStores]:
    """A table of two shards, and the faults of the handle that is returned."""
    weir.create(place, SCHEMA, sharding=weir.Bucket("g", 2), primary_key=["g", "u"])
    faults = FaultyStores()
    return weir.open(place, env=faults.env), faults


def merge_shards(table: weir.Table) -> None:
    """A reshard by another process."""
    weir.open(table.uri).reshard(weir.Bucket("g", 1))


def sent_again(table: weir.Table) -> list[int]:
    """Send the batch through a new writer, twice; what is in the table then."""
    other = weir.open(table.uri)
    with other.writer() as writer:
        assert writer.put_once(ROWS, app="load", version=1)
        assert not writer.put_once(ROWS, app="load", version=1)
    return sorted(row["g"] for row in other.scan().to_table().to_pylist() if row["u"] >= 0)


def test_p6_no_part_follows_a_reshard_while_another_is_unknown(tmp_path: Path) -> None:
    table, faults = made(tmp_path / "t")
    writer = table.writer()
    writer.put([{"g": g, "u": -1} for g in range(8)])  # opens both shards
    silent = table.shard_of({"g": 0, "u": 0}).id
    store = faults.at(table.uri)
    store.on("put_if_absent", f"*{silent}/wal/*").fail_before(times=None)
    merge_shards(table)
    with pytest.raises(weir.PartialWrite) as failed:
        writer.put_once(ROWS, app="load", version=1)
    assert sum(batch.num_rows for batch in failed.value.unacknowledged) == 8
    store.heal()
    writer.close()
    assert sent_again(table) == list(range(8))


def test_p6_no_part_is_taken_to_an_heir_that_has_another_one(tmp_path: Path) -> None:
    table, faults = made(tmp_path / "t")
    writer = table.writer()
    writer.put([{"g": g, "u": -1} for g in range(8)])
    gate = faults.at(table.uri).on("put_if_absent", "*/wal/*").pause(times=2)
    with pytest.raises(TimeoutError):
        writer.put_once(ROWS, app="load", version=1, timeout=0.05)
    merge_shards(table)
    gate.release()
    with pytest.raises(weir.WeirError) as failed:
        writer.close()
    assert sum(batch.num_rows for batch in failed.value.not_written) == 8
    assert sent_again(table) == list(range(8))


def test_p2_a_batch_that_was_sent_again_leaves_nothing_to_report(tmp_path: Path) -> None:
    """The first try was interrupted before one shard was open; close called its rows not written,
    and the second try had written them."""
    table, _ = made(tmp_path / "t")
    shards = {table.shard_of(row).id for row in ROWS}

    def strike(name: str) -> None:
        if name == "claim.probed" and shards:
            shards.clear()
            raise KeyboardInterrupt

    writer = weir.open(table.uri, env=Env(failpoint=strike)).writer()
    with pytest.raises(KeyboardInterrupt):
        writer.put_once(ROWS, app="load", version=1)
    assert writer.put_once(ROWS, app="load", version=1)
    writer.close()
    assert weir.open(table.uri).count() == 8
