"""LanceDB and weir on one table: where each writes, which is refused, what each shows (X-1, X-2).

LanceDB 0.40 includes Lance 13, which cannot replay entries that weir or pylance 14 tagged. It opens
a shard whose log is flushed; on a shard whose log is not, it claims and then fails.
"""

import shutil
from pathlib import Path
from uuid import uuid4

import lance
import pyarrow as pa
import pytest

import weir
from weir import making
from weir.errors import FencedError
from weir.format.manifest import Status
from weir.routing.guard import known_rivals

lancedb = pytest.importorskip("lancedb")

pytestmark = pytest.mark.interop

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.utf8())])
SHARDINGS = {
    "bucket": weir.Bucket("id", 4),
    "identity": weir.Identity("id"),
    "unsharded": weir.Unsharded(),
}


def opened(place: Path, name: str = "t"):
    return lancedb.connect(str(place)).open_table(name)


def merge(handle, *pairs: tuple[int, str]) -> None:
    """Upsert as LanceDB's users do."""
    data = pa.table(
        {"id": [n for n, _ in pairs], "v": [v for _, v in pairs]},
        schema=SCHEMA,
    )
    query = handle.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    query.execute(data)


def made_by_lancedb(place: Path, how: str):
    """A table whose MemWAL index was made by LanceDB."""
    handle = lancedb.connect(str(place)).create_table("t", schema=SCHEMA)
    handle.set_unenforced_primary_key("id")
    spec = {
        "bucket": lambda: lancedb.LsmWriteSpec.bucket("id", 4),
        "identity": lambda: lancedb.LsmWriteSpec.identity("id"),
        "unsharded": lancedb.LsmWriteSpec.unsharded,
    }[how]()
    handle.set_lsm_write_spec(spec)
    return handle


def made(place: Path, how: str, maker: str) -> weir.Table:
    uri = str(place / "t.lance")
    if maker == "weir":
        return weir.create(uri, SCHEMA, primary_key="id", sharding=SHARDINGS[how])
    handle = made_by_lancedb(place, how)
    merge(handle, (100, "before"))
    handle.close_lsm_writers()
    return weir.enable(uri)


def ours(table: weir.Table, **how) -> dict[int, str]:
    found = table.scan(**how).to_table().to_pylist()
    assert len({row["id"] for row in found}) == len(found), "a key twice"
    return {row["id"]: row["v"] for row in found}


def theirs(place: Path, name: str = "t") -> dict[int, str]:
    found = opened(place, name).search().limit(1000).to_list()
    assert len({row["id"] for row in found}) == len(found), "a key twice"
    return {row["id"]: row["v"] for row in found}


def epochs(table: weir.Table) -> dict:
    return {shard.id: shard.manifest().writer_epoch for shard in weir.open(table.uri).shards()}


def refused(table: weir.Table, handle, *pairs: tuple[int, str], match: str) -> None:
    """Check that LanceDB is refused and that the attempt fenced nobody."""
    before = epochs(table)
    with pytest.raises(RuntimeError, match=match):
        merge(handle, *pairs)
    assert epochs(table) == before


@pytest.mark.parametrize("maker", ["weir", "lancedb"])
@pytest.mark.parametrize("how", SHARDINGS)
def test_x1_both_write_to_the_same_shards_and_the_last_word_wins(tmp_path, how, maker):
    table = made(tmp_path, how, maker)
    want = ours(table)
    with table.writer() as writer:
        writer.put([{"id": n, "v": "weir"} for n in range(8)])
    want |= dict.fromkeys(range(8), "weir")
    for n in (1, 2, 9):
        merge(opened(tmp_path), (n, "lancedb"))
        want[n] = "lancedb"
        assert ours(table) == want  # visible at once, from LanceDB's log
        assert table.get([n])["v"].to_pylist() == ["lancedb"]
    with weir.open(table.uri).writer() as writer:
        writer.put([{"id": 2, "v": "weir again"}])
        writer.delete([3])
    want[2] = "weir again"
    del want[3]
    assert ours(table) == want
    table.compact(fold_wal=True)  # LanceDB reads no log but that of its own handle
    assert ours(table) == theirs(tmp_path) == ours(table, freshness="base") == want
    assert table.gc(min_age=0).ok
    merge(opened(tmp_path), (2, "lancedb again"))
    want[2] = "lancedb again"
    assert ours(table) == want


def test_x1_each_fences_the_other_and_nothing_acknowledged_is_lost(tmp_path):
    table = made(tmp_path, "unsharded", "weir")
    writer = table.writer()
    writer.put([{"id": 1, "v": "weir"}])
    writer.flush()
    handle = opened(tmp_path)
    merge(handle, (1, "lancedb"))
    with pytest.raises(FencedError):
        writer.put([{"id": 1, "v": "late"}])
    with table.writer() as again:
        again.put([{"id": 2, "v": "weir"}])
    with pytest.raises(RuntimeError, match="fenced"):
        merge(handle, (2, "late"))
    assert ours(table) == theirs(tmp_path) == {1: "lancedb", 2: "weir"}


def test_f14_lance_13_meets_a_tagged_log_and_nothing_is_lost(tmp_path):
    """LanceDB claims before it finds that it cannot replay what weir left unflushed."""
    table = made(tmp_path, "unsharded", "weir")
    writer = table.writer()
    writer.put([{"id": 1, "v": "unflushed"}])
    with pytest.raises(RuntimeError):
        merge(opened(tmp_path), (2, "lancedb"))
    assert ours(table) == {1: "unflushed"}
    with pytest.raises(FencedError):
        writer.put([{"id": 3, "v": "late"}])
    with table.writer() as again:
        again.put([{"id": 3, "v": "weir"}])
    merge(opened(tmp_path), (2, "lancedb"))  # closed, and therefore flushed
    assert ours(table) == {1: "unflushed", 2: "lancedb", 3: "weir"}
    with table.writer() as again:  # untagged entries are flushed before weir's own follow
        again.put([{"id": 4, "v": "weir"}])
    with lance.dataset(table.uri).mem_wal_writer(
        str(table.shards()[0].id), max_memtable_rows=6
    ) as native:
        native.put(pa.table({"id": [5], "v": ["pylance"]}, schema=SCHEMA))
    want = {1: "unflushed", 2: "lancedb", 3: "weir", 4: "weir", 5: "pylance"}
    assert ours(table) == theirs(tmp_path) == want


@pytest.mark.parametrize("to", [weir.Bucket("id", 3), weir.Identity("id")])
def test_x1_lancedb_is_refused_after_a_reshard_without_a_claim(tmp_path, to):
    table = made(tmp_path, "bucket", "weir")
    stale = opened(tmp_path)
    merge(stale, (1, "lancedb"))
    table.reshard(to)
    with pytest.raises(RuntimeError, match="fenced"):
        merge(stale, (1, "late"))
    refused(table, opened(tmp_path), (1, "late"), match="does not match the MemWAL index")
    assert ours(weir.open(table.uri)) == theirs(tmp_path) == {1: "lancedb"}


def test_x1_lancedb_is_refused_and_pylance_adds_a_shard_where_each_writer_has_one(tmp_path):
    table = weir.create(str(tmp_path / "t.lance"), SCHEMA, sharding=weir.PerWriter())
    writer = table.writer()
    writer.put([{"id": 1, "v": "weir"}])
    refused(table, opened(tmp_path), (2, "lancedb"), match="no unenforced primary key")
    with lance.dataset(table.uri).mem_wal_writer(str(uuid4())) as native:
        native.put(pa.table({"id": [3], "v": ["pylance"]}, schema=SCHEMA))
        writer.put([{"id": 4, "v": "weir"}])  # fenced by nobody
        assert set(ours(table)) == {1, 3, 4}
    assert writer.fenced == ()
    # A program that takes the shard of a writer does not stop it either.
    with lance.dataset(table.uri).mem_wal_writer(str(writer.shards[0])) as native:
        native.put(pa.table({"id": [5], "v": ["pylance"]}, schema=SCHEMA))
        writer.put([{"id": 6, "v": "weir"}])
    writer.close()
    table.compact(fold_wal=True)
    want = {1: "weir", 3: "pylance", 4: "weir", 5: "pylance", 6: "weir"}
    assert ours(weir.open(table.uri)) == want
    found = lance.dataset(table.uri).to_table().to_pylist()
    assert {row["id"]: row["v"] for row in found} == want
    assert len(found) == len(want)


def test_x1_no_native_writer_starts_beside_a_second_wal_store(tmp_path):
    uri, place = str(tmp_path / "t.lance"), str(tmp_path / "wal")
    table = weir.create(uri, SCHEMA, primary_key="id", wal_uri=place)
    with table.writer() as writer:
        writer.put([{"id": 1, "v": "weir"}])
    shard = str(table.shards()[0].id)
    refused(table, opened(tmp_path), (1, "late"), match="at most one sharding spec")
    before = epochs(table)
    with pytest.raises(OSError, match="at most one sharding spec"):
        lance.dataset(uri).mem_wal_writer(shard)
    assert epochs(table) == before
    table.move_wal(None)
    merge(opened(tmp_path), (1, "lancedb"))
    assert ours(table) == {1: "lancedb"}
    table.move_wal(place)
    refused(table, opened(tmp_path), (1, "late"), match="at most one sharding spec")
    assert ours(table) == theirs(tmp_path) == {1: "lancedb"}


def test_x1_a_handle_that_takes_the_log_elsewhere_shuts_native_writers_out_first(tmp_path):
    table = made(tmp_path, "unsharded", "weir")
    away = weir.open(table.uri, wal_uri=str(tmp_path / "wal"))
    with away.writer() as writer:
        refused(table, opened(tmp_path), (1, "late"), match="at most one sharding spec")
        writer.put([{"id": 1, "v": "weir"}])
    refused(table, opened(tmp_path), (1, "late"), match="at most one sharding spec")
    away.compact()
    refused(table, opened(tmp_path), (1, "late"), match="at most one sharding spec")


def test_x2_identity_shards_of_lancedb_are_known_by_their_rows(tmp_path):
    table = made(tmp_path, "identity", "weir")
    first, second = opened(tmp_path), opened(tmp_path)
    merge(first, (7, "lancedb"))
    merge(second, (8, "lancedb"))
    second.close_lsm_writers()  # flushes, so its row is in an SSTable
    found = {s.value: s for s in weir.open(table.uri).shards()}
    assert set(found) == {7, 8}
    assert all(s.is_routed and not s.manifest().field_entries for s in found.values())
    with table.writer() as writer:
        writer.put([{"id": 7, "v": "weir"}])
    assert weir.open(table.uri).shard(7).manifest().field_entries  # recorded when weir opened it
    stale = opened(tmp_path)
    merge(stale, (9, "lancedb"))
    report = weir.open(table.uri).reshard(weir.Unsharded())
    assert len(report.sealed) == 3
    with pytest.raises(RuntimeError, match=r"fenced|sealed"):
        merge(stale, (9, "late"))
    assert ours(weir.open(table.uri)) == theirs(tmp_path) == {7: "weir", 8: "lancedb", 9: "lancedb"}
    assert all(
        s.manifest().status is Status.SEALED
        for s in weir.open(table.uri).shards()
        if not s.is_routed
    )


def test_x4_a_handle_that_never_refreshes_loses_no_row_by_a_compaction(tmp_path):
    """LanceDB's default: it keeps the base it opened with, but rereads shard manifests."""
    table = made(tmp_path, "bucket", "weir")
    with table.writer() as writer:
        writer.put([{"id": n, "v": "old"} for n in range(6)])
    handle = opened(tmp_path)

    def shown() -> dict[int, str]:
        return {row["id"]: row["v"] for row in handle.search().limit(100).to_list()}

    assert len(shown()) == 6
    with table.writer() as writer:
        writer.put([{"id": 1, "v": "new"}])
    table.compact()
    assert table.gc().ok
    assert shown() == ours(table) == dict.fromkeys(range(6), "old") | {1: "new"}


@pytest.fixture
def rivals(tmp_path: Path, monkeypatch) -> weir.Table:
    """A table with weir's own shard ids, to which LanceDB also wrote."""
    monkeypatch.setattr(making, "FIRST_ROUTING", 1)
    uri = str(tmp_path / "t.lance")
    table = weir.create(uri, SCHEMA, primary_key="id", sharding=weir.Bucket("id", 2))
    with table.writer() as writer:
        writer.put([{"id": n, "v": "weir"} for n in range(4)])
    table.compact()  # in the base, below every SSTable
    with table.writer() as writer:
        writer.put([{"id": 2, "v": "weir"}])
    for n in (1, 2, 9):
        handle = opened(tmp_path)
        merge(handle, (n, "lancedb"))
        handle.close_lsm_writers()
    return weir.open(uri)


def test_x3_a_rival_is_seen_refused_and_left_alone(rivals, tmp_path, caplog):
    found = ours(rivals)
    assert set(found) == {0, 1, 2, 3, 9}
    assert found[2] == "weir"  # the routed shard's SSTable wins; over the base the order is unknown
    assert "shard.rival" in caplog.text
    assert "writes rows of value" in caplog.text
    assert rivals.compact().base_version is None
    assert ours(rivals) == found
    with (
        weir.open(rivals.uri).writer() as writer,
        pytest.raises(weir.InvalidInput, match="weir adopt-shard") as told,
    ):
        writer.put([{"id": 1, "v": "late"}])
    for shard in (*(r.id for r in rivals.shards() if not r.is_routed),):
        assert str(shard) in str(told.value) or len(known_rivals(rivals.core)) > 1
    assert ours(rivals) == found


@pytest.mark.parametrize(("order", "wins"), [("newer", "lancedb"), ("older", "weir")])
def test_x3_a_rival_is_folded_by_somebodys_word(rivals, tmp_path, order, wins):
    ids = [shard.id for shard in rivals.shards() if not shard.is_routed]
    assert len(ids) == 2
    for shard in ids:
        rivals.adopt_shard(shard, order)
    want = {0: "weir", 1: wins, 2: wins, 3: "weir", 9: "lancedb"}
    assert ours(rivals) == theirs(tmp_path) == ours(rivals, freshness="base") == want
    with weir.open(rivals.uri).writer() as writer:
        writer.put([{"id": 1, "v": "weir again"}])
    assert ours(rivals) == want | {1: "weir again"}
    for shard in ids:  # adopting again does nothing
        assert rivals.adopt_shard(shard, "newer").rows == 0
    with pytest.raises(weir.InvalidInput, match="nothing to adopt"):
        rivals.adopt_shard(rivals.shards()[0].id, "newer")


@pytest.mark.filterwarnings("ignore::deprecation.DeprecatedWarning")
def test_x5_lancedb_searches_what_weir_flushed_and_compacted(tmp_path):
    """Vector and text search of LanceDB use the indexes that the MemWAL index entry names."""
    vector = pa.list_(pa.float32(), 4)
    schema = pa.schema([*SCHEMA, pa.field("x", vector)])
    table = weir.create(str(tmp_path / "t.lance"), schema, primary_key="id")

    def put(*ids: int, word: str) -> None:
        rows = [{"id": n, "v": f"{word} {n}", "x": [float(n), 0, 0, 0]} for n in ids]
        with weir.open(table.uri).writer() as writer:
            writer.put(rows)

    def near(n: int) -> int:
        (found,) = opened(tmp_path).search([float(n), 0.0, 0.0, 0.0]).limit(1).to_list()
        return found["id"]

    def says(word: str) -> set[int]:
        query = opened(tmp_path).search(word, query_type="fts", fts_columns="v")
        return {row["id"] for row in query.limit(10).to_list()}

    put(*range(300), word="old")
    table.compact()
    lance.dataset(table.uri).create_index("x", "IVF_FLAT", num_partitions=2, metric="l2")
    lance.dataset(table.uri).create_scalar_index("v", "INVERTED")
    put(500, word="first")
    table.compact()  # records the indexes
    assert (near(500), says("first")) == (500, {500})
    put(600, word="second")  # in an SSTable
    assert (near(600), says("second")) == (600, {600})
    opened(tmp_path).create_scalar_index("id")  # a commit by Lance 13 drops the flag
    put(700, word="third")
    table.compact()
    assert table.gc(min_age=0).ok
    assert (near(700), says("third"), near(600)) == (700, {700}, 600)
    details = weir.open(table.uri).core.base().mem_wal
    assert details is not None
    assert details.maintain_all
    assert details.maintained_indexes == ("id_idx", "v_idx", "x_idx")


def test_lancedb_lists_a_dropped_table_until_its_folder_is_deleted(tmp_path: Path) -> None:
    database = weir.connect(tmp_path)
    database.create_table("orders", SCHEMA, primary_key="id")
    database.drop_table("orders")
    assert database.tables() == []
    assert "orders" in lancedb.connect(str(tmp_path)).list_tables().tables
    shutil.rmtree(tmp_path / "orders.lance")
    assert "orders" not in lancedb.connect(str(tmp_path)).list_tables().tables
