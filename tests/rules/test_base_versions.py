"""How long a version of the base stays, and what its readers meet when it is gone (G-12, X-4)."""

import os
import time
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import weir
from weir.format import paths

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])


def filled(place: Path) -> weir.Table:
    table = weir.create(str(place), SCHEMA, primary_key="id")
    put(table, "old")
    return table


def put(table: weir.Table, value: str) -> None:
    with table.writer() as writer:
        writer.put([{"id": n, "v": value} for n in range(20)])
    table.compact()


def age(table: weir.Table, seconds: float) -> None:
    """Let everything written so far be that old."""
    then = time.time() - seconds
    for path in Path(table.uri).rglob("*"):
        os.utime(path, (then, then))


def versions(table: weir.Table) -> int:
    return len(list((Path(table.uri) / paths.VERSIONS).glob("*.manifest")))


def test_g12_min_age_counts_from_the_replacement_of_a_base_version(tmp_path: Path) -> None:
    table = filled(tmp_path / "t")
    age(table, 86_400)
    kept = table.core.base().version
    put(table, "new")
    table.gc(min_age="1h")
    reader = weir.open(table.uri)
    assert reader.core.base(kept).count() == 20
    age(table, 86_400)
    table.gc(min_age="1h")
    assert versions(table) == 1


def test_g12_a_dry_run_counts_the_same_versions(tmp_path: Path) -> None:
    table = filled(tmp_path / "t")
    put(table, "new")
    assert table.gc(min_age="1h", dry_run=True).kind("base").deleted == 0
    age(table, 86_400)
    dry = table.gc(min_age="1h", dry_run=True).kind("base").deleted
    assert dry == table.gc(min_age="1h").kind("base").deleted > 0


def test_g12_a_cleaned_up_version_is_an_expired_snapshot(tmp_path: Path) -> None:
    table = filled(tmp_path / "t")
    old = table.core.base().version
    put(table, "new")
    table.gc(min_age=0)
    reader = weir.open(table.uri)
    with pytest.raises(weir.SnapshotExpired, match="read at a checkpoint"):
        reader.core.base(old)


@pytest.mark.parametrize("has_read_it", [False, True])
def test_k1_a_checkpoint_whose_tag_a_stranger_deleted_is_an_expired_snapshot(
    tmp_path: Path, has_read_it: bool
) -> None:
    table = filled(tmp_path / "t")
    checkpoint = table.checkpoint()
    reader = weir.open(table.uri)
    if has_read_it:  # and keeps the version open
        assert reader.count(checkpoint=checkpoint.id) == 20
    put(table, "new")
    for tag in lance.dataset(table.uri).tags.list():
        lance.dataset(table.uri).tags.delete(tag)
    table.gc(min_age=0)
    if not has_read_it:
        with pytest.raises(weir.SnapshotExpired, match="another program deleted the tag"):
            reader.scan(checkpoint=checkpoint.id).to_table()
    before = reader.scan().to_table().sort_by("id")
    with pytest.raises(weir.SnapshotExpired, match="the checkpoint is lost"):
        reader.restore(checkpoint)
    # It had announced nothing: the table goes on as before.
    put(table, "newer")
    weir.open(table.uri).compact()
    assert weir.open(table.uri).count() == before.num_rows


def test_g12_a_base_collected_between_the_listing_and_the_read_is_looked_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = filled(tmp_path / "t")
    reader = weir.open(table.uri)
    lake = reader.core.lake
    load = lake.mem_wal_at

    def overtaken(version: int) -> object:
        monkeypatch.setattr(lake, "mem_wal_at", load)
        put(table, "new")
        table.gc(min_age=0)
        return load(version)

    monkeypatch.setattr(lake, "mem_wal_at", overtaken)
    assert reader.schema.names == ["id", "v"]
    assert reader.count() == 20


@pytest.mark.parametrize("spelling", ["absolute", "relative", "file"])
def test_x4_the_files_of_a_branch_stay_however_its_maker_spelt_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    table = filled(tmp_path / "t")
    monkeypatch.chdir(tmp_path)
    uri = {"absolute": table.uri, "relative": "t", "file": f"file://{table.uri}"}[spelling]
    lance.dataset(uri).create_branch("trial")
    put(table, "new")
    table.gc(min_age=0)
    branch = lance.dataset(table.uri).checkout_version(("trial", None))
    assert set(branch.to_table().column("v").to_pylist()) == {"old"}
