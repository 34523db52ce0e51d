"""The stalled writer of G-7 on real stores: stopped through takeover, flush and collection."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import weir
from tests.support.stores import StoreKind
from weir.errors import FencedError
from weir.format import paths
from weir.log.appender import WalAppender
from weir.log.site import ShardSite
from weir.testing.fault_store import FaultStore
from weir.types import Position
from weir.upkeep.gc.collect import collect

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("v", pa.int64()),
    ]
)

WRITER = """
import json, sys
said = json.loads(sys.stdin.readline())
import pyarrow as pa
import weir
from msgspec import structs

def ready():
    print("ready", flush=True)
    sys.stdin.readline()

def rows(i):
    return pa.table({"id": pa.array([i], pa.int64()), "v": pa.array([i], pa.int64())})

if said["kind"] == "weir":
    table = weir.open(said["uri"], storage_options=said["options"])
    config = weir.WriterConfig(fence_ttl=said["fence_ttl"])
    # A lock is switched off on purpose: the table itself would refuse such a writer.
    known = table.core.record
    settings = {**known.settings, "fence_ttl": config.fence_ttl}
    table.core.record = structs.replace(known, settings=settings)
    w = table.shards()[0].writer(config)
    w.put(rows(1))
    ready()
    try:
        w.put(rows(99))
        print("acknowledged", flush=True)
    except weir.FencedError:
        print("fenced", flush=True)
else:
    import lance
    dataset = lance.dataset(said["uri"], storage_options=said["lance_options"] or None)
    w = dataset.mem_wal_writer(said["shard"], durable_write=True)
    w.put(rows(1))
    ready()
    try:
        w.put(rows(99))
        print("acknowledged", flush=True)
    except OSError as error:
        print("fenced" if "fenced" in str(error) else repr(error), flush=True)
import os
os._exit(0)
"""


@contextmanager
def sleeper(table: weir.Table, options: dict[str, str], **said) -> Iterator[subprocess.Popen]:
    """A process that has written row 1 and is stopped (SIGSTOP) before it writes row 99."""
    from weir.store.open import lance_options

    child = subprocess.Popen(
        [sys.executable, "-c", WRITER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    said |= {
        "uri": table.uri,
        "options": options,
        "lance_options": lance_options(table.uri, options),
        "shard": str(table.shards()[0].id),
    }
    try:
        tell(child, json.dumps(said))
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGSTOP)
        yield child
    finally:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()


def tell(child: subprocess.Popen, line: str) -> None:
    child.stdin.write(line + "\n")
    child.stdin.flush()


def take_over(table: weir.Table) -> None:
    with table.shards()[0].writer() as b:
        for i in range(4, 9):
            b.put([{"id": i, "v": i}])
        b.flush()


def ids(table: weir.Table) -> set[int]:
    return set(table.scan().to_table()["id"].to_pylist())


def told(table: weir.Table, options: dict[str, str], *, keep_first: bool, **said) -> str:
    """Run the scenario and return the answer that the sleeper got for row 99."""
    with sleeper(table, options, **said) as child:
        take_over(table)
        report = collect(table.core, 0, "7d", keep_first_entries=keep_first)
        assert report.ok, report.errors
        assert report.kind("wal").deleted > 3
        tell(child, "go")
        child.send_signal(signal.SIGCONT)
        return child.stdout.readline().strip()


@pytest.fixture
def table(store_kind: StoreKind, table_uri: str) -> weir.Table:
    return weir.create(
        table_uri, SCHEMA, primary_key="id", storage_options=store_kind.storage_options
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keep_first", "fence_ttl"), [(True, 60), (True, "300d"), (False, 0)], ids=["both", "a", "b"]
)
def test_g7_a_stopped_writer_is_told_it_is_fenced(table, store_kind, keep_first, fence_ttl) -> None:
    options = store_kind.storage_options
    said = told(table, options, keep_first=keep_first, kind="weir", fence_ttl=fence_ttl)
    assert said == "fenced"
    assert ids(table) == {1, 4, 5, 6, 7, 8}


@pytest.mark.slow
def test_g7_without_locks_a_stopped_writer_is_told_a_lie(table, store_kind) -> None:
    """Validates the tests above: without the locks the scenario loses the row."""
    options = store_kind.storage_options
    said = told(table, options, keep_first=False, kind="weir", fence_ttl="300d")
    assert said == "acknowledged"
    assert 99 not in ids(table), "and no reader will ever see the row"


@pytest.mark.slow
@pytest.mark.interop
def test_g7a_a_stopped_native_writer_is_told_it_is_fenced(table, store_kind) -> None:
    said = told(table, store_kind.storage_options, keep_first=True, kind="native")
    assert said == "fenced"
    assert ids(table) == {1, 4, 5, 6, 7, 8}


@pytest.mark.slow
@pytest.mark.interop
@pytest.mark.parametrize("store_kind", ["local"], indirect=True)
def test_g7a_without_first_entries_a_native_writer_is_told_a_lie(table, store_kind) -> None:
    said = told(table, store_kind.storage_options, keep_first=False, kind="native")
    assert said == "acknowledged"
    assert 99 not in ids(table)


@pytest.mark.parametrize("fence_ttl", [60.0, float("inf")], ids=["b stale", "a alone"])
def test_g7_a_put_that_travels_past_the_collection(table, store_kind, fence_ttl) -> None:
    shard = table.shards()[0]
    faults = FaultStore(shard.site.store)
    site = ShardSite(faults, faults, shard.id, shard.site.env, fence_ttl=fence_ttl)

    class Place:
        schema_for_writing = shard.schema_for_writing
        writer_defaults = shard.writer_defaults

        def site_for_writing(self, _schema):
            return site

    place = Place()
    a = WalAppender.open(place)
    gate = faults.on("put_if_absent", paths.wal_path(shard.id, Position(2))).pause()
    batch = pa.RecordBatch.from_pylist(
        [{"id": 99, "v": 99, "_tombstone": False}], schema=shard.table_schema.wal
    )
    outcome = []

    def put() -> None:
        try:
            outcome.append(a.append([batch]))
        except FencedError as fenced:
            outcome.append(fenced)

    thread = site.env.threads.start(put, name="late")
    gate.wait_reached()
    take_over(table)
    assert collect(table.core, 0, "7d").ok
    gate.release()
    thread.join()
    assert isinstance(outcome[0], FencedError)
    assert ids(table) == {4, 5, 6, 7, 8}


@pytest.mark.interop
@pytest.mark.parametrize("store_kind", ["local"], indirect=True)
def test_native_writers_and_readers_go_on_after_a_collection(table, store_kind) -> None:
    """pylance finds the latest version through the hint, and the tip through the entry at R."""
    import lance

    take_over(table)
    collect(table.core, 0, "7d")
    with lance.dataset(table.uri).mem_wal_writer(str(table.shards()[0].id)) as w:
        w.put(pa.table({"id": pa.array([50], pa.int64()), "v": pa.array([1], pa.int64())}))
    assert ids(table) == {4, 5, 6, 7, 8, 50}
    report = collect(table.core, 0, "7d")
    assert report.ok, report.errors
    assert report.kind("manifests").kept["native writer"] > 0, "it knows no floors"
    take_over(table)
    assert ids(table) == {4, 5, 6, 7, 8, 50}
