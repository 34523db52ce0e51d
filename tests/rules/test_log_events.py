"""Every event of the log says which table it is of: shards of all tables have the same ids."""

import logging

import pytest

import weir
from tests.support.moments import again, make, put


def test_every_event_of_a_shard_names_its_table(tmp_path, caplog):
    table = make(tmp_path / "t", 2, writer_defaults=weir.WriterConfig(stats_log_interval=1e-9))
    with caplog.at_level(logging.INFO, "weir"):
        old = table.writer()
        put(old, range(20), "a")
        with again(table).writer() as new:
            put(new, range(20), "b")
        with pytest.raises(weir.WeirError):
            put(old, range(20), "c")
        again(table).compact()
        again(table).gc(min_age=0, fence_retention="20m")
        again(table).reshard(weir.Bucket("id", 3))
        again(table).move_wal(str(tmp_path / "wal"))
    names = {record.getMessage().split()[0] for record in caplog.records}
    assert names >= {"wal.fenced", "shard.claimed", "flush.published", "gc.done", "wal.moved"}
    assert [r.getMessage() for r in caplog.records if table.uri not in r.getMessage()] == []
