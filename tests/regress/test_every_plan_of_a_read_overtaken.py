"""A slow search beside commits and collection ended with `MissingEntry`, "stop and investigate",
although nothing was lost: the error of its last plan decided (G-12)."""

from pathlib import Path

import lance
import pyarrow as pa
import pytest

import weir
from weir.merge.merge import replanned
from weir.read.scan import with_snapshot

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64())])


def made(tmp_path: Path) -> weir.Table:
    table = weir.create(tmp_path / "t", SCHEMA, primary_key="id")
    with table.writer() as writer:
        writer.put([{"id": number, "v": 0} for number in range(3)])
    table.compact()
    return table


def read(reader):
    return sum(batch.num_rows for batch in reader.base.scan())


def test_g12_files_collected_under_every_plan_are_no_loss(tmp_path: Path) -> None:
    table = made(tmp_path)

    def read_slowly(reader):
        lance.dataset(table.uri).update({"v": "v + 1"})
        table.gc(min_age=0)
        return read(reader)

    with pytest.raises(weir.SnapshotExpired, match="collected 5 times"):
        with_snapshot(table.core, "durable", None, read_slowly)
    assert with_snapshot(table.core, "durable", None, read) == 3


def test_g12_a_file_that_newer_plans_miss_too_is_lost(tmp_path: Path) -> None:
    table = made(tmp_path)
    (lost,) = (tmp_path / "t" / "data").iterdir()
    lost.unlink()
    with pytest.raises(weir.MissingEntry, match=lost.name):
        with_snapshot(table.core, "durable", None, read)


@pytest.mark.parametrize("names", ["aaaaa", "bcada", "aacde"])
def test_g12_a_loss_is_told_whatever_else_was_collected_meanwhile(names: str) -> None:
    missing = iter(names)

    def plan() -> None:
        raise weir.MissingEntry(f"{next(missing)} is not there")

    with pytest.raises(weir.MissingEntry, match="a is not there"):
        replanned(plan, "t")
