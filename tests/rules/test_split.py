"""C-11 to C-13, resharding, and the way back: restore."""

import random
import threading

import lance
import pytest

import weir
from simulator.steps import Died, dies_at, watched
from tests.support.dying import die_at_every_write
from tests.support.moments import SCHEMA, SteppedClock, again, expect, make, put, rows
from weir.env import Env
from weir.errors import CommitConflict, FencedError, InvalidInput, SealedShard
from weir.format.manifest import Status
from weir.records.lineage import read_lineage
from weir.records.resharding import read_resharding
from weir.testing.faulty import FaultyStores
from weir.upkeep import reshard as resharding
from weir.upkeep import restore as restoring
from weir.upkeep.compact.jobs import Jobs
from weir.upkeep.compact.run import compact
from weir.upkeep.exclusive import without_compaction

A, B, C = range(40), range(20, 60), range(50, 90)


def manifests(table):
    return [s.manifest() for s in table.shards()]


@pytest.mark.parametrize("compact", [True, False])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (weir.Unsharded(), weir.Bucket("id", 4)),
        (weir.Bucket("id", 2), weir.Bucket("id", 8)),
        (weir.Bucket("id", 4), weir.Unsharded()),
        (weir.Bucket("id", 2), weir.Identity("id")),
    ],
)
def test_c11_every_row_is_there_before_and_after_with_the_last_write_winning(
    tmp_path, before, after, compact
):
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id", sharding=before)
    with table.writer() as writer:
        put(writer, A, "a")
        writer.flush()
        table.compact()
        put(writer, B, "b")
        writer.flush()
        put(writer, range(3), "log")
        writer.delete([4])
    wanted = expect((A, "a"), (B, "b"), (range(3), "log"))
    del wanted[4]
    stale = again(table)
    report = table.reshard(after, compact=compact)
    assert table.sharding == after
    assert report.routing_version == 1
    assert rows(table) == rows(again(table)) == rows(stale) == wanted
    with again(table).writer() as writer:
        put(writer, C, "c")
        writer.delete([1])
    wanted |= expect((C, "c"))
    del wanted[1]
    for handle in (again(table), stale):
        assert rows(handle) == wanted
        assert handle.get([1, 2, 4, 55])["v"].to_pylist() == ["log", "c"]
    again(table).compact()
    assert rows(again(table)) == wanted
    assert rows(table, checkpoint=report.checkpoint) | {1: ""} != wanted
    assert lance.dataset(table.uri).count_rows() == len(wanted)
    assert read_resharding(table.core.store).state == "done"


def test_c11_a_split_under_load_loses_and_doubles_nothing(tmp_path):
    table = make(tmp_path / "t", 2)
    stop = threading.Event()
    models: list[dict[int, str]] = []
    failures: list[BaseException] = []

    def load(seed: int) -> None:
        model: dict[int, str] = {}
        chance = random.Random(seed)
        try:
            with again(table).writer() as writer:
                n = 0
                while not stop.is_set():
                    ids = [seed * 1000 + chance.randrange(100) for _ in range(5)]
                    put(writer, ids, f"{n}")
                    model |= expect((ids, f"{n}"))
                    n += 1
        except BaseException as error:
            failures.append(error)
        models.append(model)

    threads = [threading.Thread(target=load, args=(seed,)) for seed in (1,)]
    for thread in threads:
        thread.start()
    try:
        for sharding in (weir.Bucket("id", 5), weir.Unsharded(), weir.Bucket("id", 3)):
            table.reshard(sharding)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures
    wanted = {key: value for model in models for key, value in model.items()}
    assert wanted
    assert rows(again(table)) == wanted
    again(table).compact()
    assert rows(again(table)) == wanted
    assert again(table).scan().count() == len(wanted)


def test_c11_a_sealed_shard_takes_no_writer_and_has_no_gap(tmp_path):
    table = make(tmp_path / "t", 2)
    with table.writer() as writer:
        put(writer, A, "a")
    old = table.shards()
    stale = again(table).shards()
    report = table.reshard(weir.Bucket("id", 3), compact=False)
    assert set(report.sealed) == {s.id for s in old}
    for shard in stale:
        found = shard.manifest()
        assert found.status is Status.SEALED
        assert found.replay_after == found.last_seen
        with pytest.raises(SealedShard):
            shard.writer()


def test_c11_writes_in_flight_at_the_seal_are_replayed_or_follow(tmp_path):
    """Breaks (a): rows the old writer acknowledges after the checkpoint exist only in its shard."""
    table = make(tmp_path / "t", 1)
    slow = again(table).writer()
    put(slow, A, "a")
    steps = []

    def meanwhile(step: str) -> None:
        steps.append(step)
        if step == "made":
            put(slow, B, "b")  # before the seal: in the old shard, and acknowledged

    resharding.reshard(watched(table.core, "reshard", meanwhile), weir.Bucket("id", 2))
    put(slow, C, "c")  # its shard was fenced and sealed: it follows the new routing
    slow.close()
    assert rows(again(table)) == expect((A, "a"), (B, "b"), (C, "c"))
    assert steps[0] == "begun"
    assert steps[-1] == "done"


def test_c11_rows_only_buffered_at_the_seal_follow_when_the_writer_is_closed(tmp_path):
    table = make(tmp_path / "t", 1)
    config = weir.WriterConfig(durable_write=False, max_wal_flush_interval="1h")
    writer = again(table).writer(config)
    put(writer, A, "a")
    writer.flush_wal()
    put(writer, B, "b")
    table.reshard(weir.Bucket("id", 3))
    writer.close()
    assert rows(again(table)) == expect((A, "a"), (B, "b"))


@pytest.mark.parametrize("asked", ["_weir/reshard", "_weir/table"])
@pytest.mark.parametrize("call", ["flush_wal", "close", "put"])
def test_f16_rows_on_their_way_to_an_heir_are_told_of_when_the_store_fails(tmp_path, call, asked):
    """The shard was sealed, but the writer cannot read that: no row is lost silently."""
    faulty = FaultyStores()
    table = make(tmp_path / "t", 1)
    config = weir.WriterConfig(durable_write=False, max_wal_flush_interval="1h")
    writer = weir.open(table.uri, env=faulty.env).writer(config)
    put(writer, A, "a")
    table.reshard(weir.Bucket("id", 3))
    faulty.at(table.uri).on("*", f"*{asked}*").fail_before(times=None)
    if call == "put":
        put(writer, B, "b")
    with pytest.raises(weir.WeirError) as told:
        writer.close() if call == "close" else writer.flush_wal()
    back = [row for batch in told.value.unacknowledged for row in batch.to_pylist()]
    assert [row["id"] for row in back] == ([*A, *B] if call == "put" else [*A])


def test_c11_the_heirs_newer_row_wins_over_a_late_fold_of_the_parent(tmp_path):
    """Breaks (b): the parent's generation is folded after the child's newer one."""
    table = make(tmp_path / "t", 1)
    with table.writer() as writer:
        put(writer, A, "old")
    table.reshard(weir.Bucket("id", 2), compact=False)
    with again(table).writer() as writer:
        put(writer, A, "new")
        writer.flush()
    assert rows(table) == expect((A, "new"))
    again(table).compact()
    assert rows(again(table)) == expect((A, "new"))


def test_c11_children_take_no_raw_log(tmp_path):
    """A parent with an open gap is flushed first: no entry of its log is ever copied to a child."""
    table = make(tmp_path / "t", 1)
    writer = table.shards()[0].writer()
    put(writer, A, "a")
    del writer
    report = again(table).reshard(weir.Bucket("id", 4), compact=False)
    fresh = again(table)
    for shard in fresh.shards():
        if shard.id in report.shards:
            assert fresh.core.log(shard.id).tip() == 0
    assert rows(fresh) == expect((A, "a"))


def test_c13_children_number_generations_above_the_parents(tmp_path):
    table = make(tmp_path / "t", 2)
    with table.writer() as writer:
        for n in range(3):
            put(writer, A, f"{n}")
            writer.flush()
    highest = max(m.current_generation for m in manifests(table))
    report = table.reshard(weir.Bucket("id", 3), compact=False)
    fresh = again(table)
    for shard in fresh.shards():
        if shard.id in report.shards:
            assert shard.manifest().current_generation > highest
    with fresh.writer() as writer:
        put(writer, A, "new")
    fresh.compact()
    assert rows(fresh) == expect((A, "new"))


def test_native_programs_are_told_of_the_new_sharding(tmp_path):
    table = make(tmp_path / "t", 2)
    table.reshard(weir.Bucket("id", 4))
    details = again(table).core.lake.open_base().mem_wal
    assert details.num_shards == 4
    assert [s.spec_id for s in details.sharding_specs] == [2]
    assert {
        m.shard_spec_id for s in again(table).shards() if s.is_routed and (m := s.manifest())
    } == {2}


def test_resharding_to_what_is_there_changes_nothing_and_two_at_once_are_refused(tmp_path):
    table = make(tmp_path / "t", 2)
    assert table.reshard(weir.Bucket("id", 2)).sealed == ()

    with pytest.raises(Died):
        resharding.reshard(watched(table.core, "reshard", dies_at("made")), weir.Bucket("id", 4))
    with pytest.raises(InvalidInput, match="not finished"):
        again(table).reshard(weir.Bucket("id", 8))
    again(table).reshard(weir.Bucket("id", 4))
    assert again(table).sharding == weir.Bucket("id", 4)
    with pytest.raises(InvalidInput, match="column"):
        table.reshard(weir.Bucket("nope", 2))


@pytest.mark.parametrize("shards", [1, 2])
def test_c11_a_put_waits_for_a_dead_reshard_no_longer_than_asked_and_says_what_to_do(
    tmp_path, shards
):
    table = make(tmp_path / "t", shards)
    with table.writer() as writer:
        put(writer, A, "a")

        with pytest.raises(Died):
            resharding.reshard(
                watched(again(table).core, "reshard", dies_at("checkpointed")), weir.Bucket("id", 4)
            )
        with pytest.raises((SealedShard, FencedError, weir.PartialWrite)) as waited:
            writer.put([{"id": i, "v": "b"} for i in A], timeout=3)
        errors = getattr(waited.value, "failures", {0: waited.value}).values()
        assert all("table.reshard(Bucket(column='id', num=4))" in e.__notes__[0] for e in errors)
        again(table).reshard(weir.Bucket("id", 4))
        writer.put([{"id": i, "v": "b"} for i in A])
    assert rows(again(table)) == expect((A, "b"))


def test_c11_a_refused_reshard_leaves_nothing_that_a_fenced_writer_waits_for(tmp_path):
    """It had announced itself before it was refused, and nobody was going to finish it."""
    table = make(tmp_path / "t", 2)
    with table.writer() as writer:
        put(writer, A, "a")
    table.reshard(weir.Bucket("id", 3), compact=False)
    jobs = Jobs(table.core.store)
    jobs.claim("another process", jobs.latest())
    writer = again(table).writer()
    put(writer, A, "b")
    with pytest.raises(CommitConflict, match="another compaction"):
        again(table).reshard(weir.Bucket("id", 4))
    with again(table).writer() as newer:
        put(newer, A, "c")
    with pytest.raises(weir.PartialWrite) as fenced:
        writer.put([{"id": i, "v": "d"} for i in A], timeout=2)
    assert not any(hasattr(error, "__notes__") for error in fenced.value.failures.values())
    writer.close()
    again(table).compact(lease=0)
    again(table).reshard(weir.Bucket("id", 4))
    assert rows(again(table)) == expect((A, "c"))


def test_c11_a_reshard_that_a_restore_overtook_is_taken_back(tmp_path, monkeypatch):
    """The restore brought rows of sealed shards back that the reshard had seen folded."""
    table = make(tmp_path / "t", 2)
    with table.writer() as writer:
        put(writer, A, "a")
    table.reshard(weir.Bucket("id", 3), compact=False)
    held, real = table.checkpoint(), resharding.append_resharding

    def overtaken(*args):
        monkeypatch.setattr(resharding, "append_resharding", real)
        again(table).restore(held)
        return real(*args)

    monkeypatch.setattr(resharding, "append_resharding", overtaken)
    with pytest.raises(CommitConflict, match="rows of an earlier reshard"):
        again(table).reshard(weir.Bucket("id", 4))
    assert not read_resharding(table.core.store).is_open
    assert again(table).sharding == weir.Bucket("id", 3)
    again(table).reshard(weir.Bucket("id", 4))
    assert rows(again(table)) == expect((A, "a"))


@pytest.mark.slow
def test_a_crash_after_every_write_of_a_reshard_is_finished_by_the_next_run(tmp_path):
    count = [0]
    state: dict[str, weir.Table] = {}

    def run(life) -> None:
        count[0] += 1
        # The writer waits for a routing that never comes; on this clock the wait takes no time.
        env = Env(clock=SteppedClock())
        state["table"] = table = make(tmp_path / str(count[0]), 1, env=env)
        with table.writer() as writer:
            put(writer, A, "a")
            writer.flush()
            put(writer, B, "b")
            writer.flush_wal()
            resharding.reshard(life.table(again(table)).core, weir.Bucket("id", 2), compact=False)

    def check(n: int, finished: bool) -> None:
        table = again(state["table"])
        wanted = expect((A, "a"), (B, "b"))
        assert rows(table) == wanted, n
        table.reshard(weir.Bucket("id", 2), compact=False)
        with again(table).writer() as writer:
            put(writer, C, "c")
        assert rows(again(table)) == wanted | expect((C, "c")), n
        assert again(table).sharding == weir.Bucket("id", 2)
        assert not read_resharding(table.core.store).is_open
        again(table).compact(lease=0)
        assert rows(again(table)) == wanted | expect((C, "c")), n
        assert finished or n < 80

    def tolerant(life) -> None:
        try:
            run(life)
        except weir.FencedError:
            life.check()

    assert die_at_every_write(tolerant, check) > 12


# -- restore ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["all", "durable"])
def test_restore_rolls_back_and_can_be_undone(tmp_path, scope):
    table = make(tmp_path / "t", 2)
    with table.writer() as writer:
        put(writer, A, "a")
        writer.flush()
        table.compact()
        put(writer, B, "b")
        writer.flush()
        put(writer, range(3), "log")
        made = table.checkpoint(scope=scope)
        wanted = rows(table)
        put(writer, C, "c")
        writer.delete([7])
    table.compact()
    with table.writer() as writer:
        put(writer, [99], "late")
    after = rows(table)
    report = table.restore(made)
    assert rows(table) == rows(again(table)) == wanted
    assert rows(table, checkpoint=report.undo) == after
    assert read_lineage(table.core.store).restored.checkpoint == made.id
    with again(table).writer() as writer:
        put(writer, [1], "new")
    again(table).compact()
    assert rows(again(table)) == wanted | {1: "new"}
    table.restore(report.undo)
    assert rows(again(table)) == after


def test_restore_fences_writers_and_positions_are_not_used_again(tmp_path):
    table = make(tmp_path / "t", 1)
    writer = again(table).shards()[0].writer()
    put(writer, A, "a")
    made = table.checkpoint(scope="durable")
    put(writer, B, "b")
    report = table.restore(made)
    with pytest.raises(weir.FencedError):
        put(writer, C, "c")
    assert rows(table) == expect((A, "a"))
    (span,) = report.shards.values()
    assert span[0] == made.shards[0].wal_through
    assert table.shards()[0].manifest().replay_after == span[1]


def test_restore_survives_the_marks_of_a_compactor_that_slept(tmp_path):
    """It commits before the restore and marks after it; restored SSTables are above all marks."""
    table = make(tmp_path / "t", 1)
    with table.writer() as writer:
        put(writer, A, "a")
        writer.flush()
        made = table.checkpoint("all")
        put(writer, B, "b")
        writer.flush()
    sleeper = again(table)

    def restore(step: str) -> None:
        if step == "committed":
            table.restore(made)

    with pytest.raises(weir.CommitConflict):
        compact(watched(sleeper.core, "compact", restore))
    assert rows(again(table)) == expect((A, "a"))
    again(table).compact(lease=0)
    assert rows(again(table)) == expect((A, "a"))


def test_restore_of_a_moment_before_a_reshard_is_refused(tmp_path):
    table = make(tmp_path / "t", 1)
    made = table.checkpoint("all")
    table.reshard(weir.Bucket("id", 2))
    with pytest.raises(InvalidInput, match="clone"):
        table.restore(made)
    assert rows(table.clone(str(tmp_path / "copy"), made)) == {}


def test_restore_empties_shards_the_checkpoint_does_not_know(tmp_path):
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id", sharding=weir.Identity("id"))
    with table.writer() as writer:
        put(writer, [1], "a")
        made = table.checkpoint("all")
        put(writer, [2], "b")
    table.restore(made)
    assert rows(again(table)) == {1: "a"}


@pytest.mark.slow
def test_a_crash_after_every_write_of_a_restore_is_finished_by_the_next_run(tmp_path):
    count = [0]
    state = {}

    def run(life) -> None:
        count[0] += 1
        table = make(tmp_path / str(count[0]), 2)
        with table.writer() as writer:
            put(writer, A, "a")
            writer.flush()
            put(writer, B, "b")
            made = table.checkpoint(scope="durable")
            put(writer, C, "c")
        state["it"] = table, made
        restoring.restore(life.table(again(table)).core, made)

    def check(n: int, finished: bool) -> None:
        table, made = state["it"]
        if not finished:
            again(table).restore(made)
        assert rows(again(table)) == expect((A, "a"), (B, "b")), n
        again(table).compact(lease=0)
        assert rows(again(table)) == expect((A, "a"), (B, "b")), n
        assert read_lineage(table.core.store).state == "ready"

    assert die_at_every_write(run, check) > 10


@pytest.mark.parametrize("step", ["compact.claimed", "compact.written", "compact.committed"])
def test_l4_a_reshard_compacts_again_if_a_claim_of_a_moment_took_over(tmp_path, step):
    """A move of the log beside it has one, to say where the log is; the reshard itself was done."""

    def at(reached: str) -> None:
        if reached == step and first:
            with without_compaction(first.pop().core):
                pass

    first = []
    table = make(tmp_path / "t", 2, env=Env(failpoint=at))
    put(again(table, env=Env()).writer(), A, "a")
    first.append(again(table, env=Env()))
    report = table.reshard(weir.Bucket("id", 3))
    assert not first
    assert report.compaction is not None
    assert not report.compaction.skipped
    assert rows(table) == expect((A, "a"))
