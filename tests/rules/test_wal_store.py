"""S-1 to S-6: a log on a store of its own, known by its id, moved behind a fence."""

import shutil
from dataclasses import replace
from uuid import uuid4

import pytest

import weir
from simulator.steps import watched
from tests.support.dying import die_at_every_write
from tests.support.moments import again, expect, make, put, rows, wipe
from weir.env import Env
from weir.errors import MissingEntry, WalStoreMismatch
from weir.format import paths
from weir.format.wal_entry import encode_fence
from weir.log.floors import Floors
from weir.log.manifests import Manifests
from weir.log.stamp import read_store_id
from weir.records.wal_store import latest_record
from weir.shard.opening import open_writer
from weir.types import Position
from weir.upkeep.gc.collect import collect, target_of

A, B, C = range(10), range(5, 20), range(15, 30)


@pytest.fixture(params=["local", "s3"])
def places(request, tmp_path):
    """Where the table and up to three WAL stores go, and how to reach them all."""
    if request.param == "local":
        return [str(tmp_path / n) for n in ("t", "w1", "w2", "w3")], {}
    server = request.getfixturevalue("s3")
    import uuid

    table = f"s3://weir-test/{uuid.uuid4().hex}"
    return [table, *(str(tmp_path / n) for n in ("w1", "w2", "w3"))], server.storage_options()


def wal_of(table, shard=None):
    """Where the log of a shard is, according to the record."""
    return latest_record(table.core.store, shard or table.shards()[0].id).uri


def entries(table, place):
    """How many entries the store at `place` holds for the first shard."""
    wal = table.core.wal_stores.at(None if place == table.uri else place)
    return sum(1 for _ in wal.list(paths.wal_dir(table.shards()[0].id)))


def test_s1_rows_go_to_the_wal_store_and_every_reader_finds_them(places):
    (uri, wal, *_), options = places
    table = make(uri, 2, wal_uri=wal, storage_options=options)
    with table.writer() as writer:
        put(writer, A, "a")
        other = again(table)
        assert rows(other) == expect((A, "a"))
        assert other.get([3])["v"].to_pylist() == ["a"]
        assert other.wal_uri == wal
        assert [c.batch.num_rows for c in other.changes()] != []
        assert entries(table, wal) >= 2
        assert entries(table, table.uri) == 0
        assert other.stats().lag > 0


def test_s1_another_stores_disk_is_recognised(tmp_path):
    tables = []
    for n in (1, 2):
        table = make(tmp_path / f"t{n}", 1, wal_uri=str(tmp_path / f"w{n}"))
        writer = table.shards()[0].writer()
        put(writer, A, f"a{n}")
        tables.append(table)
    shutil.move(tmp_path / "w1", tmp_path / "w0")
    shutil.move(tmp_path / "w2", tmp_path / "w1")
    shutil.move(tmp_path / "w0", tmp_path / "w2")
    for table in tables:
        with pytest.raises(WalStoreMismatch) as wrong:
            again(table).shards()[0].writer()
        assert wrong.value.kind == "invalid"
        with pytest.raises(WalStoreMismatch):
            rows(again(table))


def test_s1_a_wiped_store_with_rows_in_it_is_lost_data(tmp_path):
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"))
    writer = table.shards()[0].writer()
    put(writer, A, "a")
    wipe(tmp_path / "w")
    with pytest.raises(MissingEntry, match="lost") as lost:
        again(table).shards()[0].writer()
    assert lost.value.kind == "data"
    with pytest.raises(WalStoreMismatch):
        rows(again(table))
    assert table.shards()[0].manifest().writer_epoch == writer.epoch  # no attempt fenced it
    with pytest.raises(weir.UnknownOutcome):
        put(writer, B, "b")


def test_s1_the_same_store_under_another_name_is_the_same_store(tmp_path):
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"))
    with table.writer() as writer:
        put(writer, A, "a")
    shutil.move(tmp_path / "w", tmp_path / "elsewhere")
    moved = again(table, wal_uri=str(tmp_path / "elsewhere"))
    assert rows(moved) == expect((A, "a"))
    with moved.writer() as writer:
        put(writer, B, "b")
        assert rows(moved) == expect((A, "a"), (B, "b"))
    assert latest_record(table.core.store, table.shards()[0].id).seq == 2  # nothing was moved


def test_s2_a_lost_store_is_survived_when_the_gap_is_closed(places):
    (uri, wal, *_), options = places
    table = make(uri, 1, wal_uri=wal, storage_options=options)
    with table.writer() as writer:
        put(writer, A, "a")
    last = table.shards()[0].manifest().last_seen
    first_id = read_store_id(table.core.wal_stores.at(wal), table.shards()[0].id)
    wipe(wal)
    fresh = again(table)
    with fresh.shards()[0].writer() as writer:
        assert writer.wal_stats().fence_position > last  # F-2
        put(writer, B, "b")
    assert rows(again(table)) == expect((A, "a"), (B, "b"))
    assert read_store_id(table.core.wal_stores.at(wal), table.shards()[0].id) != first_id


def test_s2_what_dead_claims_left_in_a_lost_store_is_never_used_again(tmp_path):
    """The lost store holds fences that nobody can count, and a reader that sees the disk marks
    them: writers skip their positions, and every reader takes them as fences (F-2)."""
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"))
    with table.writer() as writer:
        put(writer, A, "a")
    shard = table.shards()[0]
    last = shard.manifest().last_seen
    for position in (last + 1, last + 2):
        epoch = Manifests(shard.site).claim(shard.manifest()).writer_epoch
        fence = encode_fence(epoch, entry_id=str(uuid4()))
        shard.site.wal.put_if_absent(paths.wal_path(shard.id, Position(position)), fence)
    shutil.move(tmp_path / "w", tmp_path / "there")
    seer = again(table, wal_uri=str(tmp_path / "there"))
    assert rows(seer) == expect((A, "a"))
    feed = seer.shards()[0].tailer(last + 1, fences=True)
    assert [entry.position for entry in feed] == [last + 1, last + 2]
    taker = again(table, wal_uri=str(tmp_path / "w2"))
    with taker.shards()[0].writer() as writer:
        assert writer.wal_stats().fence_position > last + 2
        put(writer, B, "b")
        Floors(shard.site).raise_to("used", last + 2)  # by a checkpoint that slept
        assert rows(seer) == rows(again(table)) == expect((A, "a"), (B, "b"))
        assert sum(entry.num_rows for entry in feed) == len(B)
        fresh = again(table).shards()[0].tailer(last + 1)
        assert sum(entry.num_rows for entry in fresh) == len(B)
        assert fresh.read(last + 1).is_fence
    with again(table).shards()[0].writer() as writer:
        put(writer, C, "c")
    assert rows(seer) == rows(again(table)) == expect((A, "a"), (B, "b"), (C, "c"))


def test_s2_a_take_over_that_dies_before_it_covers_what_it_passed_is_read_all_the_same(tmp_path):
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"))
    with table.writer() as writer:
        put(writer, A, "a")
    before = table.shards()[0].manifest()
    wipe(tmp_path / "w")

    def die(step):
        if step == "move.passed":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        again(table, env=replace(Env(), failpoint=die)).shards()[0].writer()
    assert table.shards()[0].manifest().replay_after == before.replay_after
    assert rows(again(table)) == expect((A, "a"))
    again(table).checkpoint("durable", name="then")
    copy = again(table).clone(str(tmp_path / "copy"), "then")
    assert rows(copy) == expect((A, "a"))
    with again(table).writer() as writer:
        put(writer, B, "b")
        assert rows(again(table)) == expect((A, "a"), (B, "b"))


def test_s2_rows_after_a_flush_open_the_gap_again(tmp_path):
    """R = L in the manifest, yet the log holds a row: only the mark beside the data shows it."""
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"))
    writer = table.shards()[0].writer()
    put(writer, A, "a")
    writer.flush()
    found = table.shards()[0].manifest()
    assert found.replay_after == found.last_seen
    put(writer, B, "b")
    assert table.shards()[0].manifest().version == found.version
    wipe(tmp_path / "w")
    with pytest.raises(MissingEntry):
        again(table).shards()[0].writer()


def test_s2_one_mark_a_flush_is_all_it_costs(tmp_path):
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"))
    with table.shards()[0].writer() as writer:
        for n in range(3):
            for _ in range(20):
                put(writer, [n], "x")
            writer.flush()
    folder = paths.floor_dir(table.shards()[0].id, "open")
    assert sum(1 for _ in table.core.store.list(folder)) <= 3


def test_s2_a_living_writer_elsewhere_is_not_robbed_of_an_acknowledged_row(tmp_path):
    """The writer's disk looks lost from here. It marks its first row, then checks for a claim; the
    other writer claims, then checks for the mark. One of the two gives way."""
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"))
    table.shards()[0].writer().close()
    # Only the writer's own machine sees the disk; here the recorded name leads to nothing.
    shutil.move(tmp_path / "w", tmp_path / "there")
    away = again(table, wal_uri=str(tmp_path / "there"))
    alive = away.shards()[0].writer(weir.WriterConfig(fence_ttl="1m"))
    put(alive, A, "a")
    with pytest.raises(MissingEntry):
        again(table).shards()[0].writer()
    alive.flush()
    with again(table).shards()[0].writer() as writer:
        put(writer, B, "b")
        with pytest.raises(weir.FencedError):
            put(alive, C, "c")
    assert rows(again(table)) == expect((A, "a"), (B, "b"))


TRANSITIONS = [("t", "w1"), ("w1", "t"), ("w1", "w2")]


@pytest.mark.parametrize(("before", "after"), TRANSITIONS)
@pytest.mark.parametrize("state", ["closed", "open", "alive"])
def test_s3_a_move_loses_nothing_and_fences_the_old_writer(tmp_path, before, after, state):
    """None to Some, Some to None, Some to other; the gap closed or open, or the writer alive."""
    place = {n: str(tmp_path / n) for n in ("t", "w1", "w2")}
    start = None if before == "t" else place[before]
    table = make(place["t"], 1, wal_uri=start)
    writer = table.shards()[0].writer()
    put(writer, A, "a")
    if state == "closed":
        writer.close()
    moved = again(table, wal_uri=place[after])
    with moved.shards()[0].writer() as new:
        assert rows(again(table)) == expect((A, "a"))
        put(new, B, "b")
        assert wal_of(table) == (None if after == "t" else place[after])
        if state == "alive":
            with pytest.raises(weir.FencedError):
                put(writer, C, "c")
        # A reader that opened before the move learns of it from the floors.
        assert rows(table) == expect((A, "a"), (B, "b"))
        assert rows(again(table)) == expect((A, "a"), (B, "b"))
    # Moving back makes nothing reappear and loses nothing.
    back = again(table, wal_uri=place[before])
    with back.shards()[0].writer() as old:
        put(old, C, "c")
        assert rows(again(table)) == expect((A, "a"), (B, "b"), (C, "c"))


def test_s3_positions_go_on_in_the_new_store(tmp_path):
    table = make(tmp_path / "t", 1)
    with table.shards()[0].writer() as writer:
        put(writer, A, "a")
        put(writer, A, "aa")
    last = table.shards()[0].manifest().last_seen
    with again(table, wal_uri=str(tmp_path / "w")).shards()[0].writer() as writer:
        assert writer.wal_stats().fence_position > last
    names = [m.path for m in table.core.wal_stores.at(str(tmp_path / "w")).list(paths.SHARDS)]
    used = [paths.parse_wal_name(n.rpartition("/")[2]) for n in names]
    assert min(p for p in used if p) > last


def test_s3_the_recorded_store_unreachable_is_a_refusal_unless_the_gap_is_closed(tmp_path):
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w1"))
    writer = table.shards()[0].writer()
    put(writer, A, "a")
    shutil.move(tmp_path / "w1", tmp_path / "hidden")
    with pytest.raises(WalStoreMismatch, match="moving the log needs the recorded"):
        again(table, wal_uri=str(tmp_path / "w2")).shards()[0].writer()
    shutil.move(tmp_path / "hidden", tmp_path / "w1")
    writer.close()
    shutil.rmtree(tmp_path / "w1")
    with again(table, wal_uri=str(tmp_path / "w2")).shards()[0].writer() as moved:
        put(moved, B, "b")
    assert rows(again(table)) == expect((A, "a"), (B, "b"))


@pytest.mark.parametrize("step", ["claimed", "flushed", "prepared", "stamped", "proved"])
def test_s3_a_claim_in_the_middle_of_a_move_wins_or_follows(tmp_path, step):
    """Exactly one of the mover's confirmation and the claimant's refusal gets the number."""
    table = make(tmp_path / "t", 1)
    with table.writer() as writer:
        put(writer, A, "a")
    shard = table.shards()[0].id
    mover = again(table, wal_uri=str(tmp_path / "w"))
    seen = []

    def claim(at: str) -> None:
        if at == step and not seen:
            seen.append(at)
            rival = again(table).shards()[0].writer()
            put(rival, B, "b")
            seen.append(rival)

    core = mover.core
    try:
        opened = open_writer(
            watched(core, "move", claim).wal_stores,
            shard,
            core.wanted_wal,
            schema=core.schema(),
            lake=core.lake,
            config=weir.WriterConfig(),
        )
    except weir.FencedError:
        opened = None
    rival = seen[1]
    if opened is not None:
        put(opened, C, "c")
        with pytest.raises(weir.FencedError):
            put(rival, [99], "x")
    else:
        put(rival, C, "c")
        assert latest_record(table.core.store, shard).store_id is None
    assert rows(again(table)) == expect((A, "a"), (B, "b"), (C, "c"))


def test_s3_a_change_feed_follows_the_log_to_its_new_store(tmp_path):
    table = make(tmp_path / "t", 1)
    seen: list[int] = []
    feed = again(table).changes(follow=True, poll=0.001, stop=lambda: len(seen) >= 3)
    writers = [None, str(tmp_path / "w1"), str(tmp_path / "w2")]
    with table.writer() as writer:
        put(writer, [0], "a")
    for change in feed:
        seen.extend(change.batch.column("id").to_pylist())
        if len(seen) < 3:
            with again(table, wal_uri=writers[len(seen)]).writer() as writer:
                put(writer, [len(seen)], "b")
                writer.flush()
    assert seen == [0, 1, 2]


@pytest.mark.parametrize("target", ["none", "own", "parents"])
def test_s4_a_clone_does_not_inherit_the_wal_store(tmp_path, target):
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"))
    with table.writer() as writer:
        put(writer, A, "a")
        made = table.checkpoint("all")
    copy = table.clone(str(tmp_path / "copy"), made)
    assert copy.wal_uri is None
    assert wal_of(copy) is None
    wal = {"none": None, "own": str(tmp_path / "w2"), "parents": str(tmp_path / "w")}[target]
    opened = again(copy, wal_uri=wal)
    if target == "parents":
        with pytest.raises(WalStoreMismatch, match="another table"):
            opened.shards()[0].writer()
        return
    with opened.writer() as writer:
        put(writer, B, "b")
    assert wal_of(copy) == wal
    assert rows(again(copy)) == expect((A, "a"), (B, "b"))
    assert rows(again(table)) == expect((A, "a"))


def test_s5_only_what_reads_the_log_needs_its_store(tmp_path):
    table = make(tmp_path / "t", 2, wal_uri=str(tmp_path / "w"))
    with table.writer() as writer:
        put(writer, A, "a")
        writer.flush()
        put(writer, B, "b")
    writer = table.writer()
    put(writer, C, "c")
    shutil.move(tmp_path / "w", tmp_path / "hidden")
    other = again(table)
    assert rows(other, freshness="flushed") == expect((A, "a"), (B, "b"))
    assert len(other.checkpoints()) == 0
    other.compact()
    assert rows(other, freshness="base") == expect((A, "a"), (B, "b"))
    assert [s.manifest().version for s in other.shards()]
    with pytest.raises(WalStoreMismatch):
        rows(other)
    shutil.move(tmp_path / "hidden", tmp_path / "w")
    writer.close()
    shutil.rmtree(tmp_path / "w")
    # Every row is now in an SSTable, and the marks beside the data prove it: no log is needed.
    assert rows(again(table)) == expect((A, "a"), (B, "b"), (C, "c"))


def test_s6_collection_without_the_wal_store_skips_the_log_and_says_so(tmp_path):
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"))
    with table.writer() as writer:
        put(writer, A, "a")
        writer.flush()
        put(writer, B, "b")
    floors = Manifests(table.core.table_site(table.shards()[0].id)).floors
    shutil.move(tmp_path / "w", tmp_path / "hidden")
    report = collect(target_of(again(table).core), 0, 120, keep_first_entries=False)
    assert any("wal" in text.lower() for text in [*report.skipped, *report.errors])
    assert floors.load().wal <= 1  # a fence was beside the data; unlisted is not absent
    shutil.move(tmp_path / "hidden", tmp_path / "w")
    assert rows(again(table)) == expect((A, "a"), (B, "b"))


def moved_twice(tmp_path):
    """A log moved from w1 to w2 to beside the data, a checkpoint made while it was in w1, and a
    writer left behind in w1."""
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w1"))
    left_behind = table.writer()
    put(left_behind, A, "a")
    held = table.checkpoint(scope="durable")
    put(left_behind, A, "later")
    for place in ("w2", "t"):
        with again(table, wal_uri=str(tmp_path / place)).writer() as writer:
            put(writer, B, place)
    return again(table), held, left_behind


def test_g1_entries_in_stores_the_log_was_moved_away_from_are_collected(tmp_path):
    table, held, _ = moved_twice(tmp_path)
    w1, w2 = str(tmp_path / "w1"), str(tmp_path / "w2")
    assert entries(table, w1) > 3
    assert entries(table, w2) > 1
    for _ in range(2):
        report = collect(target_of(again(table).core), 0, 120, keep_first_entries=False)
        assert report.ok, report.errors
    pin = held.shards[0]
    assert entries(table, w1) == pin.wal_through - pin.replay_after
    assert entries(table, w2) == 0
    assert rows(again(table), checkpoint=held) == expect((A, "a"))
    table.delete_checkpoint(held)
    dry = collect(target_of(again(table).core), 0, 120, keep_first_entries=False, dry_run=True)
    assert entries(table, w1) == dry.kind("wal").deleted == pin.wal_through - pin.replay_after
    collect(target_of(again(table).core), 0, 120, keep_first_entries=False)
    assert entries(table, w1) == 0
    assert rows(again(table)) == expect((A, "later"), (B, "t"))


def test_g7_a_writer_left_behind_in_a_former_store_is_stopped_there_after_collection(tmp_path):
    """The fence of the move holds its next position, and both locks work in that store."""
    table, held, left_behind = moved_twice(tmp_path)
    table.delete_checkpoint(held)
    before = entries(table, str(tmp_path / "w1"))
    report = collect(target_of(again(table).core), 0, "7d")
    assert report.ok, report.errors
    assert entries(table, str(tmp_path / "w1")) < before
    with pytest.raises(weir.FencedError):
        put(left_behind, A, "never")
    assert rows(again(table)) == expect((A, "later"), (B, "t"))


def test_s6_a_former_store_that_is_gone_or_anothers_is_left_alone(tmp_path):
    table, held, _ = moved_twice(tmp_path)
    table.delete_checkpoint(held)
    wipe(tmp_path / "w2")
    shutil.move(tmp_path / "w1", tmp_path / "hidden")
    other = make(tmp_path / "other", 1, wal_uri=str(tmp_path / "w1"))
    with other.writer() as writer:
        put(writer, A, "other")
        writer.flush()
        put(writer, B, "other")
        found = entries(other, str(tmp_path / "w1"))
        report = collect(target_of(again(table).core), 0, 120, keep_first_entries=False)
        assert report.ok, report.errors
        assert entries(other, str(tmp_path / "w1")) == found


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(None, "w1"), ("w1", "w2"), ("w1", "t")])
def test_a_crash_after_every_write_of_a_hand_over_loses_nothing(tmp_path, before, after):
    n = [0]
    tables = []

    def run(life) -> None:
        n[0] += 1
        place = tmp_path / str(n[0])
        table = make(place / "t", 1, wal_uri=None if before is None else str(place / before))
        tables.append((table, place))
        writer = table.shards()[0].writer()
        put(writer, A, "a")
        moved = life.table(again(table, wal_uri=str(place / after)))
        opened = moved.shards()[0].writer()
        put(opened, B, "b")

    def check(_: int, finished: bool) -> None:
        table, place = tables[-1]
        got = rows(again(table))
        assert got in (expect((A, "a")), expect((A, "a"), (B, "b")))
        assert not finished or got == expect((A, "a"), (B, "b"))
        with again(table, wal_uri=str(place / after)).shards()[0].writer() as writer:
            put(writer, C, "c")
            assert rows(again(table)) == got | expect((C, "c"))
        assert wal_of(table) == (None if after == "t" else str(place / after))

    assert die_at_every_write(run, check) > 8
