"""A close that was interrupted is not done: the next close continues it (F-16, M-8).

Found by the simulator (interrupts, seeds 89, 374 and 536): the second close returned at once, as if
every row were durable, while a takeover kept the last rows out of the log and no caller was told.
The writer's threads were left running.
"""

import threading
from pathlib import Path

import pytest

from tests.support.hooks import HookStore
from tests.support.moments import again, expect, make, put, rows
from tests.support.one_shard import open_writer, rows_on_store, site_on
from weir.config import WriterConfig
from weir.errors import FencedError
from weir.shard.writer import ShardWriter
from weir.store.memory import MemoryStore

BUFFERED = {"durable_write": False, "max_wal_flush_interval": "1h"}
MODES = pytest.mark.parametrize("memtable", [True, False], ids=["memtable", "wal_only"])


def row(key: int) -> list[dict[str, int]]:
    return [{"k": key, "v": key}]


def interrupt() -> None:
    raise KeyboardInterrupt


def interrupted_in_close(store: MemoryStore, *, memtable: bool, path: str = "/wal/") -> ShardWriter:
    """A writer with buffered rows whose close was interrupted while it wrote."""
    watched = HookStore(store, "put_if_absent", path, lambda: None)
    writer = open_writer(site_on(watched), WriterConfig(**BUFFERED, enable_memtable=memtable))
    writer.put(row(1))
    watched.arm(interrupt)
    with pytest.raises(KeyboardInterrupt):
        writer.close()
    return writer


@MODES
def test_f16_a_second_close_makes_rows_durable_and_ends_the_threads(memtable: bool) -> None:
    store = MemoryStore()
    writer = interrupted_in_close(store, memtable=memtable)
    assert not writer.is_open
    writer.close()
    assert rows_on_store(site_on(store)) == {1: 1}
    names = [t.name for t in threading.enumerate() if str(writer.site.shard) in t.name]
    assert names == []
    writer.close()  # closing again is harmless


def test_f16_a_second_close_closes_the_gap() -> None:
    store = MemoryStore()
    writer = interrupted_in_close(store, memtable=True)
    writer.close()
    manifest = writer._appender.manifests.require()
    assert manifest.replay_after == manifest.last_seen == 2
    assert len(manifest.sstables) == 1


@MODES
def test_f16_a_second_close_tells_of_rows_that_a_takeover_kept_out(
    memtable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    writer = open_writer(site_on(store), WriterConfig(**BUFFERED, enable_memtable=memtable))
    writer.put(row(1))
    monkeypatch.setattr(writer._group, "drain", interrupt)
    with pytest.raises(KeyboardInterrupt):
        writer.close()
    monkeypatch.undo()
    open_writer(site_on(store)).close()
    with pytest.raises(FencedError) as told:
        writer.close()
    assert [batch.column("k").to_pylist() for batch in told.value.not_written] == [[1]]


def test_f16_a_table_writer_closes_what_an_interrupt_left_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make(tmp_path / "t", 3)
    writer = table.writer(WriterConfig(**BUFFERED))
    put(writer, range(10), "a")
    shards = list(writer.shard_writers().values())
    with monkeypatch.context() as patch:
        patch.setattr(shards[0], "close", interrupt)
        with pytest.raises(KeyboardInterrupt):
            writer.close()
    writer.close()
    assert not any(shard.is_open for shard in shards)
    assert rows(again(table)) == expect((range(10), "a"))
