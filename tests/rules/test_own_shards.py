"""A writer with shards of its own takes their rows, and refuses others before it claims any."""

import asyncio
import copy
import pickle
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

import weir
from tests.support.moments import again, make, rows
from weir import aio
from weir.errors import FencedError, InvalidInput, NotOwner, PartialWrite, SealedShard

SHARDS = 4
KEYS = range(40)


def row(key, text="a"):
    return {"id": key, "v": text}


def keys_of(table, *values):
    """Some keys of those shards, in order."""
    return [key for key in KEYS if table.shard_of(key).value in values]


def epochs(table):
    """The epoch of each shard of the routing, by value."""
    return {s.value: s.manifest().writer_epoch for s in again(table).shards() if s.is_routed}


def call_and_flush(verb, writer, some):
    """The verb; where nobody waits for its outcome, a flush says it."""
    verb(writer, some)
    writer.flush_wal()


VERBS = {
    "put": lambda w, some: w.put(some),
    "put of one": lambda w, some: w.put(some[-1]),
    "put of arrow": lambda w, some: w.put(pa.Table.from_pylist(some)),
    "put that nobody waits for": lambda w, some: w.put(some, wait=False),
    "put with a condition": lambda w, some: w.put(some, when="current.v is null"),
    "delete": lambda w, some: w.delete([one["id"] for one in some]),
    "put_once": lambda w, some: w.put_once(some, app="a", version=1),
    "update": lambda w, some: w.update(some, missing="insert"),
    "insert": lambda w, some: w.insert(some, on_conflict="skip"),
    "aput": lambda w, some: asyncio.run(w.aput(some)),
    "aput of one": lambda w, some: asyncio.run(w.aput(some[-1])),
    "adelete": lambda w, some: asyncio.run(w.adelete([one["id"] for one in some])),
}


@pytest.mark.parametrize("is_open", [False, True], ids=["fresh", "open"])
@pytest.mark.parametrize("verb", VERBS)
def test_rows_of_another_shard_are_refused_before_anything_is_claimed(tmp_path, verb, is_open):
    table = make(tmp_path / "t", SHARDS)
    mine, others = keys_of(table, 0, 2), keys_of(table, 1, 3)
    with table.writer(shards=[0, 2]) as writer:
        if is_open:
            writer.put([row(key) for key in mine])
        before = epochs(table)
        with pytest.raises(NotOwner, match=f"'id': {others[0]}.*shards \\[0, 2\\]") as refused:
            VERBS[verb](writer, [*(row(key, "b") for key in mine), row(others[0])])
        error = refused.value
        assert (error.shard, error.value) == (
            table.shard_of(others[0]).id,
            table.shard_of(others[0]).value,
        )
        assert error.kind == "invalid"
        assert error.unacknowledged == []  # nothing was accepted
        assert epochs(table) == before
        VERBS[verb](writer, [row(keys_of(table, 2)[0], "b"), row(mine[0], "b")])
    assert epochs(table)[1] == epochs(table)[3] == 0
    kept = rows(table)
    assert others[0] not in kept
    assert [key for key in mine[1:] if key != keys_of(table, 2)[0] and kept.get(key) == "b"] == []


def test_the_error_names_the_first_such_row_and_travels(tmp_path):
    table = make(tmp_path / "t", SHARDS)
    mine, others = keys_of(table, 0), [*keys_of(table, 3)[:3], *keys_of(table, 1)[:3]]
    batches = [row(mine[0]), row(mine[1]), *map(row, others)]
    with table.writer(shards=[0]) as writer, pytest.raises(NotOwner) as refused:
        writer.put(batches)
    for error in (
        refused.value,
        pickle.loads(pickle.dumps(refused.value)),
        copy.copy(refused.value),
    ):
        assert (error.shard, error.value) == (table.shard(3).id, 3)
        assert isinstance(error, weir.WeirError)
        assert str(error) == str(refused.value)


def test_shards_may_be_named_by_value_id_or_handle(tmp_path):
    table = make(tmp_path / "t", SHARDS)
    one, two = table.shard(1), table.shard(2)
    for names in ([1, 2], (one.id, 2), {one, two}, iter([1, two.id]), np.array([1, 2]), [1, 2, 1]):
        with table.writer(shards=names) as writer:
            assert sorted(writer.shards) == sorted([one.id, two.id])
            writer.put([row(key) for key in keys_of(table, 1, 2)])
            assert set(writer.shard_writers()) == {one.id, two.id}
    with table.writer(shards=[]) as writer:
        assert writer.shards == ()
        with pytest.raises(NotOwner):
            writer.put(row(1))
    with table.writer() as writer:
        assert set(writer.shards) == {shard.id for shard in table.shards()}


def test_what_names_no_shard_is_refused_at_once(tmp_path):
    table, other = make(tmp_path / "t", SHARDS), make(tmp_path / "other", SHARDS)
    tenants = weir.create(
        str(tmp_path / "tenants"),
        pa.schema([pa.field("tenant", pa.int64(), nullable=False)]),
        primary_key="tenant",
        sharding=weir.Identity("tenant"),
    )
    for target, names in (
        (table, [4]),
        (table, [-1]),
        (table, ["1"]),
        (table, [1.0]),
        (table, [True]),
        (table, [None]),
        (table, [UUID(int=7)]),
        (table, [other.shard(1)]),
        (table, 1),
        (table, "01"),
        (table, {0: 1}),
        (tenants, ["x"]),
        (tenants, [2**70]),
        (tenants, [None]),
        (tenants, [table.shard(0).id]),
    ):
        with pytest.raises(InvalidInput):
            target.writer(shards=names)
    assert set(epochs(table).values()) == {0}
    assert tenants.shards() == []


def test_identity_shards_are_made_by_their_first_row(tmp_path):
    schema = pa.schema([pa.field("tenant", pa.string(), nullable=False), ("n", pa.int64())])
    table = weir.create(
        str(tmp_path / "t"), schema, primary_key="tenant", sharding=weir.Identity("tenant")
    )
    with table.writer(shards=["ada", table.shard_of("bob")]) as writer:
        assert writer.shards == (table.shard_of("ada").id, table.shard_of("bob").id)
        assert writer.delete_where("n = 1") == weir.WriteCounts()
        assert table.shards() == []
        writer.put([{"tenant": "ada", "n": 1}, {"tenant": "bob", "n": 1}])
        with pytest.raises(NotOwner, match="'eve'") as refused:
            writer.put([{"tenant": "bob", "n": 2}, {"tenant": "eve", "n": 2}])
        assert refused.value.value == "eve"
        assert {shard.value for shard in table.shards()} == {"ada", "bob"}
    with table.writer() as writer:
        assert writer.shards == ()
        writer.put({"tenant": "eve", "n": 3})
        assert writer.shards == (table.shard_of("eve").id,)


def test_a_null_value_has_a_shard_where_the_column_may_be_null(tmp_path):
    schema = pa.schema([("tenant", pa.string()), ("n", pa.int64())])
    table = weir.create(str(tmp_path / "t"), schema, sharding=weir.Identity("tenant"))
    with table.writer(shards=[None]) as writer:
        writer.put([{"n": 1}])
        with pytest.raises(NotOwner):
            writer.put([{"tenant": "ada", "n": 1}])
    with table.writer(shards=table.shards()) as writer:
        writer.put([{"n": 2}])
    assert table.count() == 2


def test_writes_by_filter_look_at_the_own_shards_only(tmp_path):
    table = make(tmp_path / "t", SHARDS)
    with table.writer() as writer:
        writer.put([row(key) for key in KEYS])
    before = epochs(table)
    with table.writer(shards=[1, 2]) as writer:
        counts = writer.update_where("v = 'a'", {"v": "'b'"})
        assert counts.updated == len(keys_of(table, 1, 2))
        assert writer.delete_where("v = 'b'").deleted == len(keys_of(table, 1, 2))
    assert sorted(rows(table)) == keys_of(table, 0, 3)
    assert [value for value, epoch in epochs(table).items() if epoch != before[value]] == [1, 2]


BUFFERED = weir.WriterConfig(durable_write=False, max_wal_flush_interval="1h")
RESHARDED = {
    **VERBS,
    "delete_where": lambda w, _: w.delete_where("v = 'a'"),
    "update_where": lambda w, _: w.update_where("v = 'a'", {"v": "'b'"}),
}


@pytest.mark.parametrize("verb", RESHARDED)
@pytest.mark.parametrize("elsewhere", [False, True], ids=["same handle", "another"])
def test_c11_after_a_reshard_no_heir_is_taken(tmp_path, verb, elsewhere):
    table = make(tmp_path / "t", SHARDS)
    mine = keys_of(table, 0, 2)
    # Nothing is sent before it is flushed, or two calls may each be told of one shard.
    config = BUFFERED if "nobody waits" in verb else None
    writer = table.writer(config, shards=[0, 2])
    writer.put([row(key) for key in mine], wait=True)
    (again(table) if elsewhere else table).reshard(weir.Bucket("id", 3), compact=False)
    some = [row(mine[0], "b"), row(mine[-1], "b")]
    with pytest.raises((SealedShard, PartialWrite), match=r"open a new one with shards") as refused:
        call_and_flush(RESHARDED[verb], writer, some)
    error = refused.value
    failures = error.failures.values() if isinstance(error, PartialWrite) else [error]
    assert {type(failure) for failure in failures} == {SealedShard}
    assert error.kind == "invalid"
    if not verb.endswith("where"):
        handed = sum(batch.num_rows for batch in error.not_written)
        assert handed == (1 if verb.endswith("of one") else 2)
    assert error.perhaps_written == []
    writer.close()
    assert set(epochs(table).values()) == {0}
    assert rows(table) == dict.fromkeys(mine, "a")


@pytest.mark.parametrize("elsewhere", [False, True], ids=["same handle", "another"])
def test_c11_buffered_rows_of_a_sealed_shard_are_handed_back_once(tmp_path, elsewhere):
    table = make(tmp_path / "t", SHARDS)
    mine = keys_of(table, 1)
    writer = table.writer(BUFFERED, shards=[1])
    writer.put([row(key) for key in mine])
    (again(table) if elsewhere else table).reshard(weir.Bucket("id", 3), compact=False)
    with pytest.raises(SealedShard, match="open a new one with shards") as refused:
        writer.close()
    assert [r["id"] for batch in refused.value.not_written for r in batch.to_pylist()] == mine
    writer.close()
    assert set(epochs(table).values()) == {0}
    assert rows(table) == {}


def test_a_new_writer_with_new_shards_goes_on_after_a_reshard(tmp_path):
    table = make(tmp_path / "t", SHARDS)
    again(table).reshard(weir.Bucket("id", 6), compact=False)
    with table.writer(shards=range(6)) as writer:  # of the current routing, not of the handle's
        writer.put([row(key) for key in KEYS])
    with pytest.raises(InvalidInput, match="resharded away"):
        table.writer(shards=[s for s in table.shards() if not s.is_routed])
    assert rows(table) == dict.fromkeys(KEYS, "a")


def test_two_writers_with_their_own_shards_never_meet(tmp_path):
    table = make(tmp_path / "t", SHARDS)
    with table.writer(shards=[0, 1]) as left, again(table).writer(shards=[2, 3]) as right:
        for text in "abc":
            left.put([row(key, text) for key in keys_of(table, 0, 1)])
            right.put([row(key, text) for key in keys_of(table, 2, 3)])
        assert left.fenced == right.fenced == ()
    assert set(epochs(table).values()) == {1}
    assert rows(table) == dict.fromkeys(KEYS, "c")


def test_fenced_names_the_shards_that_another_writer_took(tmp_path):
    table = make(tmp_path / "t", SHARDS)
    writer = table.writer(shards=[0, 1])
    writer.put([row(key) for key in keys_of(table, 0, 1)])
    with again(table).writer(shards=[1, 2]) as other:
        other.put([row(key, "b") for key in keys_of(table, 1)])
    assert writer.fenced == ()  # an idle writer does not notice
    with pytest.raises(PartialWrite):
        writer.put([row(key, "c") for key in keys_of(table, 0, 1)])
    taken = (table.shard(1).id,)
    assert writer.fenced == taken
    writer.put([row(key, "c") for key in keys_of(table, 0)])
    writer.close()
    assert writer.fenced == taken
    shard_writer = table.shard(0).writer()
    assert shard_writer.shards == (table.shard(0).id,)
    assert not shard_writer.fenced
    shard_writer.close()


def test_a_reshard_is_no_takeover(tmp_path):
    table = make(tmp_path / "t", SHARDS)
    with table.writer() as writer:
        writer.put([row(key) for key in KEYS])
        again(table).reshard(weir.Bucket("id", 3), compact=False)
        writer.put([row(key, "b") for key in KEYS])
        assert writer.fenced == ()
        assert set(writer.shards) == {s.id for s in again(table).shards() if s.is_routed}


def test_tasks_have_shards_of_their_own_too(tmp_path):
    table = make(tmp_path / "t", SHARDS)
    mine, others = keys_of(table, 0), keys_of(table, 1)

    async def run():
        lake = await aio.open(table.uri)
        with pytest.raises(InvalidInput):
            await lake.writer(shards=[9]).__aenter__()
        async with lake.writer(shards=[0]) as writer:
            await writer.put([row(key) for key in mine])
            for bad in (row(others[0]), [row(mine[0], "b"), row(others[0])]):
                with pytest.raises(NotOwner) as refused:
                    await writer.put(bad)
                assert refused.value.value == 1
            with pytest.raises(NotOwner):
                await writer.put(row(others[0]), wait=False)
            with pytest.raises(NotOwner):
                await writer.delete(others[:1])
            assert (writer.shards, writer.fenced) == ((table.shard(0).id,), ())
            with again(table).writer(shards=[0]) as other:
                other.put(row(mine[0], "c"))
            with pytest.raises(FencedError):
                await writer.put(row(mine[0], "d"))
            assert writer.fenced == writer.shards

    asyncio.run(run())
    assert rows(table) == {**dict.fromkeys(mine, "a"), mine[0]: "c"}
