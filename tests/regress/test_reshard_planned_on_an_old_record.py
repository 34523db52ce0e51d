"""Found by the simulator (seeds 6011068, 6012052): a reshard read the table's record, slept while
another reshard ran, then found none in progress and continued from the old routing. It changed
nothing, reported success, and its checkpoint, kept as the way back, was of a table that others had
written to."""

from pathlib import Path

import pyarrow as pa
import pytest

import weir
from weir.records.resharding import Resharding, read_resharding
from weir.store.api import Store
from weir.upkeep import reshard as module
from weir.upkeep.reshard import reshard

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.utf8())])


def test_c11_a_change_begins_from_the_routing_that_the_last_one_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id")
    with table.writer() as writer:
        writer.put([{"id": n, "v": "old"} for n in range(10)])
    other = weir.open(table.uri)

    def after_another(store: Store) -> Resharding | None:
        monkeypatch.setattr(module, "read_resharding", read_resharding)
        reshard(other.core, weir.Bucket("id", 2))
        with other.writer() as writer:
            writer.put([{"id": n, "v": "between"} for n in range(5, 15)])
        return read_resharding(store)

    monkeypatch.setattr(module, "read_resharding", after_another)
    report = reshard(table.core, weir.Bucket("id", 3))
    assert report.routing_version == 2
    assert len(report.shards) == 3
    assert len(report.sealed) == 2
    assert weir.open(table.uri).sharding == weir.Bucket("id", 3)
    expected = {n: "old" if n < 5 else "between" for n in range(15)}
    rows = weir.open(table.uri).scan().to_table().to_pylist()
    assert {row["id"]: row["v"] for row in rows} == expected
