"""`put_once` after Ctrl-C, a timeout or an error of the store, sent again through the same writer.

A batch was known only once it had been accepted: interrupted in between, it was put twice. An error
while its token was recorded called its rows not written. The rows of every application's last batch
stayed in memory.
"""

import gc
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import weir
from tests.interrupts.points import Points
from tests.support.interrupting import interrupt_each
from tests.support.local_shard import LocalShard, row
from tests.support.threads import Caller
from weir.errors import Backpressure
from weir.shard.request_builder import WriteSpec
from weir.shard.tokens import Tokens
from weir.shard.writer import ShardWriter
from weir.testing.faulty import FaultyStores

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("b", pa.binary())])
SECONDS = 20.0
"""Longer than anything takes here, also on a busy machine."""
LARGE = 1 << 20
"""Bytes of one large batch."""


@pytest.fixture
def shard(tmp_path: Path) -> LocalShard:
    return LocalShard(tmp_path / "t", key=False)


def notes(shard: LocalShard) -> list[str]:
    return [meta.path for meta in shard.raw.list("_weir") if "open-" in meta.path]


def logged(shard: LocalShard) -> Counter[int]:
    return Counter(i for _, _, _, ids in shard.log() for i in ids or ())


def _put_once(writer: ShardWriter, n: int) -> bool:
    return writer.put_once([row(n)], app="a", version=n)


def _decide_once(writer: ShardWriter, n: int) -> bool:
    return writer.decide_once([row(n)], WriteSpec("insert"), app="a", version=n) is not None


@pytest.mark.slow
@pytest.mark.parametrize("send", [_put_once, _decide_once])
def test_p2_a_batch_that_is_interrupted_anywhere_and_sent_again_is_in_once(
    tmp_path: Path, send: Callable[[ShardWriter, int], bool]
) -> None:
    shard = LocalShard(tmp_path / "t", key=send is _decide_once)
    writer = shard.writer()
    numbers = iter(range(1_000_000))
    sent: list[int] = []

    def scenario(points: Points) -> None:
        n = next(numbers)
        is_in = None
        with suppress(KeyboardInterrupt), points:
            is_in = send(writer, n)
        again = Caller(lambda: send(writer, n)).result()
        assert not (is_in and again), "both say that they put it in"
        assert not Caller(lambda: send(writer, n)).result()
        sent.append(n)

    at = r"^weir.shard.(once|puts|conditional|commit):"
    assert interrupt_each(scenario, at) >= 50
    writer.close()
    assert {n: logged(shard)[n] for n in sent} == dict.fromkeys(sent, 1)
    assert notes(shard) == []


def test_p2_a_batch_that_found_no_room_is_out_and_goes_in_when_it_is_sent_again(
    shard: LocalShard,
) -> None:
    writer = shard.writer(
        enable_memtable=False, max_unflushed_memtable_bytes=1, max_wal_buffer_size=1
    )
    gate = shard.faults.on("put_if_absent", "*/wal/*").pause(times=1)
    lead = Caller(lambda: writer.put([row(0)]))
    gate.wait_reached()
    with pytest.raises(Backpressure):
        writer.put_once([row(1)], app="a", version=1, timeout=0.01)
    gate.release()
    lead.result()
    assert writer.put_once([row(1)], app="a", version=1, timeout=SECONDS)
    assert not writer.put_once([row(1)], app="a", version=1, timeout=SECONDS)
    writer.close()
    assert logged(shard) == {0: 1, 1: 1}


def test_p2_a_batch_of_no_rows_does_not_make_an_earlier_one_forgotten(shard: LocalShard) -> None:
    with shard.writer() as writer:
        assert writer.put_once([row(1)], app="a", version=1)
        assert not writer.put_once([], app="a", version=2)
        assert not writer.put_once([row(1)], app="a", version=1), "applied twice"
        assert writer.last_version("a") == 1
    assert logged(shard) == {1: 1}


@pytest.mark.parametrize("sharding", [weir.Unsharded(), weir.Bucket("id", 2), weir.PerWriter()])
def test_p2_a_batch_of_no_rows_was_not_put_whoever_is_asked(
    tmp_path: Path, sharding: weir.Bucket | weir.Unsharded | weir.PerWriter
) -> None:
    key = None if isinstance(sharding, weir.PerWriter) else "id"
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key=key, sharding=sharding)
    with table.writer() as writer:
        assert not writer.put_once([], app="a", version=1)
        assert not writer.put_once(SCHEMA.empty_table(), app="a", version=1)
        assert writer.put_once([{"id": 1}], app="a", version=1)
        assert not writer.put_once([], app="b", version=2)
    with table.shards()[0].writer() as single:
        assert not single.put_once([], app="c", version=1)
        assert not single.put_once(SCHEMA.empty_table(), app="c", version=2)


# -- the store refuses the token -------------------------------------------------------------------


@pytest.mark.parametrize("how", ["refuse", "deny", "fail_before"])
@pytest.mark.parametrize("of", ["table", "shard"])
def test_f16_rows_whose_token_the_store_refuses_are_not_called_not_written(
    tmp_path: Path, how: str, of: str
) -> None:
    faulty = FaultyStores()
    table = weir.create(str(tmp_path / "t"), SCHEMA, env=faulty.env)
    writer: Any = table.writer() if of == "table" else table.shards()[0].writer()
    assert writer.put_once([{"id": 1}], app="a", version=1)
    getattr(faulty.at(table.uri).on("*", "*/tokens/*"), how)(times=None)
    assert writer.put_once([{"id": 2}], app="a", version=2)
    assert not writer.put_once([{"id": 2}], app="a", version=2)
    faulty.at(table.uri).heal()
    writer.close()
    assert sorted(table.scan().to_table()["id"].to_pylist()) == [1, 2]


def test_f16_no_error_at_all_while_a_token_is_recorded_calls_its_rows_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("an answer that no layer translated")

    table = weir.create(str(tmp_path / "t"), SCHEMA)
    with table.writer() as writer:
        with monkeypatch.context() as patch:
            patch.setattr(Tokens, "record", fail)
            assert writer.put_once([{"id": 1}], app="a", version=1)
        assert not writer.put_once([{"id": 1}], app="a", version=1)
    assert table.count() == 1


def test_p6_a_token_that_the_store_refused_is_recorded_by_the_next_call(shard: LocalShard) -> None:
    writer = shard.writer()
    assert writer.put_once([row(1)], app="a", version=1)
    shard.faults.on("*", "*/tokens/*").refuse(times=None)
    assert writer.put_once([row(2)], app="a", version=2)
    shard.faults.heal()
    assert Tokens(shard.site).load("a") == 1
    assert not writer.put_once([row(2)], app="a", version=2)
    assert Tokens(shard.site).load("a") == 2
    writer.close()
    assert notes(shard) == []


@pytest.mark.parametrize("is_up_again", [True, False])
def test_p6_a_token_that_the_store_refused_is_recorded_by_close_or_found_by_the_next_writer(
    shard: LocalShard, is_up_again: bool
) -> None:
    writer = shard.writer(enable_memtable=False)
    for app in "abc":
        assert writer.put_once([row(1)], app=app, version=1)
    shard.faults.on("put_if_absent", "*/tokens/*").refuse(times=None)
    for app in "abc":
        assert writer.put_once([row(2)], app=app, version=2)
    if is_up_again:
        shard.faults.heal()
    before = len(shard.faults.log)
    writer.close()
    tried = {r.path for r in shard.faults.log[before:] if r.op == "put_if_absent"}
    shard.faults.heal()
    assert [Tokens(shard.site).load(app) for app in "abc"] == [2 if is_up_again else 1] * 3
    assert len(notes(shard)) == (0 if is_up_again else 3)
    assert is_up_again or len([path for path in tried if "/tokens/" in path]) == 1
    with shard.writer() as following:
        for app in "abc":
            assert not following.put_once([row(2)], app=app, version=2), "applied twice"
    assert notes(shard) == []
    assert logged(shard) == {1: 3, 2: 3}


def test_f16_a_close_from_within_a_call_waits_for_nobody_and_leaves_its_note(
    shard: LocalShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the handler of a signal does."""
    writer = shard.writer(enable_memtable=False)
    record = Tokens.record

    def close_first(tokens: Tokens, app: str, number: int, *, prune: bool) -> None:
        monkeypatch.setattr(Tokens, "record", record)
        writer.close()
        assert len(notes(shard)) == 1
        record(tokens, app, number, prune=prune)

    monkeypatch.setattr(Tokens, "record", close_first)
    assert Caller(lambda: writer.put_once([row(1)], app="a", version=1)).result()
    with shard.writer() as following:
        assert not following.put_once([row(1)], app="a", version=1)


# -- memory ----------------------------------------------------------------------------------------


Held = tuple[weir.Table, FaultyStores, Callable[[], int]]


@pytest.fixture
def held(tmp_path: Path) -> Held:
    """A table, its stores, and the bytes of Arrow's that are held since now."""
    faulty = FaultyStores()
    table = weir.create(str(tmp_path / "t"), SCHEMA, env=faulty.env)
    gc.collect()
    before = pa.total_allocated_bytes()

    def since() -> int:
        gc.collect()
        return pa.total_allocated_bytes() - before

    return table, faulty, since


def large(n: int) -> pa.Table:
    values = pa.array([bytes(LARGE)], pa.binary())
    return pa.table({"id": pa.array([n], pa.int64()), "b": values}, schema=SCHEMA)


WAL_ONLY = weir.WriterConfig(enable_memtable=False)


def test_m6_the_rows_of_batches_that_are_in_are_not_kept(held: Held) -> None:
    table, _, since = held
    with table.shards()[0].writer(WAL_ONLY) as writer:
        for n in range(8):
            assert writer.put_once(large(n), app=f"upload {n}", version=0)
        assert since() < 2 * LARGE


def test_m6_the_rows_of_batches_whose_calls_timed_out_are_not_kept_once_they_are_durable(
    held: Held,
) -> None:
    table, faulty, since = held
    with table.shards()[0].writer(WAL_ONLY) as writer:
        for n in range(8):
            gate = faulty.at(table.uri).on("put_if_absent", "*/wal/*").pause()
            lead = Caller(lambda: writer.put([{"id": 100}]))
            gate.wait_reached()
            with pytest.raises(TimeoutError):
                writer.put_once(large(n), app=f"upload {n}", version=0, timeout=0.001)
            gate.release()
            lead.result()
        writer.flush_wal()
        assert since() < 2 * LARGE
        assert [writer.last_version(f"upload {n}") for n in range(8)] == [0] * 8


def test_m6_a_receipt_that_is_kept_does_not_keep_the_rows(held: Held) -> None:
    table, _, since = held
    with table.shards()[0].writer(WAL_ONLY) as writer:
        receipts = [writer.put(large(n), wait=False) for n in range(8)]
        assert [receipt.wait() for receipt in receipts] == [r.position for r in receipts]
        assert since() < 2 * LARGE
