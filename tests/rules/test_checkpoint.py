"""K-1 to K-8: a checkpoint pins a moment, and holds it until it is released."""

import threading
import uuid

import pytest

import weir
from simulator.steps import watched
from tests.support.dying import die_at_every_write
from tests.support.moments import again, at_time, expect, make, put, rows
from weir.errors import CheckpointNotFound, InvalidInput, WalOnlyMode
from weir.log.floors import Floors
from weir.records.holds import Holds
from weir.upkeep import checkpoint as checkpoints
from weir.upkeep.gc.collect import collect
from weir.upkeep.pinning import closed_pins

A, B, C = range(10), range(5, 20), range(15, 30)


def collect_all(table, hook=lambda _step: None):
    """Garbage collection with no slack at all: only referenced objects stay."""
    report = collect(watched(table.core, "gc", hook), 0, 120, keep_first_entries=False)
    assert not report.errors, report.errors
    return report


def steps_of(table, scope):
    seen = []
    checkpoints.delete(
        table.core, checkpoints.create(watched(table.core, "checkpoint", seen.append), scope=scope)
    )
    return seen


# -- K-1 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["all", "durable"])
def test_k1_collection_at_every_step_of_creation_never_takes_what_is_pinned(tmp_path, scope):
    table = make(tmp_path / "t")
    with table.writer() as writer:
        put(writer, A, "a")
        steps = steps_of(table, scope)
        assert steps == ["pinned", "announced", "tagged", "checked", "confirmed"]
        text, seen = "a", expect((A, "a"))
        for step in steps:
            text += "x"
            put(writer, A, text)
            writer.flush()
            put(writer, B, text)
            seen |= expect((A, text), (B, text))

            met: list[str] = []

            def interfere(
                at: str, step: str = step, text: str = text, met: list[str] = met
            ) -> None:
                if at != step or met:
                    return
                met.append(at)
                # Flush and fold later rows, so that collection has everything it could delete.
                put(writer, C, text)
                writer.flush()
                table.compact()
                collect_all(again(table))

            made = checkpoints.create(watched(table.core, "checkpoint", interfere), scope=scope)
            wanted = dict(seen)
            if step in ("pinned", "announced", "tagged"):
                # Collection was faster, or saw the record: either way one of the two yielded.
                assert rows(table, checkpoint=made) in (wanted, wanted | expect((C, text)))
                wanted = rows(table, checkpoint=made)
            assert rows(table, checkpoint=made) == wanted, step
            collect_all(again(table))
            assert rows(again(table), checkpoint=made.id) == wanted, step
            seen |= expect((C, text))


def test_k1b_a_checkpoint_made_at_every_step_of_collection_is_kept(tmp_path):
    """The reverse: a whole checkpoint is made between any two steps of the collector."""
    table = make(tmp_path / "t", 1)
    with table.writer() as writer:
        steps: list[str] = []
        for n in range(20):
            put(writer, A, f"a{n}")
            writer.flush()
            put(writer, B, f"b{n}")
            made = []
            seen = []

            def interfere(at: str, n: int = n, made: list = made, seen: list = seen) -> None:
                seen.append(at)
                if len(seen) == n + 1:
                    made.append(again(table).checkpoint(scope="durable"))

            collect_all(again(table), hook=interfere)
            steps = steps or seen
            if not made:
                break
            put(writer, C, "later")
            writer.flush()
            table.compact()
            collect_all(again(table))
            assert rows(table, checkpoint=made[0]) == rows(table, checkpoint=made[0].id)
            got = rows(table, checkpoint=made[0])
            assert {got[i] for i in B} == {f"b{n}"}
            table.delete_checkpoint(made[0])
        assert len(steps) >= 2, "collection names its steps"


def test_k1b_a_floor_raised_before_the_record_makes_the_checkpoint_start_over(tmp_path):
    table = make(tmp_path / "t", 1)
    shard = table.shards()[0]
    with table.writer() as writer:
        put(writer, A, "a")
        versions = []

        def pass_it(step: str) -> None:
            if step == "announced" and not versions:
                pinned = Holds(table.core.store).checkpoints(pending=True)[0].shards[0]
                versions.append(pinned.manifest_version)
                writer.put([{"id": 99, "v": "later"}])
                writer.flush()
                Floors(table.core.table_site(shard.id)).raise_to("manifest", versions[0])

        made = checkpoints.create(watched(table.core, "checkpoint", pass_it), scope="durable")
        assert made.shards[0].manifest_version > versions[0]
        assert [c.id for c in Holds(table.core.store).checkpoints(pending=True)] == [made.id]
        assert list(table.core.lake.protected_versions()) == [made.base_tag]


def test_k1b_a_wal_floor_above_r_makes_it_start_over_and_it_gives_up_at_last(tmp_path):
    table = make(tmp_path / "t", 1)
    shard = table.shards()[0]
    with table.writer() as writer:
        put(writer, A, "a")
        Floors(table.core.table_site(shard.id)).raise_to("wal", 1)
        with pytest.raises(weir.CommitConflict, match="no checkpoint was made"):
            table.checkpoint(scope="durable")
    assert Holds(table.core.store).checkpoints(pending=True) == []
    assert table.core.lake.protected_versions() == {}


# -- K-2, K-3, K-4 ---------------------------------------------------------------------------------


def test_k2_durable_holds_every_acknowledged_row_and_no_later_one(tmp_path):
    table = make(tmp_path / "t")
    with table.writer() as writer:
        put(writer, A, "a")
        writer.flush()
        put(writer, B, "b")
        before = {s.id: s.manifest().version for s in table.shards()}
        made = table.checkpoint(scope="durable")
        assert {s.id: s.manifest().version for s in table.shards()} == before  # nothing flushed
        put(writer, C, "c")
        assert rows(table, checkpoint=made) == expect((A, "a"), (B, "b"))
        assert all(pin.wal_through > pin.replay_after for pin in made.shards)


def test_k2_durable_through_a_writer_leaves_out_what_is_only_buffered(tmp_path):
    table = make(tmp_path / "t", 1)
    config = weir.WriterConfig(durable_write=False, max_wal_flush_interval="1h")
    with table.shards()[0].writer(config) as writer:
        put(writer, A, "a")
        writer.flush_wal()
        put(writer, B, "b")  # buffered, not acknowledged
        made = table.checkpoint(scope="durable")
        assert rows(table, checkpoint=made) == expect((A, "a"))
        assert writer.is_open


def test_k3_all_holds_what_was_accepted_and_leaves_no_gap(tmp_path):
    table = make(tmp_path / "t")
    config = weir.WriterConfig(durable_write=False, max_wal_flush_interval="1h")
    with table.writer(config) as writer:
        put(writer, A, "a")
        made = table.checkpoint(scope="all", name="full")
        put(writer, B, "b")
        assert all(pin.closed for pin in made.shards)
        assert rows(table, checkpoint="full") == expect((A, "a"))
        writer.flush_wal()
        assert rows(table) == expect((A, "a"), (B, "b"))


def test_k3_an_empty_flush_pins_a_closed_gap_too(tmp_path):
    """Observed: the MemTable is empty, so nothing is flushed and R stays below the fence."""
    table = make(tmp_path / "t", 1)
    for _ in range(3):
        with table.shards()[0].writer() as writer:
            made = table.checkpoint("all")
            pin = made.shards[0]
            assert pin.replay_after == pin.wal_through == writer.wal_stats().fence_position
            manifest = table.core.log(writer.site.shard).manifests.load(pin.manifest_version)
            assert manifest.replay_after == manifest.last_seen == pin.wal_through


def test_k3_a_later_flush_that_is_faster_does_not_widen_the_cut(tmp_path, monkeypatch):
    """Breaks (b): later rows are flushed between its flush and its manifest; the cut stays."""
    from weir.shard.flush import Flusher

    table = make(tmp_path / "t", 1)
    with table.shards()[0].writer() as writer:
        put(writer, A, "a")
        original = Flusher.close_gap

        def later_rows_first(self) -> None:
            monkeypatch.setattr(Flusher, "close_gap", original)
            put(writer, A, "later")
            writer.flush()
            original(self)

        monkeypatch.setattr(Flusher, "close_gap", later_rows_first)
        made = table.checkpoint("all")
        assert rows(table) == expect((A, "later"))
        assert rows(table, checkpoint=made) == expect((A, "a"))


def test_k3_rows_put_while_it_flushes_are_not_in_it(tmp_path):
    table = make(tmp_path / "t", 1)
    with table.shards()[0].writer(weir.WriterConfig(max_memtable_rows=500)) as writer:
        stop = threading.Event()
        acked: list[int] = []

        def load() -> None:
            i = 0
            while not stop.is_set():
                put(writer, [i], "x")
                acked.append(i)
                i += 1

        thread = threading.Thread(target=load)
        thread.start()
        try:
            for _ in range(5):
                before = len(acked)
                pins = closed_pins(table.core)
                made = table.checkpoint("all")
                after = len(acked)
                assert all(pin.closed for pin in (*pins, *made.shards))
                seen = rows(table, checkpoint=made)
                assert set(seen) == set(range(len(seen)))  # a prefix of what was put
                assert before <= len(seen) <= after + 1
        finally:
            stop.set()
            thread.join()


def test_k3_a_wal_only_writer_is_told_what_to_do(tmp_path):
    table = make(tmp_path / "t", 1)
    with table.writer(weir.WriterConfig(enable_memtable=False)) as writer:
        put(writer, A, "a")
        with pytest.raises(WalOnlyMode, match="scope='durable'"):
            table.checkpoint("all")
        assert rows(table, checkpoint=table.checkpoint(scope="durable")) == expect((A, "a"))


def test_k3_a_wal_only_writer_whose_log_holds_no_rows_needs_no_flush(tmp_path):
    table = make(tmp_path / "t", 1)
    with table.shard(0).writer(weir.WriterConfig(enable_memtable=False)) as writer:
        empty = table.checkpoint("all")  # its log holds only the fence of its claim
        put(writer, A, "a")
        with pytest.raises(WalOnlyMode, match="close it first"):
            table.checkpoint("all")
        put(writer, B, "b")  # not fenced
        assert rows(table, checkpoint=empty) == {}
    made = table.checkpoint("all")
    assert made.shards[0].closed
    assert rows(table) == rows(table, checkpoint=made) == expect((A, "a"), (B, "b"))


def test_k4_detached_next_to_a_live_writer_has_acknowledged_rows_and_disturbs_nobody(tmp_path):
    table = make(tmp_path / "t")
    config = weir.WriterConfig(durable_write=False, max_wal_flush_interval="1h")
    with table.writer(config) as writer:
        put(writer, A, "a")
        writer.flush_wal()
        put(writer, B, "b")
        other = again(table)
        made = other.checkpoint(scope="durable")
        assert rows(other, checkpoint=made) == expect((A, "a"))
        for shard in other.shards():
            pin, manifest = made.pin(shard.id), shard.manifest()
            assert pin.wal_through >= max(manifest.last_seen, manifest.replay_after)
        put(writer, C, "c")  # not fenced
    assert rows(table) == expect((A, "a"), (B, "b"), (C, "c"))


def test_k4_a_claim_between_manifest_and_tip_is_noticed(tmp_path):
    """Otherwise T would include entries of an epoch unknown to the pinned manifest (C-7)."""
    table = make(tmp_path / "t", 1)
    shard = table.shards()[0]
    with shard.writer() as writer:
        put(writer, A, "a")
    other = again(table)
    manifests = other.core.log(shard.id).manifests
    original = manifests.latest_with_floors
    calls = []

    def claim_after():
        found = original()
        if not calls:
            calls.append(1)
            with again(table).shards()[0].writer() as late:
                put(late, B, "b")
                late.flush_wal()
                put(late, C, "c")
        return found

    manifests.latest_with_floors = claim_after
    made = other.checkpoint(scope="durable")
    site = other.core.log(shard.id).current_site()
    tailer = weir.WalTailer(other.shards()[0])
    entries = tailer.read_range(made.shards[0].replay_after, made.shards[0].wal_through)
    assert all(entry.epoch <= made.shards[0].epoch for entry in entries), site


def test_w3_a_gap_of_fences_is_closed_without_a_claim(tmp_path):
    table = make(tmp_path / "t", 1)
    with table.shards()[0].writer() as writer:
        empty = again(table).checkpoint("all")
        assert empty.shards[0].closed
        assert empty.shards[0].epoch == writer.epoch
        put(writer, A, "a")


def test_k4_scope_all_without_a_writer_flushes_the_rows_in_the_gap_and_fences(tmp_path):
    table = make(tmp_path / "t", 1)
    with table.shards()[0].writer() as writer:
        other = again(table)
        put(writer, A, "a")
        full = other.checkpoint("all")
        assert full.shards[0].closed
        assert full.shards[0].epoch == writer.epoch + 1
        assert rows(other, checkpoint=full) == expect((A, "a"))
        with pytest.raises(weir.FencedError):
            put(writer, B, "b")
        writer.close()


# -- K-5 and G-2 -----------------------------------------------------------------------------------


def test_k5_refresh_only_moves_the_end_upward_and_delete_of_the_missing_is_fine(tmp_path):
    table = make(tmp_path / "t", 1)
    now = [table.core.store.now()]
    clocked = at_time(table, now)
    made = clocked.checkpoint("all", name="n", ttl="1h")
    assert made.expires == pytest.approx(now[0] + 3600)
    assert clocked.refresh_checkpoint(made, "10m").expires == made.expires
    later = clocked.refresh_checkpoint("n", "2h")
    assert later.expires == pytest.approx(now[0] + 7200)
    assert clocked.refresh_checkpoint(made.id, None).expires is None
    clocked.delete_checkpoint("n")
    clocked.delete_checkpoint("n")
    clocked.delete_checkpoint(uuid.uuid4())
    with pytest.raises(CheckpointNotFound):
        clocked.refresh_checkpoint("n", "1h")
    with pytest.raises(CheckpointNotFound):
        table.scan(checkpoint="n")
    with pytest.raises(InvalidInput):
        table.checkpoint(scope="some")
    assert table.core.lake.protected_versions() == {}


def test_k5_an_expired_checkpoint_holds_until_collection_removed_it(tmp_path):
    table = make(tmp_path / "t", 1)
    with table.writer() as writer:
        put(writer, A, "a")
    now = [table.core.store.now()]
    made = at_time(table, now).checkpoint("all", ttl="1h")
    now[0] += 7200
    assert rows(table, checkpoint=made) == expect((A, "a"))
    late = at_time(table, now)
    collect_all(late)
    with pytest.raises(CheckpointNotFound):
        checkpoints.find(table.core, made.id)
    assert table.core.lake.protected_versions() == {}


@pytest.mark.parametrize("first", ["refresh", "expire"])
def test_g2_of_refresh_and_expiry_exactly_one_wins(tmp_path, first):
    table = make(tmp_path / "t", 1)
    made = table.checkpoint("all", ttl="1h")
    records = Holds(table.core.store)
    if first == "refresh":
        table.refresh_checkpoint(made, "2h")
        assert not records.end(made)  # the record changed since it was read
        assert checkpoints.find(table.core, made).id == made.id
    else:
        assert records.end(made)
        with pytest.raises(CheckpointNotFound):
            table.refresh_checkpoint(made, "2h")


def test_g2_a_refresh_of_a_chain_that_was_swept_away_notices(tmp_path):
    """The next number of the chain is free again; record 1, which was erased first, shows it."""
    table = make(tmp_path / "t", 1)
    made = table.checkpoint("all", ttl="1h")
    records = Holds(table.core.store)
    assert records.end(made)
    records.erase(made.id)
    with pytest.raises(CheckpointNotFound):
        records._append(made)
    assert records.load(made.id) is None
    assert records.checkpoints(pending=True) == []


# -- K-6, K-7, K-8 ---------------------------------------------------------------------------------


def test_k6_a_compactor_at_every_point_loses_and_doubles_nothing(tmp_path):
    table = make(tmp_path / "t", 3)
    with table.writer() as writer:
        for n, step in enumerate(["pinned", "announced", "tagged", "checked"]):
            put(writer, A, f"a{n}")
            writer.flush()
            put(writer, B, f"b{n}")

            def fold(at: str, step: str = step) -> None:
                if at == step:
                    writer.flush()
                    table.compact()

            made = checkpoints.create(watched(table.core, "checkpoint", fold), scope="durable")
            wanted = expect((A, f"a{n}"), (B, f"b{n}"))
            assert rows(table, checkpoint=made) == wanted
            assert table.scan(checkpoint=made).count() == len(wanted)


def test_k6_the_base_is_read_after_the_shards(tmp_path, monkeypatch):
    """If the base were read first, a generation folded and pruned in between would be missed."""
    table = make(tmp_path / "t", 1)
    with table.writer() as writer:
        put(writer, A, "a")
        writer.flush()
        from weir.upkeep import pinning

        original = pinning.durable_pins

        def fold_first(core):
            table.compact()
            table.gc(min_age=0)
            return original(core)

        monkeypatch.setattr(checkpoints, "durable_pins", fold_first)
        made = table.checkpoint(scope="durable")
        assert made.shards[0].sstables == ()
        assert rows(table, checkpoint=made) == expect((A, "a"))


def test_k6_a_base_that_moved_while_the_shards_were_pinned_is_not_taken(tmp_path):
    """By now it may hold rows past T, which a reader at the checkpoint cannot leave out (K-7)."""
    table = make(tmp_path / "t", 1)
    with table.writer() as writer:
        put(writer, A, "a")
        later = []

        def fold(at: str) -> None:
            if at == "pinned" and not later:
                put(writer, A, "later")
                [open_shard] = writer.shard_writers().values()
                later.append(open_shard.wal_stats().durable_position)
                writer.flush()
                table.compact()

        made = checkpoints.create(watched(again(table).core, "checkpoint", fold), scope="durable")
        assert rows(table, checkpoint=made) == expect((A, "later"))
        assert made.shards[0].wal_through >= later[0], "a row past T is seen"


def test_k7_a_checkpoint_that_is_gone_is_told_as_such_by_name_id_and_object(tmp_path):
    """By the object it was `MissingEntry`, the error of damage, once its manifests were deleted."""
    table = make(tmp_path / "t")
    with table.writer() as writer:
        put(writer, A, "a")
        made = [table.checkpoint("all", "gone")]
        earlier = table.scan(checkpoint=made[0])
        put(writer, A, "b")
        writer.flush()
        made.append(table.checkpoint("durable", "dropped"))

    def reads(gone):
        for moment in (gone, gone.id, gone.name):
            yield lambda moment=moment: table.scan(checkpoint=moment).to_table()
            yield lambda moment=moment: table.get([1], checkpoint=moment)
            yield lambda moment=moment: table.count(checkpoint=moment)
            yield lambda moment=moment: table.sql("select * from t", checkpoint=moment)

    table.delete_checkpoint(made[0])
    for read in reads(made[0]):
        with pytest.raises(CheckpointNotFound):
            read()
    table.compact(fold_wal=True)
    collect_all(table)
    with pytest.raises(CheckpointNotFound, match="deleted, or expired"):
        earlier.to_table()
    weir.drop(table.uri)
    for read in reads(made[1]):
        with pytest.raises(CheckpointNotFound):
            read()


def test_k7_a_reader_at_a_checkpoint_never_sees_past_t(tmp_path):
    table = make(tmp_path / "t", 1)
    with table.writer() as writer:
        put(writer, A, "a")
        made = table.checkpoint(scope="durable")
        scan = table.scan(checkpoint=made)
        for n in range(3):
            put(writer, A, f"later{n}")
            if n == 1:
                writer.flush()
            assert {r["v"] for r in scan.to_table().to_pylist()} == {"a"}
            assert table.get([3], checkpoint=made)["v"].to_pylist() == ["a"]
        # Reads without the log see nothing, at the first call and at every later one.
        assert rows(table, checkpoint=made, freshness="flushed") == {}
        assert rows(table, checkpoint=made, freshness="base") == {}


def test_k8_a_follower_survives_a_failed_poll(tmp_path):
    from weir.testing.fault_store import FaultStore

    table = make(tmp_path / "t", 1)
    faults = FaultStore(table.core.store)
    reader = again(table)
    reader.core.store = reader.core.wal = faults
    with table.writer() as writer:
        put(writer, [1], "a")
        seen: list[int] = []
        feed = reader.changes(follow=True, poll=0.001, stop=lambda: len(seen) >= 3)
        for change in feed:
            seen.extend(change.batch.column("id").to_pylist())
            if len(seen) < 3:
                for verb in ("get", "list", "list_folder", "head"):
                    faults.on(verb).refuse(times=1)
                put(writer, [len(seen) + 1], "b")
        assert seen == [1, 2, 3]


# -- crashes ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["all", "durable"])
def test_a_crash_after_every_write_of_a_checkpoint_leaves_nothing_immortal(tmp_path, scope):
    table = make(tmp_path / "t")
    with table.writer() as writer:
        put(writer, A, "a")
        writer.flush()
        put(writer, B, "b")
    wanted = rows(table)
    now = [table.core.store.now() + 1]

    def run(life) -> None:
        checkpoints.create(life.table(again(table)).core, scope=scope, ttl="1d")

    def check(n: int, finished: bool) -> None:
        assert rows(again(table)) == wanted, n
        made = again(table).checkpoint(scope=scope)
        assert rows(table, checkpoint=made) == wanted
        table.delete_checkpoint(made)
        now[0] += 90_000
        late = at_time(again(table), now)
        collect_all(late)
        assert Holds(table.core.store).checkpoints(pending=True) == [], n
        assert table.core.lake.protected_versions() == {}, n
        assert finished or n < 60

    assert die_at_every_write(run, check) >= 4
