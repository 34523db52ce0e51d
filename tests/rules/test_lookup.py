"""`Table.get`: only the shards that can hold a key are asked, with every kind of sharding."""

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

import weir
from weir.read.reader import SnapshotReader
from weir.testing.faulty import FaultyStores

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("tenant", pa.utf8(), nullable=False)]
)
TENANTS = [f"t{n}" for n in range(6)]


def key(n):
    return {"id": n, "tenant": TENANTS[n % 6]}


@pytest.fixture(params=[weir.Bucket("id", 6), weir.Identity("tenant")], ids=str)
def table(request, tmp_path):
    made = weir.create(
        str(tmp_path / "t"), SCHEMA, primary_key=["id", "tenant"], sharding=request.param
    )
    with made.writer() as writer:
        writer.put([key(n) for n in range(60)])
    return made


@pytest.fixture
def asked(monkeypatch):
    """The shards in the snapshots that reads take."""
    found = []
    init = SnapshotReader.__init__

    def look(self, core, snapshot, **options):
        found.append({cut.shard for cut in snapshot.cuts})
        init(self, core, snapshot, **options)

    monkeypatch.setattr(SnapshotReader, "__init__", look)
    return found


def test_l1_a_lookup_asks_the_shard_of_its_key_alone(table, asked):
    handle = weir.open(table.uri)
    for n in (7, 8, 7):
        assert handle.get([key(n)]).to_pylist() == [key(n)]
    assert [len(shards) for shards in asked] == [1, 1, 1]
    assert handle.get([key(1), key(2)]).num_rows == 2
    assert len(asked[-1]) <= 2


def test_l1_a_lookup_finds_rows_of_shards_made_since(table, asked):
    handle = weir.open(table.uri)
    late = {"id": 100, "tenant": "late"}
    assert handle.get([late]).num_rows == 0
    with table.writer() as writer:
        writer.put([late])
    assert handle.get([late]).to_pylist() == [late]
    assert len(asked[-1]) == 1


@pytest.mark.parametrize("after", [weir.Identity("tenant"), weir.Bucket("id", 4)], ids=str)
@pytest.mark.parametrize("compact", [True, False])
def test_l2_a_lookup_across_a_reshard_finds_the_newest_row(table, after, compact):
    stale, handle = weir.open(table.uri), weir.open(table.uri)
    for reader in (stale, handle):
        assert reader.get([key(3)]).num_rows == 1
    table.reshard(after, compact=compact)
    with weir.open(table.uri).writer() as writer:
        writer.delete([key(n) for n in range(30)])
    handle.core.refresh()
    for reader in (stale, handle, weir.open(table.uri)):
        assert reader.get([key(n) for n in range(60)]).num_rows == 30


@pytest.mark.parametrize("after", [weir.Bucket("id", 4), weir.Identity("id")], ids=str)
def test_l1_a_lookup_during_which_its_handle_learns_of_a_reshard_finds_the_newest_row(
    tmp_path, after
):
    """The shard of the key by the old routing was asked for, and its heir left out as one that
    another key has by the new one."""
    faulty, plain = FaultyStores(), pa.field("id", pa.int64(), nullable=False)
    made = weir.create(
        str(tmp_path / "t"), pa.schema([plain, ("v", pa.string())]), primary_key="id"
    )
    with made.writer() as writer:
        writer.put([{"id": 1, "v": "old"}])
    handle = weir.open(made.uri, env=faulty.env)
    made.reshard(after, compact=False)
    with made.writer() as writer:
        writer.put([{"id": 1, "v": "new"}])
    gate = faulty.at(made.uri).on("list_folder", "_mem_wal").pause()
    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(handle.get, [1])
        gate.wait_reached()
        assert handle.refresh()
        gate.release()
        assert looking.result(30)["v"].to_pylist() == ["new"]


@pytest.mark.parametrize("columns", ["v", [], {"v": "v + 1"}, {}])
def test_columns_that_are_no_list_of_names_are_refused_by_every_read(tmp_path, columns):
    """A text is no list of its letters, and a lookup computes nothing."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
    table = weir.create(str(tmp_path / "t"), schema, primary_key="id")
    with table.shard(0).writer() as shard_writer:
        shard_writer.put([{"id": 1, "v": "a"}])
        reads = [
            lambda: table.get([1], columns=columns),
            lambda: shard_writer.get([1], columns=columns),
            lambda: table.search("v", "a", columns=columns),
        ]
        if not isinstance(columns, dict) or not columns:
            reads.append(lambda: table.scan(columns))
        for read in reads:
            with pytest.raises(weir.InvalidInput, match="columns must be a list"):
                read()
