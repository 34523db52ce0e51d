"""W-1 to W-5: R says exactly which entries recovery need not read."""

import threading

import pytest

import weir
from tests.support.moments import again, expect, make, put, rows, wipe
from weir.format import paths
from weir.log.manifests import Manifests
from weir.log.rules import Evidence, RuleBroken
from weir.testing.fault_store import FaultStore

A, B = range(10), range(5, 20)


def manifest_of(table):
    return Manifests(table.core.table_site(table.shards()[0].id)).require()


def is_closed(table):
    found = manifest_of(table)
    return found.replay_after == found.last_seen


def objects(table, folder):
    return sorted(meta.path for meta in table.core.store.list(folder))


def test_w1_r_cannot_move_without_proof_of_what_is_covered(tmp_path):
    from dataclasses import replace

    table = make(tmp_path / "t", 1)
    with table.writer() as writer:
        put(writer, A, "a")
        (shard_writer,) = writer.shard_writers().values()
        manifests = Manifests(shard_writer.site)
        with pytest.raises(RuleBroken, match="W-1"):
            manifests.update(
                lambda m: (replace(m, replay_after=2, last_seen=2), Evidence()),
                epoch=shard_writer.epoch,
            )
    assert rows(table) == expect((A, "a"))


def test_w2_open_then_flush_closes_the_gap(tmp_path):
    table = make(tmp_path / "t", 1)
    with table.shards()[0].writer() as writer:
        writer.flush()
        found = manifest_of(table)
        assert found.replay_after == found.last_seen == writer.wal_stats().fence_position == 1


def test_w2_open_and_close_five_times_leaves_no_gap(tmp_path):
    table = make(tmp_path / "t", 1)
    for n in range(1, 6):
        table.shards()[0].writer().close()
        found = manifest_of(table)
        assert (found.replay_after, found.last_seen) == (n, n)


@pytest.mark.parametrize("how", ["flush", "close", "checkpoint", "detached"])
def test_w2_whatever_ends_a_piece_of_work_leaves_r_equal_to_l(tmp_path, how):
    table = make(tmp_path / "t", 1)
    writer = table.shards()[0].writer()
    put(writer, A, "a")
    writer.flush()
    put(writer, B, "b")
    if how == "flush":
        writer.flush()
    elif how == "checkpoint":
        assert table.checkpoint("all").shards[0].closed
    elif how == "detached":
        del writer  # a process that is long gone
        assert again(table).checkpoint("all").shards[0].closed
    if how in ("close", "flush", "checkpoint"):
        writer.close()
    assert is_closed(table)
    assert rows(again(table)) == expect((A, "a"), (B, "b"))


def test_w2_the_observed_story_an_empty_flush_after_reopen_then_a_lost_disk_then_a_clone(tmp_path):
    """Put, flush, reopen, checkpoint, wipe the WAL store, clone: everything is there."""
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "wal"))
    with table.writer() as writer:
        put(writer, A, "a")
        writer.flush()
    reopened = again(table)
    with reopened.shards()[0].writer():
        made = reopened.checkpoint("all")
        assert made.shards[0].closed
    wipe(tmp_path / "wal")
    copy = again(table).clone(str(tmp_path / "copy"), made)
    assert rows(copy) == expect((A, "a"))


def test_w3_closing_writes_a_manifest_and_nothing_else(tmp_path):
    table = make(tmp_path / "t", 1)
    shard = table.shards()[0]
    with shard.writer() as writer:
        log = objects(table, paths.wal_dir(shard.id))
        generations = len(manifest_of(table).sstables)
        before = manifest_of(table).version
        writer.flush()
        assert manifest_of(table).version == before + 1
        writer.flush()
        assert manifest_of(table).version == before + 1  # the gap is closed already: no manifest
        assert objects(table, paths.wal_dir(shard.id)) == log
        assert len(manifest_of(table).sstables) == generations == 0


def test_w3_a_wal_only_writer_never_moves_r(tmp_path):
    table = make(tmp_path / "t", 1)
    with table.shards()[0].writer(weir.WriterConfig(enable_memtable=False)) as writer:
        put(writer, A, "a")
        writer.flush_wal()
    assert manifest_of(table).replay_after == 0
    assert rows(table) == expect((A, "a"))


def test_w4_no_manifest_names_rows_that_are_not_in_the_log(tmp_path):
    table = make(tmp_path / "t", 1)
    faults = FaultStore(table.core.store)
    table.core.store = table.core.wal = faults
    shard = table.shards()[0]
    config = weir.WriterConfig(durable_write=False, max_wal_flush_interval="1h")
    with shard.writer(config) as writer:
        put(writer, A, "a")
        before = manifest_of(table).version
        gate = faults.on("put_if_absent", "*/wal/*").pause()
        flusher = threading.Thread(target=writer.flush)
        flusher.start()
        gate.wait_reached()
        assert manifest_of(table).version == before
        assert objects(table, paths.wal_dir(shard.id)) == [paths.wal_path(shard.id, 1)]
        gate.release()
        flusher.join()
        assert is_closed(table)
        assert manifest_of(table).replay_after == 2


def test_w5_a_generation_is_not_published_before_the_one_below(tmp_path):
    from dataclasses import replace

    from weir.format.manifest import SsTable

    table = make(tmp_path / "t", 1)
    with table.shards()[0].writer() as writer:
        put(writer, A, "a")
        manifests = Manifests(writer.site)
        skipped = SsTable(generation=2, path="00000000_gen_2")
        with pytest.raises(RuleBroken, match="W-5"):
            manifests.update(
                lambda m: (
                    replace(
                        m, sstables=(skipped,), current_generation=3, replay_after=2, last_seen=2
                    ),
                    Evidence(covered=2),
                ),
                epoch=writer.epoch,
            )
    assert rows(table) == expect((A, "a"))
