"""S-1 to S-5, S-8: a log in a folder of another store, which the manifest names, and its moves."""

import contextlib
import shutil
from dataclasses import replace
from uuid import uuid4

import pytest

import weir
from simulator.steps import Died, dies_at, watched
from tests.support.dying import die_at_every_write
from tests.support.local_shard import QuickClock
from tests.support.moments import again, expect, log_place, make, put, rows, wipe
from weir.env import Env
from weir.errors import MissingEntry, WalStoreMismatch
from weir.format import paths
from weir.format.wal_entry import encode_fence
from weir.log.floors import Floors
from weir.log.manifests import Manifests
from weir.log.rules import Evidence
from weir.log.wal_store import make_folder
from weir.shard.opening import open_writer
from weir.store.local import LocalStore
from weir.types import Position
from weir.upkeep.gc.collect import collect

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
    """The store that the log of a shard is in, according to its manifest."""
    return log_place(table, shard).uri


def entries(table, place):
    """How many entries the store at `place` holds for the first shard."""
    wal = table.core.wal_stores.at(None if place == table.uri else place)
    folder = paths.wal_dir(table.shards()[0].id)
    folders = [""] if place == table.uri else [f"{name}/" for name in wal.list_folder("")[0]]
    return sum(1 for name in folders for _ in wal.list(name + folder))


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


def test_s1_another_disk_in_the_place_of_the_logs_is_recognised(tmp_path):
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
        with pytest.raises(MissingEntry, match="is not there"):
            again(table).shards()[0].writer()
        with pytest.raises(WalStoreMismatch, match="is not there"):
            rows(again(table))


def test_s1_a_wiped_store_with_rows_in_it_is_lost_data(tmp_path):
    env = replace(Env(), clock=QuickClock())
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"), env=env)
    writer = table.shards()[0].writer()
    put(writer, A, "a")
    wipe(tmp_path / "w")
    with pytest.raises(MissingEntry, match="--accept-loss") as lost:
        again(table).shards()[0].writer()
    assert lost.value.kind == "data"
    with pytest.raises(WalStoreMismatch):
        rows(again(table))
    assert table.shards()[0].manifest().writer_epoch == writer.epoch  # no attempt fenced it
    with pytest.raises(weir.WriterClosed, match="is gone"):
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
    assert log_place(table).seq == 1, "nothing was moved"


def test_s2_a_lost_store_is_survived_when_the_gap_is_closed(places):
    (uri, wal, *_), options = places
    table = make(uri, 1, wal_uri=wal, storage_options=options)
    with table.writer() as writer:
        put(writer, A, "a")
    last = table.shards()[0].manifest().last_seen
    first = log_place(table)
    wipe(wal)
    fresh = again(table)
    with fresh.shards()[0].writer() as writer:
        assert writer.wal_stats().fence_position > last  # F-2
        put(writer, B, "b")
    assert rows(again(table)) == expect((A, "a"), (B, "b"))
    assert log_place(table).uri == first.uri
    assert log_place(table).folder != first.folder


@pytest.mark.parametrize("is_closed", [True, False])
def test_s7_a_deleted_bucket_is_a_lost_log_like_any_other(s3, tmp_path, is_closed):
    """It was bad input: nothing read, went on without, gave up or dropped the table."""
    options, bucket = s3.storage_options(), f"weir-logs-{uuid4().hex}"
    s3.make_bucket(bucket)
    table = make(tmp_path / "t", 1, wal_uri=f"s3://{bucket}", storage_options=options)
    writer = table.writer()
    put(writer, A, "a")
    if is_closed:
        writer.close()
    wal = table.core.wal_stores.at(f"s3://{bucket}")
    wal.delete([meta.path for meta in wal.list("")])
    assert s3._request("DELETE", bucket) == 204
    if is_closed:
        assert rows(again(table)) == expect((A, "a"))
    else:
        with pytest.raises(WalStoreMismatch, match="not there"):
            rows(again(table))
        with pytest.raises(WalStoreMismatch, match="accept-loss"):
            again(table).move_wal(None)
    again(table).move_wal(None, accept_loss=not is_closed)
    with again(table).writer() as after:
        put(after, B, "b")
    assert rows(again(table)) == (expect((A, "a"), (B, "b")) if is_closed else expect((B, "b")))
    assert any("was deleted" in note or "is gone" in note for note in again(table).gc().skipped)
    weir.drop(table.uri, storage_options=options)


def test_s2_a_lost_folder_in_a_shared_store_is_replaced_if_the_store_knows_the_table(tmp_path):
    """Another machine, whose disk was away, had begun a folder in the empty mount point, and the
    record named that. Found by seed 27000045."""
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"))
    with table.writer() as writer:
        put(writer, A, "a")
    make(tmp_path / "other", 1, wal_uri=str(tmp_path / "w"))
    lost = tmp_path / "w" / log_place(table).folder
    shutil.rmtree(lost)
    with pytest.raises(weir.StoreDenied, match="not empty"):
        again(table).shards()[0].writer()
    known = paths.log_folder(table.core.record.table_id, uuid4())
    make_folder(LocalStore(str(tmp_path / "w")), known, table.uri)
    with again(table).shards()[0].writer() as writer:
        put(writer, B, "b")
    assert rows(again(table)) == expect((A, "a"), (B, "b"))


def test_s2_what_dead_claims_left_in_a_lost_store_is_never_used_again(tmp_path):
    """The lost store holds fences that nobody can count, and a reader that sees the disk marks
    them: an operator gives the log up, and it goes on above all positions (F-2)."""
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
    with pytest.raises(WalStoreMismatch, match="--accept-loss"):
        again(table, wal_uri=str(tmp_path / "w2")).shards()[0].writer()
    again(table).move_wal(str(tmp_path / "w2"), accept_loss=True)
    with again(table).shards()[0].writer() as writer:
        assert writer.wal_stats().fence_position > last + 2
        put(writer, B, "b")
        Floors(shard.site).raise_to("used", last + 2)  # by a checkpoint that slept
        assert rows(seer) == rows(again(table)) == expect((A, "a"), (B, "b"))
        with pytest.raises(weir.SnapshotExpired):
            list(feed)
    with again(table).shards()[0].writer() as writer:
        put(writer, C, "c")
    assert rows(seer) == rows(again(table)) == expect((A, "a"), (B, "b"), (C, "c"))


def test_s2_a_replacement_that_dies_after_its_commit_is_read_all_the_same(tmp_path):
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"))
    with table.writer() as writer:
        put(writer, A, "a")
    before = table.shards()[0].manifest()
    wipe(tmp_path / "w")

    with pytest.raises(Died):
        again(table, env=Env(failpoint=dies_at("move.replaced"))).shards()[0].writer()
    assert table.shards()[0].manifest().writer_epoch == before.writer_epoch + 1
    assert rows(again(table)) == expect((A, "a"))
    again(table).checkpoint("durable", name="then")
    copy = again(table).clone(str(tmp_path / "copy"), "then")
    assert rows(copy) == expect((A, "a"))
    with again(table).writer() as writer:
        put(writer, B, "b")
        assert rows(again(table)) == expect((A, "a"), (B, "b"))


def test_s2_rows_after_a_flush_open_the_gap_again(tmp_path):
    """R = L in the manifest, yet the log holds a row: its owner has not said that it left."""
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


def test_s2_a_living_writer_elsewhere_is_not_robbed_of_an_acknowledged_row(tmp_path):
    """The writer's disk looks lost from here: until it has closed, nobody takes its shard."""
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
    with pytest.raises(MissingEntry):
        again(table).shards()[0].writer()
    put(alive, C, "c")
    alive.close()
    with again(table).shards()[0].writer() as writer:
        put(writer, B, "b")
    assert rows(again(table)) == expect((A, "a"), (C, "c"), (B, "b"))


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
    names = [m.path for m in table.core.wal_stores.at(str(tmp_path / "w")).list("")]
    used = [paths.parse_wal_name(n.rpartition("/")[2]) for n in names]
    assert min(p for p in used if p) > last


def test_s3_the_recorded_store_unreachable_is_a_refusal_unless_the_gap_is_closed(tmp_path):
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w1"))
    writer = table.shards()[0].writer()
    put(writer, A, "a")
    shutil.move(tmp_path / "w1", tmp_path / "hidden")
    with pytest.raises(WalStoreMismatch, match="--accept-loss"):
        again(table, wal_uri=str(tmp_path / "w2")).shards()[0].writer()
    shutil.move(tmp_path / "hidden", tmp_path / "w1")
    writer.close()
    shutil.rmtree(tmp_path / "w1")
    with again(table, wal_uri=str(tmp_path / "w2")).shards()[0].writer() as moved:
        put(moved, B, "b")
    assert rows(again(table)) == expect((A, "a"), (B, "b"))


@pytest.mark.parametrize("step", ["claimed", "flushed", "placed", "committed"])
def test_s3_a_claim_in_the_middle_of_a_move_wins_or_follows(tmp_path, step):
    """Both are commits of the manifest, and one of them comes first."""
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
def test_s8_a_clone_does_not_inherit_the_wal_store(tmp_path, target):
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"))
    with table.writer() as writer:
        put(writer, A, "a")
        made = table.checkpoint("all")
    copy = table.clone(str(tmp_path / "copy"), made)
    assert copy.wal_uri is None
    assert wal_of(copy) is None
    wal = {"none": None, "own": str(tmp_path / "w2"), "parents": str(tmp_path / "w")}[target]
    opened = again(copy, wal_uri=wal)
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


def test_s5_collection_without_the_wal_store_skips_the_log_and_says_so(tmp_path):
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"))
    with table.writer() as writer:
        put(writer, A, "a")
        writer.flush()
        put(writer, B, "b")
    floors = Manifests(table.core.table_site(table.shards()[0].id)).floors
    shutil.move(tmp_path / "w", tmp_path / "hidden")
    report = collect(again(table).core, 0, 120, keep_first_entries=False)
    assert any("was not collected" in text for text in report.skipped)
    assert floors.load().wal == 0, "unlisted is not absent"
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
        report = collect(again(table).core, 0, 120, keep_first_entries=False)
        assert report.ok, report.errors
    pin = held.shards[0]
    assert entries(table, w1) == pin.wal_through - pin.replay_after
    assert entries(table, w2) == 0
    assert rows(again(table), checkpoint=held) == expect((A, "a"))
    table.delete_checkpoint(held)
    dry = collect(again(table).core, 0, 120, keep_first_entries=False, dry_run=True)
    assert entries(table, w1) == dry.kind("wal").deleted == pin.wal_through - pin.replay_after
    collect(again(table).core, 0, 120, keep_first_entries=False)
    assert entries(table, w1) == 0
    assert rows(again(table)) == expect((A, "later"), (B, "t"))


def test_g7_a_writer_left_behind_in_a_former_store_is_stopped_there_after_collection(tmp_path):
    """The fence of the move holds its next position, and both locks work in that store."""
    table, held, left_behind = moved_twice(tmp_path)
    table.delete_checkpoint(held)
    before = entries(table, str(tmp_path / "w1"))
    report = collect(again(table).core, 0, "7d")
    assert report.ok, report.errors
    assert entries(table, str(tmp_path / "w1")) < before
    with pytest.raises(weir.FencedError):
        put(left_behind, A, "never")
    assert rows(again(table)) == expect((A, "later"), (B, "t"))


def test_s5_a_former_store_that_is_gone_or_anothers_is_left_alone(tmp_path):
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
        report = collect(again(table).core, 0, 120, keep_first_entries=False)
        assert report.ok, report.errors
        assert entries(other, str(tmp_path / "w1")) == found


def claim_natively(table):
    """What a program does that knows no WAL stores: its manifest has no field for the place."""
    shard = table.shards()[0]
    manifests, current = Manifests(table.core.table_site(shard.id)), shard.manifest()
    claimed = replace(
        current,
        version=current.version + 1,
        writer_epoch=current.writer_epoch + 1,
        closed_epoch=0,
        log_place=0,
    )
    manifests.commit(claimed, current, Evidence())


def test_x1_a_manifest_that_does_not_say_where_the_log_is_is_not_believed(tmp_path):
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"))
    with table.writer() as writer:
        put(writer, A, "a")
    put(again(table).shards()[0].writer(), B, "b")
    claim_natively(table)
    with pytest.raises(WalStoreMismatch, match="does not say so"):
        rows(again(table))
    with pytest.raises(WalStoreMismatch, match="does not say so"):
        again(table).shards()[0].writer()
    again(table).move_wal(str(tmp_path / "w"), accept_loss=True)
    with again(table).writer() as writer:
        put(writer, C, "c")
    assert rows(again(table)) == expect((A, "a"), (C, "c"))


def test_x1_a_log_that_is_back_beside_the_data_is_found_without_the_field(tmp_path):
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"))
    with table.writer() as writer:
        put(writer, A, "a")
    again(table).move_wal(None)
    with again(table).writer() as writer:
        put(writer, B, "b")
    claim_natively(table)
    with again(table).writer() as writer:
        put(writer, C, "c")
        assert rows(again(table)) == expect((A, "a"), (B, "b"), (C, "c"))
    again(table).move_wal(str(tmp_path / "w"))
    assert rows(again(table)) == expect((A, "a"), (B, "b"), (C, "c"))


@pytest.mark.parametrize("dies", [False, True])
def test_x1_a_log_that_goes_on_without_a_lost_one_is_found_without_the_field(tmp_path, dies):
    """The mark named the lost place, and the native program's rows were given up with it."""
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"))
    with table.writer() as writer:
        put(writer, A, "a")
    wipe(tmp_path / "w")
    died = []

    def die(step):
        if dies and step == "move.replaced":
            died.append(step)
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        again(table, env=Env(failpoint=die)).move_wal(None, accept_loss=True)
    assert bool(died) == dies
    if dies:
        again(table).move_wal(None, accept_loss=True)  # finds it there
    claim_natively(table)
    assert log_place(again(table)).uri is None
    with again(table).writer() as writer:
        put(writer, B, "b")
    assert rows(again(table)) == expect((A, "a"), (B, "b"))


def test_s3_a_place_that_no_manifest_names_never_counts(tmp_path):
    table = make(tmp_path / "t", 1)
    with table.writer() as writer:
        put(writer, A, "a")

    mover = again(table, wal_uri=str(tmp_path / "w"), env=Env(failpoint=dies_at("move.placed")))
    with pytest.raises(Died):
        mover.shards()[0].writer()
    assert log_place(table).seq == 0
    assert rows(again(table)) == expect((A, "a"))
    with again(table).writer() as writer:  # which follows the table's record
        put(writer, B, "b")
    assert log_place(table).seq == 2
    assert rows(again(table)) == expect((A, "a"), (B, "b"))


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
