"""A dropped table is gone, and none of its writers acknowledges a row afterwards."""

from pathlib import Path

import pyarrow as pa
import pytest

import weir
from weir.upkeep import drop as dropping

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])


def filled(uri: Path, **options: object) -> weir.Table:
    table = weir.create(str(uri), SCHEMA, primary_key="id", **options)
    with table.writer() as writer:
        writer.put([{"id": n} for n in range(10)])
        writer.flush()
        writer.put([{"id": 99}])
    return table


def files(place: Path) -> list[Path]:
    return [path for path in place.rglob("*") if path.is_file()]


def test_nothing_is_left_of_a_table_and_nothing_else_is_touched(tmp_path: Path) -> None:
    wal = tmp_path / "wal"
    table = filled(tmp_path / "t", wal_uri=str(wal), sharding=weir.Bucket("id", 2))
    table.checkpoint(scope="durable")
    (tmp_path / "t" / "README").write_text("mine")
    weir.drop(table.uri)
    assert files(tmp_path / "t") == [tmp_path / "t" / "README"]
    assert files(wal) == []
    assert not weir.exists(table.uri)
    with pytest.raises(weir.NotAWeirTable):
        weir.open(table.uri)


def test_c16_a_writer_of_a_dropped_table_acknowledges_nothing(tmp_path: Path) -> None:
    table = filled(tmp_path / "t")
    with pytest.raises(weir.WeirError), table.writer() as writer:
        writer.put([{"id": 1}])
        weir.drop(table.uri)
        writer.put([{"id": 2}])


def test_c16_an_interrupted_drop_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = filled(tmp_path / "t")

    def die(store: object, paths: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(dropping, "_delete", die)
        with pytest.raises(RuntimeError, match="killed"):
            weir.drop(table.uri)
    with pytest.raises(weir.SealedShard), table.writer() as writer:  # nobody can claim it again
        writer.put([{"id": 1}], timeout=0.1)
    assert weir.exists(table.uri)
    weir.drop(table.uri)
    assert files(tmp_path / "t") == []


def test_c15_a_table_whose_files_a_clone_shares_stays(tmp_path: Path) -> None:
    table = filled(tmp_path / "t")
    table.compact()
    copy = table.clone(str(tmp_path / "copy"))
    with pytest.raises(weir.InvalidInput, match="its clone"):
        weir.drop(table.uri)
    assert table.count() == 11
    weir.drop(copy.uri)  # releases its parent (C-14)
    weir.drop(table.uri)
    assert files(tmp_path) == []
