"""A close that was interrupted is not done: the next close continues it (F-16, M-8).

Found by the simulator (interrupts, seeds 89, 374 and 536): the second close returned at once, as if
every row were durable, while a takeover kept the last rows out of the log and no caller was told.
The writer's threads were left running.
"""

import threading
from pathlib import Path

import pytest

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


def interrupted_in_close(store: MemoryStore, *, memtable: bool) -> ShardWriter:
    """A writer with buffered rows whose close was interrupted while it waited for them."""
    writer = open_writer(site_on(store), WriterConfig(**BUFFERED, enable_memtable=memtable))
    writer.put(row(1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer._committer, "_pass", lambda _ack, _deadline: interrupt())
        with pytest.raises(KeyboardInterrupt):
            writer.close()
    return writer


@MODES
def test_f16_a_second_close_makes_rows_durable_and_ends_the_threads(memtable: bool) -> None:
    store = MemoryStore()
    others = set(threading.enumerate())
    writer = interrupted_in_close(store, memtable=memtable)
    assert not writer.is_open
    writer.close()
    assert rows_on_store(site_on(store)) == {1: 1}
    left = set(threading.enumerate()) - others
    assert [thread for thread in left if not thread.name.startswith("weir-map")] == []
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
    open_writer(site_on(store)).close()
    monkeypatch.setattr(writer._committer, "drain", interrupt)
    with pytest.raises(KeyboardInterrupt):
        writer.close()
    monkeypatch.undo()
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


def test_f16_a_close_interrupted_while_it_stops_reports_its_rows_when_it_is_called_again() -> None:
    store = MemoryStore()
    config = WriterConfig(durable_write=False, max_wal_flush_interval="1h")
    writer = open_writer(site_on(store), config)
    writer.put([{"k": 1, "v": 1}])
    open_writer(site_on(store)).close()  # takes the shard over
    stop = writer._stop

    def interrupted() -> None:
        writer._stop = stop  # type: ignore[method-assign]
        raise KeyboardInterrupt

    writer._stop = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        writer.close()
    with pytest.raises(FencedError) as ended:
        writer.close()
    assert [batch.num_rows for batch in ended.value.not_written] == [1]
