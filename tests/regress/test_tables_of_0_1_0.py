"""Tables made by 0.1.0 can be opened, read, written, compacted, collected and restored as before.

`tests/fixtures/weir-0.1.0.tar.gz` holds what commit 89bac35 wrote: a keyed table of two buckets
with rows in the base, in SSTables and in logs, deletes, a checkpoint and an exactly-once batch;
and an append-only table of WAL-only writers with rows in the base and in the log.
"""

from pathlib import Path

import pytest

import weir
from tests.support.tables_of_0_1_0 import expected, rows, unpack


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return unpack(tmp_path)


def test_every_acknowledged_row_is_read(old: Path) -> None:
    table = weir.open(str(old / "keyed"))
    assert rows(table) == expected(old, "keyed")
    assert rows(table, checkpoint="before") == expected(old, "before")
    assert rows(weir.open(str(old / "appended")), "n") == expected(old, "appended")


def test_it_is_written_compacted_and_collected(old: Path) -> None:
    table = weir.open(str(old / "keyed"))
    with table.writer() as writer:
        writer.put([{"id": 3, "v": "new", "n": 0}])
        writer.delete([4])
    want = [row for row in expected(old, "keyed") if row["id"] not in (3, 4)]
    want = sorted([*want, {"id": 3, "v": "new", "n": 0}], key=lambda row: row["id"])
    assert rows(table) == want
    table.compact(fold_wal=True)
    assert table.gc(min_age=0).ok
    assert rows(table) == rows(table, freshness="base") == want
    assert rows(table, checkpoint="before") == expected(old, "before")
    table.restore("before")
    assert rows(table) == expected(old, "before")


def test_an_append_only_table_counts_each_row_once(old: Path) -> None:
    table = weir.open(str(old / "appended"))
    with table.writer() as writer:
        writer.put([{"n": 20, "v": "new"}])
    want = [*expected(old, "appended"), {"n": 20, "v": "new"}]
    assert rows(table, "n") == want
    table.compact()
    assert table.gc(min_age=0).ok
    assert rows(table, "n") == want


def test_an_exactly_once_batch_is_still_known(old: Path) -> None:
    table = weir.open(str(old / "keyed"))
    with table.shard(0).writer() as writer:
        assert not writer.put_once([{"id": 100, "v": "again", "n": 0}], app="job", version=7)
    assert rows(table) == expected(old, "keyed")


def test_it_is_cloned_and_resharded(old: Path, tmp_path: Path) -> None:
    table = weir.open(str(old / "keyed"))
    copy = table.clone(str(tmp_path / "copy"), "before")
    assert rows(copy) == expected(old, "before")
    table.reshard(weir.Bucket("id", 3))
    assert rows(table) == expected(old, "keyed")


def test_x1_it_keeps_its_shard_ids_and_offers_lancedb_no_spec(old: Path) -> None:
    """LanceDB would write to shards with other ids; it looks for spec id 1."""
    table = weir.open(str(old / "keyed"))
    ids = {shard.id for shard in table.shards()}
    with table.writer() as writer:
        writer.put([{"id": 3, "v": "new", "n": 0}])
    again = weir.open(str(old / "keyed"))
    assert {shard.id for shard in again.shards()} == ids
    assert again.core.record.format == 1
    details = again.core.base().mem_wal
    assert details is not None
    assert [spec.spec_id for spec in details.sharding_specs] == [2]
    table.reshard(weir.Bucket("id", 3))
    details = weir.open(str(old / "keyed")).core.base().mem_wal
    assert details is not None
    assert [spec.spec_id for spec in details.sharding_specs] == [3]


@pytest.mark.parametrize("how", ["writer", "load", "appender"])
def test_x1_a_shard_that_is_opened_by_itself_shuts_lancedb_out_too(old: Path, how) -> None:
    """Spark's tasks open shards this way."""
    table = weir.open(str(old / "keyed"))
    shard = table.shard(0)
    if how == "writer":
        shard.writer().close()
    elif how == "appender":
        weir.WalAppender.open(shard)
    else:
        shard.load(table.core.record.writer_defaults)
    details = weir.open(table.uri).core.base().mem_wal
    assert details is not None
    assert [spec.spec_id for spec in details.sharding_specs] == [2]


def test_x1_lancedb_is_refused_on_it_without_a_claim(old: Path) -> None:
    lancedb = pytest.importorskip("lancedb")
    place = (old / "keyed").rename(old / "keyed.lance")
    table = weir.open(str(place))
    with table.writer() as writer:
        writer.put([{"id": 3, "v": "new", "n": 0}])
    before = [shard.manifest().writer_epoch for shard in table.shards()]
    handle = lancedb.connect(str(old)).open_table("keyed")
    query = handle.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    with pytest.raises(RuntimeError, match="does not match the MemWAL index"):
        query.execute([{"id": 3, "v": "late", "n": 0}])
    assert [shard.manifest().writer_epoch for shard in table.shards()] == before
