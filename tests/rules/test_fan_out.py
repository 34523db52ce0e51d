"""A call over several shards: checked before anything is claimed, every failure told, one error."""

import asyncio
import pickle
from dataclasses import replace
from uuid import uuid4

import pyarrow as pa
import pytest

import weir
from tests.support.moments import SCHEMA, again, expect, make, put, rows
from tests.support.threads import Caller, until
from weir.errors import (
    FencedError,
    InvalidInput,
    KeyConflict,
    PartialWrite,
    SealedShard,
    StoreError,
    WalOnlyMode,
    WriterClosed,
)
from weir.testing.faulty import FaultyStores

ALL = range(40)


def row(key, text="b"):
    return {"id": key, "v": text}


def ids(batches):
    return sorted(key for batch in batches for key in batch.column("id").to_pylist())


# -- before anything is claimed ------------------------------------------------------------------

BAD_CALLS = {
    "insert": lambda w: w.insert([row(1)], on_conflict="replace"),
    "insert a delete": lambda w: w.insert([{"id": 1, "v": "b", "_tombstone": True}]),
    "update": lambda w: w.update([row(1)], missing="create"),
    "when": lambda w: w.put([row(1)], when="current.v <"),
    "when is not boolean": lambda w: w.put([row(1)], when="current.id + 1"),
    "delete_where": lambda w: w.delete_where("v >"),
    "update_where": lambda w: w.update_where("id > 1", {"v": "nothing ||"}),
    "update_where of no column": lambda w: w.update_where("id > 1", {"w": "v"}),
    "update_where of the key": lambda w: w.update_where("id > 1", {"id": "id + 1"}),
    "put_once": lambda w: w.put_once([row(1)], app="a", version=1.5),
}


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("call", BAD_CALLS.values(), ids=BAD_CALLS.keys())
def test_m7_a_bad_argument_is_refused_before_any_shard_is_claimed(tmp_path, call, shards):
    table = make(tmp_path / "t", shards)
    with table.writer() as live, again(table).writer() as other:
        put(live, ALL, "a")
        with pytest.raises(InvalidInput) as refused:
            call(other)
        assert refused.value.kind == "invalid"
        put(live, ALL, "c")  # nobody fenced it
    assert rows(table) == expect((ALL, "c"))


def test_m2_a_wal_only_writer_refuses_to_look_before_any_shard_is_claimed(tmp_path):
    table = make(tmp_path / "t", 2)
    wal_only = again(table).writer(weir.WriterConfig(enable_memtable=False))
    with table.writer() as live:
        put(live, ALL, "a")
        with pytest.raises(WalOnlyMode):
            wal_only.insert([row(1)])
        put(live, ALL, "c")


CALLS = {
    "put": lambda w: w.put([row(1)]),
    "delete": lambda w: w.delete([1]),
    "put_once": lambda w: w.put_once([row(1)], app="a", version=1),
    "insert": lambda w: w.insert([row(1)]),
    "update": lambda w: w.update([row(1)]),
    "when": lambda w: w.put([row(1)], when="current IS NULL"),
    "delete_where": lambda w: w.delete_where("id >= 0"),
    "update_where": lambda w: w.update_where("id >= 0", {"v": "'b'"}),
    "aput": lambda w: asyncio.run(w.aput([row(1), row(2)])),
    "flush": lambda w: w.flush(),
    "flush_wal": lambda w: w.flush_wal(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_f13_a_closed_writer_claims_no_shard(tmp_path, call):
    table = make(tmp_path / "t", 2)
    with table.writer() as done:
        put(done, ALL, "a")
    with again(table).writer() as live:
        put(live, ALL, "c")
        with pytest.raises(WriterClosed):
            call(done)
        put(live, ALL, "d")  # nobody fenced it
    assert rows(table) == expect((ALL, "d"))


# -- every failure is told -----------------------------------------------------------------------


def test_f16_a_timeout_at_one_shard_does_not_hide_a_fenced_one(tmp_path):
    faulty = FaultyStores()
    table = make(tmp_path / "t", 2)
    writer = weir.open(table.uri, env=faulty.env).writer()
    put(writer, ALL, "a")
    fenced, slow = (shard.id for shard in table.shards())
    gate = faulty.at(table.uri).on("put_if_absent", f"*{slow}/wal/*").pause()
    first = [key for key in ALL if table.core.route(_bucket(table, key)) == slow][:1]
    held = Caller(lambda: put(writer, first, "held"))  # it leads, so that others can give up
    gate.wait_reached()
    again(table).shard(fenced).writer().close()
    with pytest.raises(FencedError):  # it learns of it here, as that may take longer than the time
        put(
            writer, [key for key in ALL if table.core.route(_bucket(table, key)) == fenced][:1], "c"
        )
    with pytest.raises(PartialWrite) as told:
        writer.put([row(key) for key in ALL], timeout=0.05)
    assert set(told.value.failures) == {fenced}
    assert told.value.under_way == [slow]
    assert told.value.kind == "fenced"
    assert "still under way" in str(told.value)
    gate.release()
    held.result()
    writer.close()
    found = rows(again(table))
    assert ids(told.value.not_written) == sorted(k for k, text in found.items() if text == "a")
    assert {text for key, text in found.items() if key not in ids(told.value.not_written)} == {"b"}


@pytest.mark.parametrize("fenced", [1, 3])
def test_f16_a_task_is_told_what_a_thread_is_told(tmp_path, fenced):
    table = make(tmp_path / "t", 3)
    writer = table.writer()
    put(writer, ALL, "a")
    for shard in table.shards()[:fenced]:
        again(table).shard(shard.id).writer().close()
    with pytest.raises(PartialWrite) as told:
        asyncio.run(writer.aput([row(key) for key in ALL]))
    assert set(told.value.failures) == {shard.id for shard in table.shards()[:fenced]}
    assert ids(told.value.not_written) == sorted(
        key for key, text in rows(again(table)).items() if text == "a"
    )


@pytest.mark.parametrize("verb", ["delete_where", "update_where"])
def test_f16_a_write_by_filter_says_at_which_shards_it_failed(tmp_path, verb):
    table = make(tmp_path / "t", 3)
    writer = table.writer()
    put(writer, ALL, "a")
    fenced = table.shards()[1].id
    again(table).shard(fenced).writer().close()
    more = [] if verb == "delete_where" else [{"v": "'b'"}]
    with pytest.raises(PartialWrite) as told:
        getattr(writer, verb)("id >= 0", *more)
    assert set(told.value.failures) == {fenced}
    assert "1 of 3 shards failed, the others are done" in str(told.value)
    left = {key for key, text in rows(again(table)).items() if text == "a"}
    assert left
    assert all(table.core.route(_bucket(table, key)) == fenced for key in left)


def _bucket(table, key):
    ((value, _),) = table.core.router.split(pa.record_batch({"id": pa.array([key], pa.int64())}))
    return value


# -- one error -----------------------------------------------------------------------------------


def _partial(*errors):
    return PartialWrite("some", failures={uuid4(): error for error in errors})


def test_the_kind_of_a_partial_write_is_that_of_its_parts():
    fenced = FencedError("", epoch=1, fenced_by=2)
    assert _partial(fenced, fenced).kind == "fenced"
    assert _partial(StoreError(""), StoreError("")).kind == "unavailable"
    assert _partial(StoreError(""), fenced).kind == "fenced"
    assert _partial(KeyConflict(""), StoreError("")).kind == "conflict"
    assert _partial(fenced, InvalidInput("")).kind == "invalid"
    assert pickle.loads(pickle.dumps(_partial(fenced))).kind == "fenced"


def test_a_handler_that_retries_what_is_unavailable_ends_when_all_shards_are_fenced(tmp_path):
    table = make(tmp_path / "t", 2)
    writer = table.writer()
    put(writer, ALL, "a")
    with again(table).writer() as other:
        put(other, ALL, "b")
    with pytest.raises(PartialWrite) as told:
        put(writer, ALL, "c")
    assert told.value.kind == "fenced"
    assert ids(told.value.unacknowledged) == list(ALL)  # a list, as of every error
    assert sorted(told.value.by_shard) == sorted(shard.id for shard in table.shards())


def test_f16_rows_that_the_new_routing_refuses_are_handed_back(tmp_path):
    """It is sharded by a column that the writer does not know."""
    stores = FaultyStores()
    four = weir.Bucket("id", 4)
    table = weir.create(str(tmp_path / "t"), SCHEMA, sharding=four, env=stores.env)
    writer = table.writer()
    put(writer, ALL, "a")
    ends = [shard.id for shard in table.shards()][1:]
    gates = [stores.at(table.uri).on("put_if_absent", f"*{end}*/wal/*").pause() for end in ends]
    call = Caller(lambda: writer.put([row(key) for key in ALL]))
    for gate in gates:
        gate.wait_reached()
    other = again(table)
    other.add_columns(pa.field("region", pa.string()))
    other.reshard(weir.Identity("region"), compact=False)
    for gate in gates:
        gate.release()
    with pytest.raises(PartialWrite) as failed:
        call.result(60)
    assert {type(error) for error in failed.value.failures.values()} == {SealedShard}
    writer.close()
    written = again(table).scan(["id"], filter="v = 'b'").to_table()["id"].to_pylist()
    assert sorted([*ids(failed.value.not_written), *written]) == list(ALL)


def test_f16_a_conflict_at_one_shard_does_not_hide_one_that_is_late(tmp_path):
    faulty, reached = FaultyStores(), []
    table = make(tmp_path / "t", 2)
    env = replace(faulty.env, failpoint=reached.append)
    writer = weir.open(table.uri, env=env).writer()
    put(writer, ALL[:-2], "a")
    _, slow = (shard.id for shard in table.shards())
    late = [key for key in ALL if table.core.route(_bucket(table, key)) == slow]
    there = [key for key in ALL[:-2] if key not in late][:1]
    gate = faulty.at(table.uri).on("put_if_absent", f"*{slow}/wal/*").pause()
    held = Caller(lambda: put(writer, late[:1], "held"))  # it leads, so that others can give up
    gate.wait_reached()
    writer.delete(late[-1:], wait=False)
    call = Caller(lambda: writer.insert([row(there[0]), row(late[-1])], timeout=2))
    until(lambda: writer.put([row(late[1])], wait=False) and reached.count("looking.decided") == 2)
    with pytest.raises(PartialWrite) as told:
        call.result()
    assert [type(error) for error in told.value.failures.values()] == [KeyConflict]
    assert told.value.under_way == [slow]
    assert told.value.kind == "conflict"
    gate.release()
    held.result()
    writer.close()


@pytest.mark.parametrize("of", ["table", "shard"])
def test_m7_a_decision_that_writes_nothing_and_is_late_is_a_timeout(tmp_path, of):
    stores, reached = FaultyStores(), []
    table = make(tmp_path / "t", 1, env=replace(stores.env, failpoint=reached.append))
    writer = table.writer() if of == "table" else table.shards()[0].writer()
    writer.put([row(0)])
    gate = stores.at(table.uri).on("put_if_absent", "*/wal/*").pause()
    first = Caller(lambda: writer.put([row(1)]))
    gate.wait_reached()
    late = Caller(lambda: writer.insert([row(1)], on_conflict="skip", timeout=2))
    until(lambda: writer.put([row(9)], wait=False) and "looking.decided" in reached)
    with pytest.raises(TimeoutError):
        late.result()
    gate.release()
    first.result()
    writer.close()
