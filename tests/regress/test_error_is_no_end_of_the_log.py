"""A read hit a store error while it looked for the end of a log beside the data. It treated the
log as lost and empty, and left acknowledged rows out (S-7; seed 1487 of the simulator, scenario
stream)."""

import pytest

from tests.support.moments import again, expect, make, put, rows
from weir.config import WriterConfig
from weir.errors import StoreError
from weir.log import shard_log


@pytest.mark.parametrize("moved", [False, True])
def test_s7_an_error_of_the_store_is_not_the_end_of_a_log_beside_the_data(
    tmp_path, monkeypatch, moved
):
    config = WriterConfig(enable_memtable=False)
    table = make(tmp_path / "t", 1, writer_defaults=config)
    if moved:  # to another store and back
        again(table, wal_uri=str(tmp_path / "w")).shards()[0].writer().close()
        again(table, wal_uri=table.uri).shards()[0].writer().close()
    with again(table).writer() as writer:
        put(writer, range(5), "a")
    assert rows(again(table)) == expect((range(5), "a"))
    reader = again(table)

    def fail(*_args, **_how):
        raise StoreError("try again")

    monkeypatch.setattr(shard_log, "find_tip", fail)
    with pytest.raises(StoreError):
        rows(reader)
    with pytest.raises(StoreError):
        reader.checkpoint(scope="durable")
