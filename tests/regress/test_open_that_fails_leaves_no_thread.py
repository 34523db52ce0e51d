"""A writer that was fenced while it opened left its flushing thread behind.

Found by the simulator (`modes`, in its first form): an open that flushes what it replayed (F-14)
started a thread, and the caller of a failed open has no handle to close.
"""

import threading

import pyarrow as pa
import pytest

from tests.support.one_shard import KEYED, open_writer, site_on
from weir.errors import FencedError
from weir.format import paths
from weir.log.fence import claim_shard
from weir.shard.flush import Flusher
from weir.store.memory import MemoryStore


def leave_untagged(site, position, epoch):
    """An entry as LanceDB writes it."""
    schema = KEYED.wal.with_metadata({b"writer_epoch": b"%d" % epoch})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_batch(pa.record_batch([[1], [1], [False]], schema=KEYED.wal))
    path = paths.wal_path(site.shard, position)
    site.wal.put_if_absent(path, sink.getvalue().to_pybytes())


def flushing_threads():
    return [t for t in threading.enumerate() if t.name.startswith("weir-flush")]


def test_m8_an_open_that_fails_leaves_no_thread(monkeypatch):
    site = site_on(MemoryStore())
    claim = claim_shard(site)
    leave_untagged(site, claim.fence + 1, claim.epoch)
    before = flushing_threads()

    def fenced(_self):
        raise FencedError("a newer writer came", epoch=2, fenced_by=3)

    with monkeypatch.context() as patched:
        patched.setattr(Flusher, "close_gap", fenced)
        with pytest.raises(FencedError):
            open_writer(site)
    assert flushing_threads() == before
    with open_writer(site) as writer:
        assert writer.scan().read_all().num_rows == 1
