"""C-11: a compaction that read some shards before a reshard and others after it.

It read the old shard before that was closed, and the heir after it was written. The heir's rows
were folded first, and the next compaction folded the old shard's rows over them. Found by seed
10624160.
"""

import threading

import pyarrow as pa

import weir
from simulator.steps import watched
from weir.upkeep import reshard as resharding
from weir.upkeep.compact.run import compact

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
SHARDS = 2 + 3


class Paced:
    """A store that pauses the search for newer manifests after the two old shards."""

    def __init__(self, store):
        self._inner = store
        self._calls = 0
        self.looked, self.go_on = threading.Event(), threading.Event()

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def get_many(self, paths, **options):
        if len(paths) == SHARDS and not self.looked.is_set():
            self._calls += 1  # the hints, the manifests they name, those after them
            if self._calls == 3:
                found = self._inner.get_many(paths[:2], **options)
                self.looked.set()
                assert self.go_on.wait(20)
                return [*found, *self._inner.get_many(paths[2:], **options)]
        return self._inner.get_many(paths, **options)


def rows(value):
    return [{"id": n, "v": value} for n in range(8)]


def test_c11_a_compaction_beside_a_reshard_folds_no_heir_before_its_predecessor(tmp_path):
    table = weir.create(
        str(tmp_path / "t"), SCHEMA, primary_key="id", sharding=weir.Bucket("id", 2)
    )
    before = table.writer()
    before.put(rows("older"))
    before.flush()
    before.put(rows("old"))
    core = weir.open(table.uri).core
    core.store = paced = Paced(core.store)
    compaction = threading.Thread(target=lambda: compact(core))

    def meanwhile(step):
        if step == "made":
            compaction.start()
            assert paced.looked.wait(20)
        elif step == "routed":
            with weir.open(table.uri).writer() as writer:
                writer.put(rows("new"))
            paced.go_on.set()
            compaction.join(20)

    sharding = weir.Bucket("id", 3)
    resharding.reshard(
        watched(weir.open(table.uri).core, "reshard", meanwhile), sharding, compact=False
    )
    fresh = weir.open(table.uri)
    fresh.compact()
    for freshness in ("durable", "base"):
        assert set(fresh.scan(freshness=freshness).to_table()["v"].to_pylist()) == {"new"}
