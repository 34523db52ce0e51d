"""F-14 and F-15: generation tags, for all kinds of writers and with folds in between."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import weir
from weir.config import WriterConfig
from weir.format import paths
from weir.format.wal_entry import decode_entry
from weir.log.appender import WalAppender
from weir.log.manifests import Manifests
from weir.log.site import ShardSite
from weir.types import Generation, Position

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("x", pa.int64())])
WAL_ONLY = WriterConfig(enable_memtable=False, max_memtable_rows=3)
MEMTABLE = WriterConfig(max_memtable_rows=3)


def make(tmp_path: Path, defaults: WriterConfig = WAL_ONLY) -> weir.Table:
    return weir.create(
        str(tmp_path / "t"), SCHEMA, primary_key="id", sharding=None, writer_defaults=defaults
    )


def rows(*ids: int, x: int = 0) -> list[dict[str, Any]]:
    return [{"id": i, "x": x} for i in ids]


def native(table: weir.Table, **settings: Any) -> Any:
    shard = table.shards()[0].id
    return lance.dataset(table.uri).mem_wal_writer(str(shard), **settings)


def native_rows(*ids: int, x: int = 0) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "x": pa.array([x] * len(ids), pa.int64())})


def tags(table: weir.Table) -> Iterator[tuple[int, int | None]]:
    """Position and tag of each entry with rows above R."""
    shard = table.shards()[0]
    store, after = shard.site.wal, shard.manifest().replay_after
    found = []
    for meta in store.list(paths.wal_dir(shard.id)):
        position = paths.parse_wal_name(meta.path.rpartition("/")[2])
        assert position is not None
        entry = decode_entry(store.get(meta.path).data, position=position, path=meta.path)
        if entry.batches and position > after:
            found.append((int(position), entry.generation))
    return iter(sorted(found))


def seen(table: weir.Table) -> list[int]:
    return sorted(weir.open(table.uri).scan().to_table().column("id").to_pylist())


def fold_between_two_tags(table: weir.Table) -> Any:
    """A fold takes all of generation 1; the live WAL-only writer goes on with generation 2."""
    writer = table.shards()[0].writer()
    writer.put(rows(1, 2))
    table.compact()
    writer.put(rows(3, 4))
    return writer


def test_f14_a_put_after_two_folds_and_a_change_of_mode_is_read(tmp_path: Path) -> None:
    table = make(tmp_path)
    fold_between_two_tags(table)
    second = table.shards()[0].writer(MEMTABLE)
    weir.open(table.uri).compact()
    second.put(rows(5))
    assert seen(table) == [1, 2, 3, 4, 5]
    third = table.shards()[0].writer(MEMTABLE)
    assert sorted(third.scan().read_all().column("id").to_pylist()) == [1, 2, 3, 4, 5]
    third.close()
    assert seen(table) == [1, 2, 3, 4, 5]


def test_f14_a_memtable_writer_that_dies_after_a_fold_leaves_no_damage(tmp_path: Path) -> None:
    table = make(tmp_path)
    fold_between_two_tags(table)
    table.shards()[0].writer(MEMTABLE).put(rows(5))  # dies: neither flushed nor closed
    found = [tag for _, tag in tags(table)]
    assert found == sorted(found)
    assert seen(table) == [1, 2, 3, 4, 5]
    with table.shards()[0].writer(MEMTABLE) as third:
        third.put(rows(6))
    assert seen(table) == [1, 2, 3, 4, 5, 6]


@pytest.mark.interop
def test_f14_pylance_takes_over_after_a_fold_between_two_tags(tmp_path: Path) -> None:
    table = make(tmp_path)
    fold_between_two_tags(table)
    native(table).put(native_rows(5))  # dies
    found = [tag for _, tag in tags(table)]
    assert found == sorted(found)
    weir.open(table.uri).compact()
    again = native(table)
    again.put(native_rows(6))
    assert seen(table) == [1, 2, 3, 4, 5, 6]
    with table.shards()[0].writer(MEMTABLE) as last:
        last.put(rows(7))
    assert seen(table) == [1, 2, 3, 4, 5, 6, 7]


# -- logs that break the rule --------------------------------------------------------------------


def leave(table: weir.Table, position: int, tag: int | None, number: int, epoch: int = 1) -> None:
    """Write an entry as another program, or an older release, may have left it."""
    schema = table.core.schema().wal
    batch = pa.record_batch([[number], [0], [False]], schema=schema)
    metadata = {**(schema.metadata or {}), b"writer_epoch": b"%d" % epoch}
    if tag is not None:
        metadata[b"generation"] = b"%d" % tag
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema.with_metadata(metadata)) as stream:
        stream.write_batch(batch)
    shard = table.shards()[0]
    path = paths.wal_path(shard.id, Position(position))
    shard.site.wal.put_if_absent(path, sink.getvalue().to_pybytes())


def left_behind(table: weir.Table, tagged: list[int | None]) -> list[int]:
    """Write one-row entries with the given tags, by a first owner without a fence; their ids."""
    manifests = Manifests(table.shards()[0].site)
    manifests.claim(manifests.require())
    for position, tag in enumerate(tagged, start=1):
        leave(table, position, tag, position)
    return list(range(1, len(tagged) + 1))


@pytest.mark.parametrize("tagged", [[2, 1], [3, 3, 4, 3], [None, 1, None], [None, None, 2], [7, 8]])
@pytest.mark.parametrize("config", [MEMTABLE, WAL_ONLY], ids=["memtable", "wal-only"])
def test_f14_a_log_that_breaks_the_rule_is_read_and_mended(
    tmp_path: Path, tagged: list[int | None], config: WriterConfig
) -> None:
    table = make(tmp_path)
    expected = left_behind(table, tagged)
    assert seen(table) == expected
    table.shards()[0].writer(config).put(rows(100))  # dies
    found = list(tags(table))
    assert [tag for _, tag in found] == sorted(tag for _, tag in found if tag is not None)
    assert found[0][1] == table.shards()[0].manifest().current_generation
    assert seen(table) == [*expected, 100]
    again = native(table)
    assert sorted(again.lsm_scanner().to_table()["id"].to_pylist()) == [*expected, 100]
    again.put(native_rows(101))
    assert seen(table) == [*expected, 100, 101]
    with table.shards()[0].writer(MEMTABLE) as last:
        assert sorted(last.scan().read_all()["id"].to_pylist()) == [*expected, 100, 101]
    table.compact()
    assert seen(table) == [*expected, 100, 101]


def test_f14_an_entry_above_r_is_not_hidden_by_a_lower_tag(tmp_path: Path) -> None:
    """A native writer with a small MemTable renumbered untagged entries; the tagged ones after
    them are then below the current generation, and above R."""
    table = make(tmp_path)
    left_behind(table, [None] * 4 + [1, 1])
    with pytest.raises(OSError, match=r"past what the memtable|below the generation"):
        native(table, max_memtable_rows=2)
    manifest = table.shards()[0].manifest()
    assert (manifest.current_generation, manifest.replay_after) > (1, 0)
    assert seen(table) == [1, 2, 3, 4, 5, 6]
    with table.shards()[0].writer(MEMTABLE) as writer:
        assert sorted(writer.scan().read_all()["id"].to_pylist()) == [1, 2, 3, 4, 5, 6]
    table.compact()
    assert seen(table) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("config", [MEMTABLE, WAL_ONLY], ids=["memtable", "wal-only"])
def test_f14_untagged_entries_are_flushed_before_tagged_ones_follow(
    tmp_path: Path, config: WriterConfig
) -> None:
    """LanceDB leaves ten entries, weir takes over and dies, pylance opens with room for six."""
    table = make(tmp_path, replace(config, max_memtable_rows=100))
    expected = left_behind(table, [None] * 10)
    table.shards()[0].writer().put(rows(100))
    native(table, max_memtable_rows=6).put(native_rows(101))
    assert seen(table) == [*expected, 100, 101]


def test_f14_a_fold_leaves_the_last_entry_of_a_live_owner(tmp_path: Path) -> None:
    """Which tag comes next is known only to the owner; the fold commits before its next entry, and
    between the choice of its tag and the entry."""
    for moment in ("planned", "chosen"):
        table = make(tmp_path / moment)
        shard = table.shards()[0]
        writer = shard.writer()
        writer.put(rows(1, 2))
        writer.put(rows(3))
        other = weir.open(table.uri)
        if moment == "planned":
            other.compact()
        checked = writer._appender.tags
        require = checked.require

        def folded(
            tag: Generation,
            site: ShardSite,
            position: Position,
            require: Any = require,
            other: weir.Table = other,
        ) -> None:
            require(tag, site, position)
            other.compact()

        checked.require = folded  # type: ignore[method-assign]
        writer.put(rows(4))
        manifest = shard.manifest()
        first, *_ = tags(table)
        assert first == (manifest.replay_after + 1, manifest.current_generation)
        assert (manifest.replay_after, manifest.current_generation) == (2, 1)
        native(table).put(native_rows(5))
        found = [tag for _, tag in tags(table)]
        assert found == sorted(found)
        assert seen(table) == [1, 2, 3, 4, 5]


def test_f14_a_fold_takes_all_entries_of_an_owner_that_has_left(tmp_path: Path) -> None:
    table = make(tmp_path)
    with table.shards()[0].writer() as writer:
        for key in range(1, 6):
            writer.put(rows(key))
    table.compact()
    assert (list(tags(table)), seen(table)) == ([], [1, 2, 3, 4, 5])


def test_l6_the_log_of_a_native_owner_is_folded_when_another_took_the_shard(
    tmp_path: Path,
) -> None:
    """It does not say that it keeps no rows in memory."""
    table = make(tmp_path)
    owner = native(table)
    owner.put(native_rows(1))
    owner.put(native_rows(2))
    table.compact()
    assert list(tags(table)) == [(1, 1), (2, 1)]
    owner.put(native_rows(3))
    assert seen(table) == [1, 2, 3]
    with table.shards()[0].writer():
        pass
    table.compact()
    assert (list(tags(table)), seen(table)) == ([], [1, 2, 3])


def test_f14_an_entry_below_the_logs_highest_tag_is_refused(tmp_path: Path) -> None:
    table = make(tmp_path)
    left_behind(table, [1, 2])
    with pytest.raises(weir.CommitConflict, match="flushes them, then append"):
        WalAppender.open(table.shards()[0])
    table.shards()[0].writer(MEMTABLE).put(rows(9))
    appender = WalAppender.open(table.shards()[0])
    batch = native_rows(3).to_batches()[0]
    for tag in (1, 4):
        with pytest.raises(weir.InvalidInput, match="must stay or rise by one"):
            appender.append([batch], generation=Generation(tag))
    appender.append([batch])
    assert [tag for _, tag in tags(table)] == [2, 2, 2]


@pytest.mark.interop
def test_f15_an_appender_keeps_the_tables_bounds_of_a_generation(tmp_path: Path) -> None:
    table = make(tmp_path, WriterConfig(max_memtable_rows=10))
    appender = WalAppender.open(table.shards()[0])
    for first in range(0, 48, 8):
        appender.append(native_rows(*range(first, first + 8)).to_batches())
    assert [tag for _, tag in tags(table)] == [1, 2, 3, 4, 5, 6]
    owner = native(table)  # refuses a generation that its MemTable cannot hold
    owner.close()
    assert seen(table) == list(range(48))


def test_f15_a_wal_only_writer_goes_on_filling_the_generation_it_finds(tmp_path: Path) -> None:
    table = make(tmp_path, WriterConfig(enable_memtable=False, max_memtable_rows=4))
    for n in range(6):
        table.shards()[0].writer().put(rows(n))
    assert [tag for _, tag in tags(table)] == [1, 1, 1, 1, 2, 2]
