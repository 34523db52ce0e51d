"""`put_once` hands back its own rows, and `last_version` tells what it skips (F-16, P-6)."""

from dataclasses import replace

import pytest

import weir
from tests.support.moments import SCHEMA, again, put
from tests.support.threads import Caller, until, until_queued
from weir.env import SystemClock
from weir.errors import Backpressure, FencedError, StoreError
from weir.format import paths
from weir.shard.ack import Ack
from weir.shard.once import PRUNED_EVERY
from weir.shard.request_builder import WriteSpec
from weir.testing.faulty import FaultyStores


def row(key):
    return {"id": key, "v": "a"}


def ids(batches):
    return [key for batch in batches for key in batch.column("id").to_pylist()]


def everything(table):
    return sorted(again(table).scan().to_table()["id"].to_pylist())


def appended(tmp_path, sharding=None):
    return weir.create(str(tmp_path / "t"), SCHEMA, sharding=sharding or weir.Unsharded())


@pytest.mark.parametrize("of", ["table", "shard"])
def test_f16_a_batch_of_a_fenced_writer_gets_its_own_rows_back(tmp_path, of):
    table = appended(tmp_path)
    writer = table.writer() if of == "table" else table.shards()[0].writer()
    assert writer.put_once([row(0)], app="a", version=0)
    other = again(table).writer()
    put(other, [1], "theirs")
    for version in (1, 2, 3):
        with pytest.raises(FencedError) as told:
            writer.put_once([row(10 + version)], app="a", version=version)
        assert ids(told.value.not_written) == [10 + version]
        for batch in told.value.not_written:
            other.put(batch)
    writer.close()
    other.close()
    assert everything(table) == [0, 1, 11, 12, 13]


def test_f16_a_batch_behind_one_that_timed_out_is_refused_with_its_own_rows(tmp_path):
    faulty = FaultyStores()
    table = appended(tmp_path)
    writer = weir.open(table.uri, env=faulty.env).writer()
    writer.put_once([row(0)], app="a", version=0)
    gate = faulty.at(table.uri).on("put_if_absent", "*/wal/*").pause()
    leading = Caller(lambda: writer.put([row(1)]))
    gate.wait_reached()
    with pytest.raises(TimeoutError):
        writer.put_once([row(11)], app="a", version=1, timeout=0.05)
    with pytest.raises(Backpressure) as told:
        writer.put_once([row(12)], app="a", version=2, timeout=0.05)
    assert ids(told.value.not_written) == [12]
    gate.release()
    leading.result()
    assert writer.put_once([row(12)], app="a", version=2)
    assert not writer.put_once([row(11)], app="a", version=1)
    writer.close()
    assert everything(table) == [0, 1, 11, 12]


def test_p2_applications_do_not_wait_for_each_others_batches(tmp_path):
    """One lock over all of them was held while a batch was on its way to the log."""
    faulty = FaultyStores()
    table = appended(tmp_path)
    writer = weir.open(table.uri, env=faulty.env).writer()
    writer.put_once([row(0)], app="a", version=0)
    gate = faulty.at(table.uri).on("put_if_absent", "*/wal/*").pause()
    first = Caller(lambda: writer.put_once([row(1)], app="a", version=1))
    gate.wait_reached()
    (shard,) = writer.shard_writers().values()
    second = Caller(lambda: writer.put_once([row(2)], app="b", version=1))
    until_queued(shard, 2)  # accepted, and on its way behind the first
    gate.release()
    assert first.result()
    assert second.result()
    writer.close()
    assert everything(table) == [0, 1, 2]


@pytest.mark.parametrize("before", [weir.Unsharded(), weir.Bucket("id", 2), weir.Identity("v")])
def test_p6_the_last_version_of_an_heir_is_one_that_put_once_would_skip(tmp_path, before):
    """Whoever resumes after `last_version` loses no row."""
    table = appended(tmp_path, before)
    with table.writer() as writer:
        for version in range(3):
            assert writer.put_once([row(version)], app="a", version=version)
    again(table).reshard(weir.Bucket("id", 3), compact=False)
    for number, shard in enumerate(s for s in again(table).shards() if s.is_routed):
        with shard.writer() as own:
            assert own.last_version("a") == 2
            assert own.last_version("other") == -1
            taken = [k for k in range(100, 130) if number == _number(table, k)][:1]
            following = own.last_version("a") + 1
            assert own.put_once([row(taken[0])], app="a", version=following)
            assert own.last_version("a") == 3
    with again(table).writer() as writer:  # a batch that is put again is skipped
        assert not writer.put_once([row(2)], app="a", version=2)
    assert len(everything(table)) == 6


def _number(table, key):
    import pyarrow as pa

    core = again(table).core
    ((value, _),) = core.router.split(pa.record_batch({"id": pa.array([key], pa.int64())}))
    return [route.shard for route in core.record.routing].index(core.route(value))


def test_p2_a_batch_that_wrote_nothing_is_not_in_because_others_shared_its_turn(tmp_path) -> None:
    stores, reached = FaultyStores(), []
    env = replace(stores.env, failpoint=reached.append)
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id", env=env)
    batch, spec = [{"id": 1, "v": "batch"}, {"id": 7, "v": "batch"}], WriteSpec("insert")
    with table.shard(None).writer() as writer:
        writer.put([{"id": 1, "v": "first"}])
        gate = stores.at(table.uri).on("put_if_absent", "*/wal/*").pause()
        ahead = Caller(lambda: writer.put([{"id": 2, "v": "x"}]))
        gate.wait_reached()
        writer.put([{"id": 3, "v": "x"}], wait=False)
        refused = Caller(lambda: writer.decide_once(batch, spec, app="job", version=5))
        until(lambda: "looking.decided" in reached)
        gate.release()
        ahead.result()
        with pytest.raises(weir.KeyConflict):
            refused.result()
        writer.delete([1])
    with weir.open(table.uri).shard(None).writer() as writer:
        assert writer.decide_once(batch, spec, app="job", version=5) is not None
    assert weir.open(table.uri).count(filter="v = 'batch'") == 2


def test_f16_the_waits_of_one_batch_share_its_timeout(tmp_path, monkeypatch) -> None:
    """By a clock that goes on by half a second whenever it is looked at."""

    class Clock(SystemClock):
        ahead = 0.0

        def boottime(self) -> float:
            self.ahead += 0.5
            return super().boottime() + self.ahead

    stores = FaultyStores()
    table = weir.create(
        str(tmp_path / "t"), SCHEMA, primary_key="id", env=replace(stores.env, clock=Clock())
    )
    with table.shard(None).writer() as writer:
        writer.put_once([row(0)], app="a", version=0)
        waits = []
        wait = Ack.wait
        monkeypatch.setattr(
            Ack, "wait", lambda ack, timeout=None: waits.append(timeout) or wait(ack)
        )
        writer.put_once([row(1)], app="a", version=1, timeout=60)
    assert waits[0] <= 59


def test_p2_a_batch_costs_its_entry_and_its_record(tmp_path) -> None:
    stores = FaultyStores()
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id", env=stores.env)
    store = stores.at(table.uri)
    with table.shard(None).writer() as writer:
        writer.put_once([row(0)], app="a", version=0)
        since = len(store.log)
        for version in range(1, 20):
            writer.put_once([row(version)], app="a", version=version)
        assert [event.op for event in store.log[since:]] == ["put_if_absent"] * 2 * 19
        for version in range(20, 200):
            writer.put_once([row(version)], app="a", version=version)
        marks = list(store.list(paths.token_dir(writer.site.shard, "a")))
        assert len(marks) <= 2 + PRUNED_EVERY + 1  # the last ones, and the note
    with again(table).shard(None).writer() as writer:
        assert writer.last_version("a") == 199


def test_m2_flush_of_a_wal_only_writer_says_so_however_many_shards_are_open(tmp_path) -> None:
    table = weir.create(
        str(tmp_path / "t"), SCHEMA, primary_key="id", sharding=weir.Bucket("id", 3)
    )
    with table.writer(weir.WriterConfig(enable_memtable=False)) as writer:
        for keys in ((), (1,), range(9)):
            writer.put([row(key) for key in keys])
            with pytest.raises(weir.WalOnlyMode):
                writer.flush()


@pytest.mark.parametrize(
    ("app", "version"),
    [("a", -1), ("a", 1 << 64), ("a", -(1 << 70)), ("\ud800", 1), ("", 1), (" ", 1)],
)
@pytest.mark.parametrize("of", ["table", "shard"])
def test_f15_a_token_that_could_not_be_recorded_is_refused(tmp_path, of, app, version) -> None:
    """Accepted, 2**64 ended every flush of the shard from then on, and -1 dropped its rows."""
    table = appended(tmp_path)
    with table.writer() if of == "table" else table.shards()[0].writer() as writer:
        with pytest.raises(weir.InvalidInput, match="exactly-once token"):
            writer.put_once([row(1)], app=app, version=version)
        assert writer.put_once([row(2)], app="a", version=(1 << 64) - 1)
    assert everything(table) == [2]


@pytest.mark.parametrize("of", ["table", "shard"])
def test_f16_a_batch_whose_requests_beside_the_log_fail_is_handed_back_in_its_true_state(
    tmp_path, of
):
    """A shard's writer handed back nothing, and a table's called rows that were in not written."""
    faulty = FaultyStores()
    table = weir.create(str(tmp_path / "t"), SCHEMA, env=faulty.env)

    def failed(version, verb):
        faulty.at(table.uri).on(verb, "*/tokens/*").refuse(times=None)
        with pytest.raises(StoreError) as told:
            writer.put_once([row(version)], app="a", version=version)
        faulty.at(table.uri).heal()
        return ids(told.value.not_written), ids(told.value.perhaps_written)

    for version in (1, 2):
        with table.writer() if of == "table" else table.shards()[0].writer() as writer:
            assert failed(version, "list") == ([], [version])  # it may be a batch that is in
            assert failed(version, "put_if_absent") == ([version], [])
            assert writer.put_once([row(version)], app="a", version=version)
    with table.writer() if of == "table" else table.shards()[0].writer() as writer:
        assert failed(2, "list") == ([], [2])
        assert not writer.put_once([row(2)], app="a", version=2)
    assert everything(table) == [1, 2]
