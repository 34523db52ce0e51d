"""A column got its mark from the first writer after `add_columns`. When a restore took the base
back to a version in between, the rows put since carried a mark that the column no longer had:
acknowledged values read null, and a compaction made it final."""

from pathlib import Path

import lance
import pyarrow as pa
import pytest

import weir
from simulator.steps import Died, dies_at, watched
from tests.support.moments import again
from weir.upkeep.restore import restore

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])
X = pa.field("x", pa.int64())
LOG_ONLY = weir.WriterConfig(enable_memtable=False)


def made(tmp_path: Path, *, keyed: bool = True) -> weir.Table:
    table = weir.create(tmp_path / "t", SCHEMA, primary_key="id" if keyed else None)
    with table.writer() as writer:
        writer.put([{"id": 1}])
    table.compact()
    return table


def put(table: weir.Table, number: int, config: weir.WriterConfig | None = None) -> None:
    with again(table).writer(config) as writer:
        writer.put([{"id": number, "x": 10 * number}])


def rows(table: weir.Table, **options: object) -> dict[int, int | None]:
    found = again(table).scan(**options).to_table().to_pylist()
    return {row["id"]: row["x"] for row in found}


@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "append-only"])
@pytest.mark.parametrize("folded", [True, False], ids=["folded", "waiting"])
def test_l8_a_restore_by_lance_to_a_new_columns_first_version_keeps_its_values(
    tmp_path: Path, folded: bool, keyed: bool
) -> None:
    table = made(tmp_path, keyed=keyed)
    table.add_columns(X)
    first = lance.dataset(table.uri).version
    put(table, 2)
    put(table, 3, LOG_ONLY if keyed else None)
    if folded:
        table.compact()
    lance.dataset(table.uri, version=first).restore()
    assert rows(table) == {1: None, 2: 20, 3: 30}
    put(table, 4)
    again(table).compact()
    assert rows(table) == {1: None, 2: 20, 3: 30, 4: 40}


@pytest.mark.parametrize("by", ["weir", "lance"])
def test_k11_the_way_back_past_a_new_columns_checkpoint_holds_its_values(
    tmp_path: Path, by: str
) -> None:
    table = made(tmp_path)
    if by == "weir":
        table.add_columns(X)
    else:
        lance.dataset(table.uri).add_columns(X)
    held = again(table).checkpoint()
    put(table, 2)

    with pytest.raises(Died):
        restore(watched(again(table).core, "restore", dies_at("base")), held)
    put(table, 3)
    report = again(table).restore(held)
    assert rows(table) == {1: None}
    assert rows(table, checkpoint=report.undo) == {1: None, 2: 20, 3: 30}


def test_columns_that_no_writer_takes_do_not_stop_a_checkpoint(tmp_path: Path) -> None:
    table = made(tmp_path)
    lance.dataset(table.uri).add_columns(
        pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    )
    held = again(table).checkpoint()
    assert again(table).scan(["id"], checkpoint=held).to_table().to_pylist() == [{"id": 1}]
