"""S-7, S-8: a missing log is never taken as empty, and a wrong store is refused untouched."""

import dataclasses
import shutil

import lance
import pyarrow as pa
import pytest

import weir
from simulator.steps import watched
from tests.support.local_shard import QuickClock
from tests.support.moments import again, expect, make, put, rows, wipe
from weir.env import Env
from weir.errors import (
    CorruptEntry,
    FencedError,
    MissingEntry,
    StoreDenied,
    StoreError,
    WalStoreMismatch,
    WeirError,
)
from weir.format import paths
from weir.format.wal_entry import encode_fence
from weir.log.appender import WalAppender
from weir.log.fence import claim_shard
from weir.log.manifests import Manifests
from weir.records.table import TableRecords
from weir.types import Epoch
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
    """Its folder was checked when it was first used; it may have been unmounted since."""
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"), writer_defaults=config)
    (tmp_path / "w").rename(tmp_path / "there")
    (tmp_path / "w").symlink_to(tmp_path / "there")  # as this machine mounts it
    alive = again(table, wal_uri=str(tmp_path / "there")).shards()[0].writer()
    put(alive, A, "a")
    reader = again(table, wal_uri=str(tmp_path / "w"))
    feed = reader.changes(follow=True, stop=lambda: False)
    first = next(feed)
    assert first.batch.num_rows == len(A)
    bookmark = first.bookmark
    assert rows(reader) == rows(reader) == expect((A, "a"))
    (tmp_path / "w").unlink()
    put(alive, B, "b")
    with pytest.raises(StoreError, match="is gone"):
        rows(reader)
    with pytest.raises(StoreError, match="is gone"):
        reader.stats()
    waiting = again(table, wal_uri=str(tmp_path / "there")).changes()
    with pytest.raises(StoreError, match="is gone"):
        list(reader.changes(bookmark))
    (tmp_path / "w").symlink_to(tmp_path / "there")
    assert rows(reader) == expect((A, "a"), (B, "b"))
    assert next(feed).batch.num_rows == len(B)
    assert [change.batch.num_rows for change in waiting] == [len(A), len(B)]


@pytest.mark.parametrize("leave", ["a hole", "nothing"])
def test_s7_nothing_is_written_into_the_hole_where_a_disk_was(tmp_path, leave):
    env = dataclasses.replace(Env(), clock=QuickClock())
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"), env=env)
    writer = table.shards()[0].writer()
    put(writer, A, "a")
    shutil.move(tmp_path / "w", tmp_path / "there")
    if leave == "a hole":
        (tmp_path / "w").mkdir()
    with pytest.raises(weir.WriterClosed, match="is gone") as closed:
        put(writer, B, "b")
    assert sum(batch.num_rows for batch in closed.value.not_written) == len(B)
    assert list((tmp_path / "w").rglob("*")) == []
    shutil.rmtree(tmp_path / "w", ignore_errors=True)
    shutil.move(tmp_path / "there", tmp_path / "w")
    with again(table).writer() as writer:  # the disk is back
        put(writer, B, "b")
    assert rows(again(table)) == expect((A, "a"), (B, "b"))


def test_s7_neither_a_put_nor_a_flush_costs_a_mark(tmp_path):
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"))
    shard = table.shards()[0].id

    def marks():
        return sum(1 for _ in table.core.store.list(paths.floors_dir(shard)))

    with table.shards()[0].writer() as writer:
        before = marks()
        for _ in range(3):
            put(writer, range(20), "x")
            writer.flush()
        assert marks() == before
    assert marks() == before


@pytest.mark.parametrize("config", [weir.WriterConfig(), WAL_ONLY], ids=["memtable", "wal-only"])
def test_s7_an_owner_has_left_when_it_closed_and_not_before(tmp_path, config):
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"))
    shard = table.shards()[0]
    assert shard.manifest().is_left, "nobody has claimed it"
    writer = shard.writer(config)
    for _ in range(2):
        assert not shard.manifest().is_left
        put(writer, A, "a")
        if config.enable_memtable:
            writer.flush()
    assert not shard.manifest().is_left, "an empty MemTable is not the end"
    writer.close()
    assert shard.manifest().is_left
    crashed = shard.writer(config)
    assert not shard.manifest().is_left
    crashed.close()
    assert shard.manifest().is_left


def test_s7_rows_of_a_crashed_owner_count_when_the_next_one_wrote_nothing(tmp_path):
    """Its close says how far the log goes: without its disk the table is not whole."""
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"))
    put(table.shards()[0].writer(WAL_ONLY), A, "a")  # and dies
    again(table).shards()[0].writer(WAL_ONLY).close()
    assert again(table).shards()[0].manifest().is_left
    wipe(tmp_path / "w")
    with pytest.raises(WeirError):
        rows(again(table))


@pytest.mark.parametrize("config", [weir.WriterConfig(), WAL_ONLY], ids=["memtable", "wal-only"])
@pytest.mark.parametrize("where", ["the same place", "another place", "beside the data"])
def test_s7_an_operator_gives_up_a_log_that_is_gone(tmp_path, config, where):
    """Its writer died: nobody has said that nothing is in it."""
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"))
    with table.writer() as writer:
        put(writer, A, "a")
    table.compact()
    put(table.shards()[0].writer(config), B, "lost")  # and dies
    wipe(tmp_path / "w")
    target = {"the same place": "w", "another place": "w2", "beside the data": "t"}[where]
    with pytest.raises((MissingEntry, WalStoreMismatch), match="--accept-loss"):
        again(table).writer().put([{"id": 1, "v": "x"}])
    report = again(table).move_wal(str(tmp_path / target), accept_loss=True)
    assert len(report.moved) == 1
    assert rows(again(table)) == expect((A, "a"))
    with again(table).writer(config) as writer:
        put(writer, C, "c")
    assert rows(again(table)) == expect((A, "a"), (C, "c"))
    assert again(table).move_wal(str(tmp_path / target), accept_loss=True).moved == ()
    again(table).compact()
    again(table).gc(min_age=0, fence_retention="2m")
    assert rows(again(table)) == expect((A, "a"), (C, "c"))
    told = [value for change in again(table).changes() for value in change.batch["v"].to_pylist()]
    assert told == ["c"] * len(C)


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


@pytest.mark.parametrize("columns", [3, 200, 3000])
def test_f7_a_log_ahead_of_its_manifest_is_refused_however_wide_the_table(tmp_path, columns):
    wide = [pa.field(f"a_column_with_a_long_name_{i}", pa.int64()) for i in range(columns)]
    table = weir.create(str(tmp_path / "t"), pa.schema([pa.field("id", pa.int64()), *wide]))
    writer = table.shards()[0].writer(WAL_ONLY)
    writer.put([{"id": 1}])
    site = table.shards()[0].site
    before = {m.path for m in site.store.list(paths.manifest_dir(site.shard))}
    second = again(table).shards()[0].writer(WAL_ONLY)
    second.put([{"id": 2}])
    after = {m.path for m in site.store.list(paths.manifest_dir(site.shard))}
    site.store.delete(sorted(after - before))  # the manifest was rolled back, the log was not
    state = _untouched(table)
    with pytest.raises(CorruptEntry, match="epoch 2"):
        _open(again(table).shards()[0], "wal-only")
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


def test_s8_the_place_of_another_table_is_no_wal_store(tmp_path):
    table, other = make(tmp_path / "t", 1), make(tmp_path / "other", 1)
    theirs = other.shards()[0].writer()
    alive = table.shards()[0].writer()
    put(theirs, B, "b")
    found = sorted((tmp_path / "other").rglob("*"))
    with pytest.raises(WalStoreMismatch, match="the place of a table"):
        again(table, wal_uri=other.uri).shards()[0].writer()
    assert sorted((tmp_path / "other").rglob("*")) == found
    put(alive, A, "a")
    put(theirs, C, "c")


@pytest.mark.parametrize("gap", ["open", "closed"])
def test_s8_a_clone_may_use_its_parents_store_and_has_a_folder_of_its_own(tmp_path, gap):
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"))
    writer = table.shards()[0].writer()
    put(writer, A, "a")
    if gap == "closed":
        writer.flush()
    copy = table.clone(str(tmp_path / "copy"), wal_uri=str(tmp_path / "w"))
    put(writer, B, "b")
    with copy.writer() as own:
        put(own, C, "c")
    assert rows(again(copy)) == expect((A, "a"), (C, "c"))
    assert rows(again(table)) == expect((A, "a"), (B, "b"))


def test_s8_a_clone_is_not_given_the_place_of_a_table(tmp_path):
    table = make(tmp_path / "t", 1)
    with pytest.raises(WalStoreMismatch, match="the place of a table"):
        table.clone(str(tmp_path / "copy"), wal_uri=str(tmp_path / "t"))
    assert not list((tmp_path / "copy").rglob("*.*"))
    assert table.checkpoints() == []


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
@pytest.mark.parametrize("step", ["placed", "committed"])
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


# -- the low-level appender, and new tables --------------------------------------------------------


def append(table, ids):
    appender = WalAppender.open(table.shards()[0])
    batch = pa.RecordBatch.from_pylist([{"id": i, "v": "x"} for i in ids], table.schema)
    appender.append([batch])


def entries_in(folder):
    return [path for path in folder.rglob("*.arrow") if path.parent.name == "wal"]


def test_s7_an_appender_that_has_left_takes_no_more_rows(tmp_path):
    """Its manifest says that no entry follows: without the disk, the row would be given up."""
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "wal"))
    appender = WalAppender.open(table.shards()[0])
    batch = pa.RecordBatch.from_pylist([{"id": 1, "v": "x"}], table.schema)
    appender.append([batch])
    appender.leave()
    with pytest.raises(weir.WriterClosed, match="has left the shard") as closed:
        appender.append([batch])
    assert [rows.num_rows for rows in closed.value.not_written] == [1]
    assert rows(again(table)) == expect(([1], "x"))


def test_s8_an_appender_begins_the_log_where_the_table_wants_it(tmp_path):
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "wal"))
    append(table, A)
    append(again(table), B)
    assert len(entries_in(tmp_path / "wal")) == 4, "two fences, two entries"
    assert entries_in(tmp_path / "t") == []
    assert rows(again(table)) == expect((A, "x"), (B, "x"))


def test_s2_an_appender_goes_on_after_a_lost_store_that_held_no_row(tmp_path):
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "wal"))
    with table.writer() as writer:
        put(writer, A, "x")
    shutil.rmtree(tmp_path / "wal")
    append(again(table), B)
    assert rows(again(table)) == expect((A, "x"), (B, "x"))


@pytest.mark.parametrize("how", ["create", "enable"])
def test_s8_a_new_table_does_not_take_the_place_of_another_for_its_log(tmp_path, how):
    first = make(tmp_path / "first", 1)
    state = sorted((tmp_path / "first").rglob("*"))
    if how == "enable":
        lance.write_dataset(first.schema.empty_table(), str(tmp_path / "second"))
    before = sorted((tmp_path / "second").rglob("*"))
    begin = {
        "create": lambda: make(tmp_path / "second", 1, wal_uri=first.uri),
        "enable": lambda: weir.enable(
            str(tmp_path / "second"), primary_key="id", wal_uri=first.uri
        ),
    }[how]
    with pytest.raises(WalStoreMismatch, match="the place of a table"):
        begin()
    assert sorted((tmp_path / "first").rglob("*")) == state
    assert sorted((tmp_path / "second").rglob("*")) == before


INSIDE = {
    "create": lambda table, place: make(f"{table.uri}-2", 1, wal_uri=place),
    "clone": lambda table, place: table.clone(f"{table.uri}-2", wal_uri=place),
    "open": lambda table, place: again(table, wal_uri=place).shards()[0].writer(),
    "move_wal": lambda table, place: table.move_wal(place),
}


@pytest.mark.parametrize("call", INSIDE)
@pytest.mark.parametrize("below", ["_mem_wal", "_weir/deep/er", "data"])
def test_s8_no_log_begins_inside_another_table(tmp_path, call, below):
    """Found by an attack: the drop of that table deleted rows that were only in the log."""
    table, other = make(tmp_path / "t", 1), make(tmp_path / "other", 1)
    (tmp_path / "link").symlink_to(other.uri)
    found = sorted((tmp_path / "other").rglob("*"))
    for place in (f"{other.uri}/{below}", str(tmp_path / "link" / below)):
        with pytest.raises(WalStoreMismatch, match=f"inside the table {other.uri},"):
            INSIDE[call](table, place)
    assert sorted((tmp_path / "other").rglob("*")) == found
    assert not (tmp_path / "t-2").exists()
    weir.drop(other.uri)
    with again(table, wal_uri=f"{other.uri}/{below}").writer() as writer:  # where none is any more
        put(writer, A, "a")
    assert rows(again(table)) == expect((A, "a"))


def test_s8_folders_above_that_may_not_be_read_are_no_reason_to_refuse(tmp_path, monkeypatch):
    table = make(tmp_path / "t", 1)
    asked = []

    def find(self):
        if self._store.uri != table.uri:
            asked.append(self._store.uri)
            raise StoreDenied("not yours")
        return seen(self)

    seen = TableRecords.find
    monkeypatch.setattr(TableRecords, "find", find)
    with again(table, wal_uri=str(tmp_path / "a" / "w")).writer() as writer:
        put(writer, A, "a")
    assert asked[:2] == [str(tmp_path / "a"), str(tmp_path)]
    assert asked[-1] == "/"
    assert rows(again(table)) == expect((A, "a"))
