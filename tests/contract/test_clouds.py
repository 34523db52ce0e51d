"""The whole life of a table on every cloud with a test server; Google's is our own fake."""

import os

import lance
import pyarrow as pa
import pytest

import weir
from tests.support.fake_gcs import FakeGcs
from weir.env import SYSTEM
from weir.errors import FencedError, PartialWrite
from weir.store.api import ObjectExists, Store
from weir.store.open import open_store

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
POSITIONS = int(os.environ.get("WEIR_RACE_POSITIONS", "12"))
RACERS = 16
CLOUDS = ["s3", "azurite", "moto", "gcs"]

every_cloud = pytest.mark.parametrize("store_kind", CLOUDS, indirect=True)


def rows(table, **how):
    return {row["id"]: row["v"] for row in table.scan(**how).to_table().to_pylist()}


def put(writer, ids, text):
    writer.put([{"id": i, "v": text} for i in ids])


@every_cloud
def test_f1_the_whole_story_holds(table_uri, store_kind):
    options = dict(store_kind.storage_options)
    table = weir.create(
        table_uri, SCHEMA, primary_key="id", sharding=weir.Bucket("id", 2), storage_options=options
    )
    first = table.writer()
    put(first, range(10), "a")
    with weir.open(table_uri, storage_options=options).writer() as second:
        put(second, range(5, 15), "b")
        with pytest.raises((FencedError, PartialWrite)):  # the second writer owns both shards now
            put(first, range(100), "zombie")
        second.flush()
        put(second, [3], "c")
        expected = dict.fromkeys(range(5), "a") | dict.fromkeys(range(5, 15), "b") | {3: "c"}
        assert rows(weir.open(table_uri, storage_options=options)) == expected
    kept = table.checkpoint(scope="all", name="kept")
    table.compact()
    assert rows(table, freshness="base") == expected
    plain = lance.dataset(table_uri, storage_options=options)
    assert plain.count_rows() == len(expected)
    copy = table.clone(store_kind.uri_factory(), kept.id)
    with copy.writer() as writer:
        writer.delete([{"id": 3}])
    assert rows(copy) == {i: v for i, v in expected.items() if i != 3}
    assert rows(table) == expected
    table.reshard(weir.Bucket("id", 3))
    with table.writer() as writer:
        put(writer, [99], "d")
    report = table.gc(min_age=0, fence_retention="121s")
    assert not report.errors
    assert rows(weir.open(table_uri, storage_options=options)) == expected | {99: "d"}
    assert rows(table, checkpoint=kept.id) == expected
    table.restore(weir.open(table_uri, storage_options=options).checkpoint(scope="all").id)
    assert rows(table) == expected | {99: "d"}


@every_cloud
def test_f2_of_sixteen_racers_one_takes_each_position(table_uri, store_kind):
    store: Store = open_store(table_uri, store_kind.storage_options)

    def race(racer: int) -> list[int]:
        won = []
        for position in range(POSITIONS):
            try:
                store.put_if_absent(f"log/{position}", f"{racer} {position}".encode())
            except ObjectExists:
                continue
            won.append(position)
        return won

    taken = SYSTEM.threads.map(race, list(range(RACERS)), workers=RACERS)
    assert sorted(p for won in taken for p in won) == list(range(POSITIONS))
    for racer, won in enumerate(taken):
        for position in won:
            assert store.get(f"log/{position}").data == f"{racer} {position}".encode()


@every_cloud
def test_s1_the_log_on_another_cloud_than_the_table(table_uri, store_kind, tmp_path):
    options = dict(store_kind.storage_options)
    table = weir.create(
        str(tmp_path / "t"), SCHEMA, primary_key="id", wal_uri=table_uri, storage_options=options
    )
    with table.writer(weir.WriterConfig(enable_memtable=False)) as writer:
        put(writer, range(5), "a")
    assert rows(weir.open(table.uri, storage_options=options)) == dict.fromkeys(range(5), "a")


class Careless(FakeGcs):
    keeps_conditions = False


def test_a_store_that_ignores_conditions_is_refused_at_create():
    with Careless() as server:
        place = f"{server.make_bucket('b')}/t"
        with pytest.raises(weir.StoreUnsuitable):
            weir.create(place, SCHEMA, primary_key="id", storage_options=server.storage_options())


def write_there(table, place):
    options = table.core.storage_options
    with weir.open(table.uri, wal_uri=place, storage_options=options).writer() as writer:
        put(writer, [3], "c")


CALLS = {
    "clone": lambda table, place: table.clone(place),
    "deep clone": lambda table, place: table.clone(place, deep=True),
    "log of a clone": lambda table, place: table.clone(f"{table.uri}-2", wal_uri=place),
    "open": lambda table, place: write_there(table, place),
    "move_wal": lambda table, place: table.move_wal(place),
}


@pytest.mark.parametrize("call", CALLS)
def test_s8_no_log_begins_in_a_store_that_ignores_conditions(tmp_path, call):
    """Found by an attack: two writers of a clone there were both told that their rows are safe."""
    with Careless() as server:
        options = server.storage_options()
        table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id", storage_options=options)
        with table.writer() as writer:
            put(writer, [1], "a")
        place = f"{server.make_bucket('b')}/t"
        with pytest.raises(weir.StoreUnsuitable):
            CALLS[call](table, place)
        assert server.buckets["b"] == {}
        assert not (tmp_path / "t-2").exists() or not list((tmp_path / "t-2").rglob("*.json"))
        assert table.checkpoints() == []
        with weir.open(table.uri).writer() as writer:
            put(writer, [2], "b")
        assert rows(weir.open(table.uri)) == {1: "a", 2: "b"}


def test_s8_a_store_is_probed_once_for_all_shards_that_go_there(tmp_path, monkeypatch):
    probed = []
    monkeypatch.setattr("weir.log.wal_store.prove", lambda stores, _: probed.append(stores))
    table = weir.create(
        str(tmp_path / "t"), SCHEMA, primary_key="id", sharding=weir.Bucket("id", 4)
    )
    for _ in range(2):
        with weir.open(table.uri, wal_uri=str(tmp_path / "wal")).writer() as writer:
            put(writer, range(20), "a")
    assert [[store.uri for store in stores] for stores in probed] == [[str(tmp_path / "wal")]]
