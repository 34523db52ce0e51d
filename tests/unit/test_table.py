"""The facade: routing, writers, reads in all shapes, the feed, schema changes."""

import json

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import weir
from weir.format.bucket import bucket
from weir.format.sharding import Router, shard_id
from weir.read.reader import SnapshotReader
from weir.read.snapshot import Snapshot

SCHEMA = pa.schema([("id", pa.int64()), ("tenant", pa.utf8()), ("x", pa.float64())])


def row(i, tenant="a", x=0.0):
    return {"id": i, "tenant": tenant, "x": x}


@pytest.fixture
def uri(tmp_path):
    return str(tmp_path / "t")


@pytest.fixture
def table(uri):
    return weir.create(uri, SCHEMA, primary_key="id", sharding=weir.Bucket("id", 3))


# -- routing ---------------------------------------------------------------------------------------


def test_router_splits_rows_by_bucket_in_order():
    ids = np.random.default_rng(1).integers(0, 1000, 500)
    batch = pa.record_batch({"id": pa.array(ids), "n": pa.array(range(500))})
    parts = Router(weir.Bucket("id", 5)).split(batch)
    assert sum(rows.num_rows for _, rows in parts) == 500
    for value, rows in parts:
        assert set(bucket(rows["id"], 5).tolist()) == {value}
        assert rows["n"].to_pylist() == sorted(rows["n"].to_pylist())


def test_a_shard_writer_refuses_rows_of_another_shard(table):
    with table.shard(0).writer() as writer:
        for call in (writer.put, lambda rows: writer.delete([r["id"] for r in rows])):
            with pytest.raises(weir.InvalidInput, match="another shard"):
                call([row(i) for i in range(20)])
    assert table.scan().count() == 0


def test_router_does_not_copy_a_batch_of_one_shard():
    batch = pa.record_batch({"id": pa.array([1, 1])})
    [(_, rows)] = Router(weir.Bucket("id", 5)).split(batch)
    assert rows is batch


def test_router_by_identity_also_routes_null():
    batch = pa.record_batch({"t": pa.array(["b", "a", None, "b"])})
    parts = {value: rows.num_rows for value, rows in Router(weir.Identity("t")).split(batch)}
    assert parts == {"b": 2, "a": 1, None: 1}


def test_shard_ids_tell_values_kinds_and_versions_apart():
    sharding = weir.Identity("t")
    made = {shard_id(sharding, v, n) for v in (1, "1", None, True) for n in (1, 2)}
    assert len(made) == 8


def test_identity_shards_come_on_demand_and_are_found_by_others(uri):
    table = weir.create(uri, SCHEMA, primary_key=["tenant", "id"], sharding=weir.Identity("tenant"))
    other = weir.open(uri)
    assert table.shards() == []
    with table.writer() as writer:
        writer.put([row(1, "a"), row(1, "b")])
        assert {s.value for s in other.shards()} == {"a", "b"}
        assert other.scan().count() == 2
        assert other.get([("b", 1), ("z", 1)])["tenant"].to_pylist() == ["b"]
    assert other.shard("a").id == table.shard("a").id
    assert other.shard("new").manifest().writer_epoch == 0


def test_shard_by_bucket_id_and_nonsense(table):
    shard = table.shard(2)
    assert table.shard(shard.id).value == 2
    for wrong in (3, "2", True):
        with pytest.raises(weir.InvalidInput, match="no shard"):
            table.shard(wrong)


# -- writing ---------------------------------------------------------------------------------------


def test_put_to_fenced_and_healthy_shards_says_which_failed(table):
    writer = table.writer()
    writer.put([row(i) for i in range(30)])
    fenced = table.shard(1)
    with fenced.writer() as usurper:
        assert usurper.epoch == 2
        with pytest.raises(weir.PartialWrite, match=str(fenced.id)) as caught:
            writer.put([row(i, x=1.0) for i in range(30)])
    error = caught.value
    assert list(error.failures) == [fenced.id]
    assert isinstance(error.failures[fenced.id], weir.FencedError)
    lost = pa.Table.from_batches(error.by_shard[fenced.id])["id"].to_pylist()
    kept = table.scan(filter="x = 1").to_table()["id"].to_pylist()
    assert sorted(lost + kept) == list(range(30))
    writer.close()


def test_a_put_to_one_shard_raises_its_own_error(uri):
    table = weir.create(uri, SCHEMA, primary_key="id")
    writer = table.writer()
    writer.put([row(1)])
    table.shards()[0].writer().close()
    with pytest.raises(weir.FencedError):
        writer.put([row(2)])
    writer.close()


def test_bad_rows_reach_no_shard(table):
    with table.writer() as writer:
        with pytest.raises(weir.InvalidInput):
            writer.put([row(1), {"tenant": "a"}])
        with pytest.raises(weir.SchemaMismatch):
            writer.put([{"id": 1, "nope": 2}])
        assert writer.shard_writers() == {}
    assert table.scan().count() == 0


def test_closed_writer_refuses_with_the_rows(table):
    writer = table.writer()
    writer.close()
    writer.close()
    with pytest.raises(weir.WriterClosed) as caught:
        writer.put([row(1)])
    assert caught.value.unacknowledged[0].num_rows == 1


def test_append_only_table_keeps_every_row(uri):
    table = weir.create(uri, SCHEMA, sharding=weir.Bucket("id", 2))
    with table.writer() as writer:
        writer.put([row(1), row(1)])
        writer.flush()
        writer.put([row(1), row(2)])
        assert table.scan().count() == 4
        assert table.scan(filter="id = 1").count() == 3
        with pytest.raises(weir.InvalidInput, match="append-only"):
            writer.delete([1])
    with pytest.raises(weir.InvalidInput, match="append-only"):
        table.get([1])


# -- reading ---------------------------------------------------------------------------------------


@pytest.fixture
def filled(table):
    with table.writer() as writer:
        writer.put([row(i, "ab"[i % 2], float(i)) for i in range(20)])
        writer.flush()
        writer.put([row(3, "z", -1.0)])
    return table


def test_engines_consume_a_scan_directly(filled):
    duckdb = pytest.importorskip("duckdb")
    polars = pytest.importorskip("polars")
    datafusion = pytest.importorskip("datafusion")
    scan = filled.scan(columns=["id", "x"])
    assert duckdb.sql("select count(*), min(x) from scan").fetchall() == [(20, -1.0)]
    assert polars.DataFrame(scan)["id"].sum() == 190
    assert datafusion.SessionContext().from_arrow(scan).count() == 20
    assert len(scan.to_pandas()) == 20
    assert pa.table(scan).num_rows == 20
    assert scan.to_reader().schema.names == ["id", "x"]


def test_get_takes_keys_in_many_shapes(filled):
    for keys in ([5, 3], [(5,), (3,)], [{"id": 5}, {"id": 3}], pa.array([5, 3])):
        assert filled.get(keys)["x"].to_pylist() == [5.0, -1.0]
    assert filled.get([]).num_rows == 0
    assert filled.get([99]).schema.names == SCHEMA.names
    assert filled.get([5], columns=["x"]).to_pylist() == [{"x": 5.0}]
    with pytest.raises(weir.InvalidInput):
        filled.get([None])


def test_wrong_arguments_of_a_scan_are_named(filled):
    for options, text in [
        ({"columns": "id"}, "columns"),
        ({"columns": []}, "columns"),
        ({"columns": ["nope"]}, "nope"),
        ({"limit": -1}, "limit"),
        ({"freshness": "fresh"}, "freshness"),
        ({"filter": "nope > 1"}, "nope"),
        ({"filter": "x >"}, "filter|SQL|sql|expression"),
    ]:
        with pytest.raises(weir.InvalidInput, match=text):
            filled.scan(**options).to_table()


def test_scan_of_an_expression_equals_its_text(filled):
    text = filled.scan(filter="x > 5 and tenant = 'a'").to_table()
    expression = filled.scan(filter=(pc.field("x") > 5) & (pc.field("tenant") == "a")).to_table()
    assert text.sort_by("id").equals(expression.sort_by("id"))


def test_snapshot_travels_as_text_and_reads_the_same(filled):
    snapshot = filled.snapshot()
    text = snapshot.to_json()
    assert Snapshot.from_json(text) == snapshot
    with filled.writer() as writer:
        writer.put([row(1000)])
    reader = SnapshotReader(weir.open(filled.uri).core, Snapshot.from_json(text))
    count = sum(level.rows for level in reader.levels())
    assert count >= 20
    with pytest.raises(weir.InvalidInput, match="snapshot"):
        Snapshot.from_json("{}")
    backwards = json.loads(text)
    backwards["cuts"][0] |= {"replay_after": 2, "wal_through": 1}
    with pytest.raises(weir.InvalidInput, match="snapshot"):
        Snapshot.from_json(json.dumps(backwards))


def test_stats_tell_what_the_store_shows(filled):
    stats = filled.stats()
    assert [s.value for s in stats.shards] == [0, 1, 2]
    assert all(s.epoch == 1 and s.lag == 0 for s in stats.shards)
    assert sum(s.sstable_rows for s in stats.shards) == 21


# -- the feed --------------------------------------------------------------------------------------


def test_changes_resume_from_a_bookmark(table):
    with table.writer() as writer:
        writer.put([row(1), row(2)])
        writer.delete([1])
        feed = table.changes()
        first = list(feed)
        assert sorted(c.kind for c in first if c.kind == "delete") == ["delete"]
        assert sum(c.batch.num_rows for c in first if c.kind == "put") == 2
        text = feed.bookmark.to_json()
        assert list(table.changes(text)) == []
        writer.put([row(9, x=9.0)])
        [change] = table.changes(weir.Bookmark.from_json(text))
        assert change.batch.to_pylist() == [row(9, x=9.0)]
        assert (change.kind, change.epoch) == ("put", 1)
    [deleted] = [c for c in first if c.kind == "delete"]
    assert deleted.batch.to_pylist() == [{"id": 1}]


def test_changes_keep_the_order_of_puts_and_deletes_in_one_entry(uri):
    table = weir.create(uri, SCHEMA, primary_key="id")
    rows = [{**row(i), "_tombstone": i % 3 == 0} for i in range(1, 7)]
    with table.writer() as writer:
        writer.put(rows)
        feed = [(c.kind, c.batch["id"].to_pylist()) for c in table.changes()]
    assert feed == [("put", [1, 2]), ("delete", [3]), ("put", [4, 5]), ("delete", [6])]


def test_changes_follow_until_told_to_stop(table):
    with table.writer() as writer:
        writer.put([row(1)])
        seen = []

        more = [row(2)]

        def stop():
            if seen and more:
                writer.put([more.pop()])
            return len(seen) >= 2

        for change in table.changes(follow=True, poll=0.0, stop=stop):
            seen.extend(change.batch["id"].to_pylist())
    assert sorted(seen) == [1, 2]


def test_a_bookmark_behind_the_floor_is_an_error_that_says_what_to_do(uri):
    table = weir.create(uri, SCHEMA, primary_key="id")
    with table.writer() as writer:
        for i in range(4):
            writer.put([row(i)])
    old = weir.Bookmark({table.shards()[0].id: 1})
    table.core.log(table.shards()[0].id).manifests.floors.raise_to("wal", 3)
    with pytest.raises(weir.SnapshotExpired, match=r"table\.follow"):
        list(table.changes(old))
    assert len(list(table.changes())) >= 1


# -- schema changes --------------------------------------------------------------------------------


def test_columns_added_and_renamed_with_rows_in_log_and_sstables(table):
    writer = table.writer()
    writer.put([row(i, x=float(i)) for i in range(5)])
    writer.flush()
    writer.put([row(i, x=float(i)) for i in range(5, 8)])
    dataset = lance.dataset(table.uri)
    dataset.alter_columns({"path": "x", "name": "y"})
    dataset.add_columns(pa.field("extra", pa.int32()))
    rows = table.scan().to_table().sort_by("id")
    assert rows.schema.names == ["id", "tenant", "y", "extra"]
    assert rows["y"].to_pylist() == [float(i) for i in range(8)]
    assert rows["extra"].null_count == 8
    assert table.scan(filter="y > 3 and extra is null").count() == 4
    assert table.get([2, 6])["y"].to_pylist() == [2.0, 6.0]
    with table.writer() as fresh:
        fresh.put([{"id": 6, "tenant": "a", "y": 60.0, "extra": 1}])
    assert table.get([6]).to_pylist() == [{"id": 6, "tenant": "a", "y": 60.0, "extra": 1}]
    assert {c.batch.schema.names[2] for c in table.changes() if c.kind == "put"} == {"y"}
