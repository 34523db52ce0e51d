"""S-7, S-8: a missing log is never taken as empty, and a wrong store is refused untouched."""

import shutil
from dataclasses import replace

import pyarrow as pa
import pytest

import weir
from simulator.steps import watched
from tests.support.moments import again, expect, make, put, rows, wipe
from weir.errors import CorruptEntry, FencedError, MissingEntry, WalStoreMismatch
from weir.format import paths
from weir.format.manifest import Status
from weir.format.wal_entry import encode_fence
from weir.log.appender import WalAppender
from weir.log.fence import claim_shard
from weir.log.manifests import Manifests
from weir.log.stamp import read_store_id
from weir.store.open import open_store
from weir.types import Epoch, Position
from weir.upkeep.pinning import close_gap

A, B, C = range(10), range(5, 20), range(15, 30)
WAL_ONLY = weir.WriterConfig(enable_memtable=False)


def fold(table, writer):
    put(writer, A, "a")
    again(table).compact()
    return (A, "a")


def close_fences(table, _writer):
    """A detached checkpoint of scope "all" passes the fence of the open with one manifest."""
    close_gap(again(table).core, table.shards()[0].id)
    return ((), "")


@pytest.mark.parametrize(
    ("mover", "config"),
    [(fold, WAL_ONLY), (close_fences, WAL_ONLY), (close_fences, weir.WriterConfig())],
)
def test_s7_rows_above_an_r_that_others_moved_are_never_left_out(tmp_path, mover, config):
    """The disk is away: no read, takeover or checkpoint works without the log, whatever moved R."""
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"), writer_defaults=config)
    alive = table.shards()[0].writer()
    told = mover(table, alive)
    put(alive, B, "b")
    shutil.move(tmp_path / "w", tmp_path / "there")
    (tmp_path / "w").mkdir()
    other = again(table)
    with pytest.raises(WalStoreMismatch):
        rows(other)
    for scope in ("durable", "all"):
        with pytest.raises(WalStoreMismatch):
            other.checkpoint(scope=scope)
    with pytest.raises(WalStoreMismatch):
        other.clone(str(tmp_path / "copy"))
    with pytest.raises(MissingEntry):
        other.shards()[0].writer()
    shutil.rmtree(tmp_path / "w")
    shutil.move(tmp_path / "there", tmp_path / "w")
    put(alive, C, "c")  # the failed attempts fenced no writer
    assert rows(again(table)) == expect(told, (B, "b"), (C, "c"))


def test_s7_a_wal_only_writer_that_closed_lets_its_folded_log_go(tmp_path):
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"), writer_defaults=WAL_ONLY)
    with table.shards()[0].writer() as writer:
        put(writer, A, "a")
    again(table).compact()
    wipe(tmp_path / "w")
    other = again(table)
    assert rows(other) == expect((A, "a"))
    with other.shards()[0].writer() as writer:
        put(writer, B, "b")
    assert rows(again(table)) == expect((A, "a"), (B, "b"))


@pytest.mark.parametrize("config", [weir.WriterConfig(), WAL_ONLY])
def test_s7_a_handle_that_looked_before_notices_that_the_disk_is_gone(tmp_path, config):
    """A store's id was checked when it was first used; it may have been unmounted since."""
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"), writer_defaults=config)
    (tmp_path / "w").rename(tmp_path / "there")
    (tmp_path / "w").symlink_to(tmp_path / "there")  # as this machine mounts it
    alive = again(table, wal_uri=str(tmp_path / "there")).shards()[0].writer()
    put(alive, A, "a")
    reader = again(table, wal_uri=str(tmp_path / "w"))
    feed = reader.changes(follow=True, stop=lambda: False)
    assert next(feed).batch.num_rows == len(A)
    assert rows(reader) == rows(reader) == expect((A, "a"))
    (tmp_path / "w").unlink()
    put(alive, B, "b")
    with pytest.raises(WalStoreMismatch):
        rows(reader)
    with pytest.raises(WalStoreMismatch):
        reader.stats()
    with pytest.raises(WalStoreMismatch):
        next(feed)
    (tmp_path / "w").symlink_to(tmp_path / "there")
    assert rows(reader) == expect((A, "a"), (B, "b"))


def test_s7_a_handle_that_looked_before_notices_that_the_bucket_was_emptied(tmp_path, s3):
    """It caches the log in memory: without the id check it would assume that there is no more."""
    uri, options = f"s3://weir-test/{tmp_path.name}", s3.storage_options()
    table = make(tmp_path / "t", 1, wal_uri=uri, storage_options=options)
    alive = again(table).shards()[0].writer()
    put(alive, A, "a")
    reader = again(table)
    assert rows(reader) == rows(reader) == expect((A, "a"))
    put(alive, B, "b")
    store = open_store(uri, options)
    store.delete([meta.path for meta in store.list("")])
    with pytest.raises(WalStoreMismatch):
        rows(reader)


def test_s7_nothing_is_acknowledged_into_the_hole_where_a_disk_was(tmp_path):
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"))
    writer = table.shards()[0].writer()
    put(writer, A, "a")
    shutil.move(tmp_path / "w", tmp_path / "there")
    with pytest.raises(weir.UnknownOutcome, match="does not hold that id"):
        put(writer, B, "b")
    with pytest.raises(weir.WriterClosed):
        put(writer, B, "b")
    shutil.rmtree(tmp_path / "w")
    shutil.move(tmp_path / "there", tmp_path / "w")
    assert rows(again(table)) == expect((A, "a"))


def test_s7_what_it_costs_is_two_marks_a_flush_and_none_a_put(tmp_path):
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"))
    shard = table.shards()[0].id

    def marks():
        return sum(1 for _ in table.core.store.list(paths.floors_dir(shard)))

    with table.shards()[0].writer() as writer:
        for _ in range(3):
            before = marks()
            for n in range(20):
                put(writer, [n], "x")
            assert marks() == before + 1
            writer.flush()
            assert marks() == before + 2
            writer.flush()
            assert marks() == before + 2


class _During:
    """A store that calls back while an entry is being put."""

    def __init__(self, inner, call):
        self._inner = inner
        self._call = call

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def put_if_absent(self, path, data):
        self._inner.put_if_absent(path, data)
        if path.endswith(".arrow"):
            self._call()


def test_s7_a_log_is_not_shut_while_an_entry_is_under_way(tmp_path):
    """A flush publishes everything before the entry, whose row is above the R of that flush."""
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"))
    shard = table.shards()[0]
    shard.writer().close()
    calls = []
    site = replace(shard.site, wal=_During(shard.site.wal, lambda: [call() for call in calls]))
    manifests = Manifests(site)
    claim = claim_shard(site, manifests)
    appender = WalAppender(site, shard.table_schema, claim, manifests=manifests)
    row = pa.RecordBatch.from_pylist([{"id": 1, "v": "a"}], schema=table.schema)
    first = appender.append([row])
    calls.append(lambda: appender.shut(first))
    assert appender.append([row]) == first + 1
    found = manifests.floors.load()
    assert found.open > found.shut
    calls.clear()
    appender.shut(Position(first + 1))
    found = manifests.floors.load()
    assert (found.open, found.shut, found.used) == (first, first + 1, first + 1)
    # Late, and of no consequence: what follows was opened above it.
    assert appender.append([row]) == first + 2
    assert manifests.floors.load().open == first + 2


@pytest.mark.parametrize("lose", [wipe, shutil.rmtree])
def test_s7_a_lost_store_with_nothing_missing_blocks_nobody(tmp_path, lose):
    table = make(tmp_path / "t", 2, wal_uri=str(tmp_path / "w"))
    with table.writer() as writer:
        put(writer, A, "a")
        writer.flush()
        put(writer, B, "b")
    held = again(table).checkpoint("all")
    lose(tmp_path / "w")
    other = again(table)
    assert rows(other) == expect((A, "a"), (B, "b"))
    assert other.stats().lag == 0
    for scope in ("durable", "all"):
        made = other.checkpoint(scope=scope)
        assert rows(other, checkpoint=made) == expect((A, "a"), (B, "b"))
        assert rows(other.clone(str(tmp_path / scope), made)) == expect((A, "a"), (B, "b"))
    assert rows(other.clone(str(tmp_path / "held"), held)) == expect((A, "a"), (B, "b"))
    other.compact()
    with again(table).writer() as writer:
        put(writer, C, "c")
        assert rows(again(table)) == expect((A, "a"), (B, "b"), (C, "c"))


@pytest.mark.parametrize("config", [weir.WriterConfig(), WAL_ONLY])
def test_s5_the_empty_log_of_a_sealed_shard_is_not_needed(tmp_path, config):
    """A reshard with another wal_uri: the old disk holds nothing that is needed, and is removed."""
    w1, w2 = str(tmp_path / "w1"), str(tmp_path / "w2")
    table = make(tmp_path / "t", 2, wal_uri=w1, writer_defaults=config)
    with table.writer() as writer:
        put(writer, A, "a")
    table.reshard(weir.Bucket("id", 3), compact=False)
    with again(table, wal_uri=w2).writer() as writer:
        put(writer, B, "b")
    shutil.rmtree(w1)
    other = again(table, wal_uri=w2)
    assert rows(other) == expect((A, "a"), (B, "b"))
    for scope in ("durable", "all"):
        made = other.checkpoint(scope=scope)
        assert rows(other, checkpoint=made) == expect((A, "a"), (B, "b"))
    assert other.stats().lag >= 0
    assert weir.CompactionPolicy(generations=1).due(other)
    other.compact(fold_wal=True)
    assert rows(again(table), freshness="base") == expect((A, "a"), (B, "b"))
    other.reshard(weir.Bucket("id", 4))
    with other.writer() as writer:
        put(writer, C, "c")
    assert rows(again(table)) == expect((A, "a"), (B, "b"), (C, "c"))
    made = other.checkpoint("all")
    with other.writer() as writer:
        put(writer, A, "later")
    other.restore(made)
    assert rows(again(table)) == expect((A, "a"), (B, "b"), (C, "c"))


def test_s5_nor_that_of_a_shard_that_was_sealed_before_logs_were_shut(tmp_path):
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"))
    with table.writer() as writer:
        put(writer, A, "a")
    table.reshard(weir.Bucket("id", 2), compact=False)
    sealed = next(s for s in table.shards() if s.manifest().status is Status.SEALED)
    shutil.rmtree(tmp_path / "t" / paths.floor_dir(sealed.id, "shut"))
    shutil.rmtree(tmp_path / "w")
    assert rows(again(table)) == expect((A, "a"))


def _newer_entry(table, epoch):
    """An entry of a greater epoch than the manifest's at the end of the log."""
    site = table.shards()[0].site
    position = table.shards()[0].tailer().tip() + 1
    site.wal.put_if_absent(
        paths.wal_path(site.shard, position), encode_fence(Epoch(epoch), entry_id="x")
    )


def _open(shard, how):
    if how == "appender":
        return WalAppender.open(shard)
    return shard.writer(weir.WriterConfig(enable_memtable=how == "memtable"))


@pytest.mark.parametrize("how", ["wal-only", "memtable", "appender"])
def test_f7_no_open_accepts_a_log_with_a_greater_epoch_in_it(tmp_path, how):
    """A manifest was rolled back, say: rows that such a writer acknowledges are unreadable."""
    table = make(tmp_path / "t", 1)
    writer = table.shards()[0].writer()
    put(writer, A, "a")
    _newer_entry(table, 9)
    state = _untouched(table)
    for _ in range(2):
        with pytest.raises(CorruptEntry, match="epoch 9"):
            _open(again(table).shards()[0], how)
    assert _untouched(table) == state


def test_f7_nor_one_with_a_greater_epoch_before_its_fences(tmp_path):
    table = make(tmp_path / "t", 1)
    writer = table.shards()[0].writer()
    put(writer, A, "a")
    _newer_entry(table, 9)
    _newer_entry(table, 1)  # as an opener before this check left it
    with pytest.raises(FencedError, match="epoch 9"):
        _open(again(table).shards()[0], "wal-only")


def test_f7_a_claim_that_came_while_we_looked_is_no_damage(tmp_path):
    """The opener reads the fence of the new epoch before the manifest of that claim."""
    table = make(tmp_path / "t", 1)
    put(table.shards()[0].writer(), A, "a")
    rival = []

    class Overtaken(Manifests):
        def latest_with_floors(self):
            found = super().latest_with_floors()
            if not rival:
                rival.append(again(table).shards()[0].writer())
                put(rival[0], B, "b")
            return found

    site = again(table).shards()[0].site
    assert claim_shard(site, Overtaken(site)).epoch == 3
    assert rows(again(table)) == expect((A, "a"), (B, "b"))


def _untouched(table):
    shard = table.shards()[0].id
    found = Manifests(table.core.table_site(shard)).require()
    return found.version, found.writer_epoch


@pytest.mark.parametrize("before", ["beside", "store"])
def test_s8_another_tables_store_is_refused_before_anybody_is_fenced(tmp_path, before):
    own = None if before == "beside" else str(tmp_path / "own")
    table = make(tmp_path / "t", 1, wal_uri=own)
    other = make(tmp_path / "other", 1, wal_uri=str(tmp_path / "w"))
    theirs = other.shards()[0].writer()
    put(theirs, B, "b")
    alive = table.shards()[0].writer()
    put(alive, A, "a")
    state = _untouched(table)
    wrong = again(table, wal_uri=str(tmp_path / "w"))
    with pytest.raises(WalStoreMismatch, match="another table"):
        wrong.shards()[0].writer()
    assert _untouched(table) == state
    put(alive, C, "c")
    put(theirs, C, "c")
    # It is also refused when the recorded store is gone and not needed.
    alive.close()
    if own is not None:
        shutil.rmtree(own)
    state = _untouched(table)
    with pytest.raises(WalStoreMismatch, match="another table"):
        again(table, wal_uri=str(tmp_path / "w")).shards()[0].writer()
    assert _untouched(table) == state


def test_s8_a_place_with_stray_entries_is_no_wal_store(tmp_path):
    """A fence was written to this disk while it was mounted in the place of the log."""
    table = make(tmp_path / "t", 1)
    with table.writer() as writer:
        put(writer, A, "a")
    stray = tmp_path / "w" / paths.wal_path(table.shards()[0].id, Position(9))
    stray.parent.mkdir(parents=True)
    stray.write_bytes(b"a fence")
    with pytest.raises(WalStoreMismatch, match="but no WAL store id"):
        table.move_wal(str(tmp_path / "w"))
    with again(table).writer() as writer:
        put(writer, B, "b")
    assert rows(again(table)) == expect((A, "a"), (B, "b"))


def test_s8_the_place_of_another_table_is_no_wal_store(tmp_path):
    """Its shards have the same ids, so our entries would go into its log."""
    table, other = make(tmp_path / "t", 1), make(tmp_path / "other", 1)
    theirs = other.shards()[0].writer()
    alive = table.shards()[0].writer()
    put(theirs, B, "b")
    with pytest.raises(WalStoreMismatch, match="another table"):
        again(table, wal_uri=other.uri).shards()[0].writer()
    put(alive, A, "a")
    put(theirs, C, "c")
    assert read_store_id(other.core.store, other.shards()[0].id) is None


@pytest.mark.parametrize("place", ["w", "t"])
@pytest.mark.parametrize("gap", ["open", "closed"])
def test_s8_a_clone_is_not_given_its_parents_store(tmp_path, place, gap):
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w") if place == "w" else None)
    writer = table.shards()[0].writer()
    put(writer, A, "a")
    if gap == "closed":
        writer.flush()
    with pytest.raises(WalStoreMismatch, match="another table"):
        table.clone(str(tmp_path / "copy"), wal_uri=str(tmp_path / place))
    assert not (tmp_path / "copy").exists() or not list((tmp_path / "copy").rglob("*.*"))
    assert table.checkpoints() == []
    put(writer, B, "b")
    copy = table.clone(str(tmp_path / "copy"), wal_uri=str(tmp_path / "w2"))
    with copy.writer() as own:
        put(own, C, "c")
    assert rows(again(copy)) == expect((A, "a"), (B, "b"), (C, "c"))


def test_f1_a_first_open_with_a_wal_store_claims_once(tmp_path):
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"))
    shard = table.shards()[0]
    with shard.writer() as writer:
        assert (writer.epoch, writer.wal_stats().fence_position) == (1, 1)
        put(writer, A, "a")
    assert not list(table.core.store.list(paths.wal_dir(shard.id)))
    assert [e.position for e in shard.tailer(1, fences=True)] == [1, 2]
    assert rows(again(table)) == expect((A, "a"))


@pytest.mark.parametrize("place", ["t", "w", "w2"])
@pytest.mark.parametrize("step", ["prepared", "stamped", "proved"])
def test_f1_a_first_open_beside_another_one_ends_with_one_log(tmp_path, step, place):
    from weir.shard.opening import open_writer

    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"))
    core, shard = table.core, table.shards()[0].id
    rival = []

    def claim(at):
        if at == step and not rival:
            rival.append(again(table, wal_uri=str(tmp_path / place)).shards()[0].writer())
            put(rival[0], A, "a")

    writer = open_writer(
        watched(core, "move", claim).wal_stores,
        shard,
        core.wanted_wal,
        schema=core.schema(),
        lake=core.lake,
        config=weir.WriterConfig(),
    )
    put(writer, B, "b")
    with pytest.raises(FencedError):
        put(rival[0], C, "c")
    assert rows(again(table)) == expect((A, "a"), (B, "b"))


def test_s7_a_restore_works_without_a_lost_log_that_held_nothing(tmp_path):
    table = make(tmp_path / "t", 2, wal_uri=str(tmp_path / "w"))
    with table.writer() as writer:
        put(writer, A, "a")
        made = table.checkpoint("all")
        put(writer, B, "b")
    shutil.rmtree(tmp_path / "w")
    other = again(table)
    undo = other.restore(made).undo
    assert rows(again(table)) == expect((A, "a"))
    other.restore(undo)
    assert rows(again(table)) == expect((A, "a"), (B, "b"))
