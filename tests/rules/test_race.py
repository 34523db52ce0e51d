"""Many appenders race for one shard, on local disk and on a real S3 server: one log comes out."""

import threading
from itertools import pairwise
from uuid import UUID

import pytest

from tests.support.shards import schema
from tests.support.stores import StoreKind
from weir.config import WriterConfig
from weir.env import SYSTEM
from weir.errors import CommitConflict, FencedError
from weir.format.schema import TableSchema
from weir.log.appender import WalAppender
from weir.log.intake import Intake
from weir.log.site import ShardSite
from weir.log.tailer import WalTailer
from weir.store.open import open_store

SHARD = UUID("00112233-4455-6677-8899-aabbccddeeff")


class Place:
    """A shard as one process sees it, with its own connection."""

    def __init__(self, uri: str, options: dict[str, str]) -> None:
        store = open_store(uri, options)
        self.site = ShardSite(store, store, SHARD, SYSTEM)
        self.table_schema = schema()

    writer_defaults = WriterConfig()

    def site_for_writing(self, _schema: TableSchema) -> ShardSite:
        return self.site

    def schema_for_writing(self) -> TableSchema:
        return self.table_schema


# SeaweedFS serialises racers for one name by a lock polled once a second: few racers there.
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("store_kind", "racers", "entries"),
    [("local", 3, 300), ("local", 16, 100), ("s3", 2, 100), ("s3", 5, 20)],
    indirect=["store_kind"],
)
def test_f1_racing_appenders_write_one_log(
    store_kind: StoreKind, table_uri: str, racers: int, entries: int
) -> None:
    acked: dict[int, int] = {}
    finished: list[int] = []
    fenced: list[int] = []
    barrier = threading.Barrier(racers)
    over = threading.Event()

    def race(n: int) -> None:
        place = Place(table_uri, store_kind.storage_options)
        rows = Intake(place.table_schema).rows
        barrier.wait()
        written = 0
        while written < entries and not over.is_set():
            try:
                appender = WalAppender.open(place)
                while written < entries and not over.is_set():
                    value = n * 100_000 + written
                    position = appender.append(rows([{"id": value}]))
                    assert acked.setdefault(position, value) == value
                    written += 1
                    if written % 50 == 0:
                        break  # give up the shard, so every racer gets to fence the others
            except (FencedError, CommitConflict):
                fenced.append(n)
                if len(fenced) > 40 * racers:
                    return
        finished.append(n)

    threads = [threading.Thread(target=race, args=(n,), daemon=True) for n in range(racers)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        over.set()  # a test that timed out leaves no racer running
    place = Place(table_uri, store_kind.storage_options)
    log = list(WalTailer(place, fences=True))
    assert [e.position for e in log] == list(range(1, len(log) + 1))
    assert all(a.epoch <= b.epoch for a, b in pairwise(log))
    stored = {e.position: e.batches[0].column("id")[0].as_py() for e in log if not e.is_fence}
    assert acked.items() <= stored.items()
    assert len(acked) > entries
    assert len({e.epoch for e in log}) >= racers
