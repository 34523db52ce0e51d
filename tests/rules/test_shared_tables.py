"""X-1 to X-5 without the other program: what it reads in the table, and shards like its own.

With LanceDB itself: `tests/interop/test_lancedb.py`.
"""

import pickle
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import lance
import pyarrow as pa
import pytest

import weir
from simulator.steps import Died, dies_at, watched
from tests.support.moments import at_time
from tests.support.tables import count_requests
from weir import making
from weir.format.bucket import bucket
from weir.format.manifest import Status
from weir.format.sharding import FIRST_ROUTING, field_entries, shard_id
from weir.lake.pylance_lake import PylanceLake
from weir.log.rules import Evidence
from weir.read.snapshot import Snapshot
from weir.records.table import TableRecords
from weir.routing.core import first_manifest
from weir.routing.guard import look_for_rivals
from weir.routing.shards import Shard
from weir.upkeep.adopt_shard import adopt_shard
from weir.upkeep.move_wal import move_wal

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.utf8())])


def rows(table: weir.Table) -> dict[int, str]:
    return {row["id"]: row["v"] for row in table.scan().to_table().to_pylist()}


def specs(table: weir.Table) -> list[int]:
    """Spec ids in the MemWAL index: 1 alone admits LanceDB, two ids admit nobody."""
    details = weir.open(table.uri).core.base().mem_wal
    assert details is not None
    return [spec.spec_id for spec in details.sharding_specs]


def make(tmp_path: Path, sharding=None, **options) -> weir.Table:
    return weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id", sharding=sharding, **options)


def native(table: weir.Table):
    return lance.dataset(table.uri).mem_wal_writer(str(table.shards()[0].id))


def test_x1_a_new_table_lets_native_writers_in(tmp_path):
    table = make(tmp_path, weir.Bucket("id", 1))
    assert specs(table) == [1]
    with native(table) as writer:
        writer.put(pa.table({"id": [1], "v": ["pylance"]}, schema=SCHEMA))
    table.compact()
    assert rows(table) == {1: "pylance"}
    assert specs(table) == [1]


def test_x1_a_reshard_offers_another_spec(tmp_path):
    table = make(tmp_path, weir.Bucket("id", 1))
    table.reshard(weir.Bucket("id", 2))
    assert specs(table) == [2]
    table.reshard(weir.Identity("id"))
    assert specs(table) == [3]


def test_x1_two_specs_while_the_log_is_elsewhere(tmp_path):
    wal = str(tmp_path / "wal")
    table = make(tmp_path, weir.Bucket("id", 1), wal_uri=wal)
    assert specs(table) == [1, 2]
    with pytest.raises(OSError, match="at most one sharding spec"):
        native(table)
    with table.writer() as writer:
        writer.put([{"id": 1, "v": "weir"}])
    table.compact()
    table.reshard(weir.Bucket("id", 2))
    assert specs(table) == [2, 3]
    table.move_wal(None)
    assert specs(table) == [2]
    table.move_wal(wal)
    assert specs(table) == [2, 3]


def test_x1_natives_are_told_before_the_first_shard_is_moved(tmp_path):
    table = make(tmp_path, weir.Bucket("id", 1))
    with table.writer() as writer:
        writer.put([{"id": 1, "v": "weir"}])
    found = []

    def look(step: str) -> None:
        if step == "claimed":
            found.append(specs(table))

    move_wal(watched(weir.open(table.uri).core, "move", look), str(tmp_path / "wal"))
    assert found == [[1, 2]]


def test_x1_an_adopted_table_begins_with_the_first_routing(tmp_path):
    data = pa.table({"id": [1], "v": ["a"]}, schema=SCHEMA)
    lance.write_dataset(data, str(tmp_path / "t"))
    table = weir.enable(str(tmp_path / "t"), primary_key="id")
    record = TableRecords(table.core.store).load()
    assert (record.routing_version, record.maintain_all) == (0, True)
    assert specs(table) == [1]
    assert table.core.schema().unmarked == []  # columns are marked before the first write


def test_x5_an_entry_that_names_no_sharding_is_left_as_it_is(tmp_path):
    """Shards of such a table are chosen by hand; weir routes only its own writes."""
    key = {b"lance-schema:unenforced-primary-key": b"true"}
    marked = pa.schema([SCHEMA.field("id").with_metadata(key), SCHEMA.field("v")])
    lance.write_dataset(marked.empty_table(), str(tmp_path / "t")).initialize_mem_wal()
    table = weir.enable(str(tmp_path / "t"))
    with table.writer() as writer:
        writer.put([{"id": 1, "v": "a"}])
    before = table.core.base().mem_wal
    table.compact()
    after = weir.open(table.uri).core.base().mem_wal
    assert before is not None
    assert after is not None
    assert replace(after, compacted={}) == before


def test_c18_a_dataset_is_adopted_with_a_shard_for_each_writer(
    tmp_path,
):
    for name, has_entry in (("with", True), ("without", False)):
        place = str(tmp_path / name)
        dataset = lance.write_dataset(SCHEMA.empty_table(), place)
        if has_entry:
            dataset.initialize_mem_wal()
        table = weir.enable(place, sharding=weir.PerWriter())
        with table.writer() as writer:
            writer.put([{"id": 1, "v": "a"}])
        table.compact()
        assert specs(table) == []
        assert weir.open(place).count() == 1
    keyed = str(tmp_path / "keyed")
    lance.write_dataset(SCHEMA.empty_table(), keyed)
    with pytest.raises(weir.InvalidInput, match="append-only"):
        weir.enable(keyed, primary_key="id", sharding=weir.PerWriter())
    assert not weir.exists(keyed)


def unnamed(table: weir.Table, value: int) -> None:
    """Make the shard of that value like LanceDB's: its manifest does not name the value."""
    manifests = table.core.log(table.shard(value).id).manifests
    manifests.update(
        lambda latest: (replace(latest, field_entries=()), Evidence()),
        epoch=manifests.require().writer_epoch,
    )


@pytest.mark.parametrize("flushed", [True, False])
def test_x2_a_shard_that_names_no_value_is_known_by_its_first_row(tmp_path, flushed):
    table = make(tmp_path, weir.Identity("id"))
    writer = table.writer()
    writer.put([{"id": 7, "v": "a"}])
    if flushed:
        writer.close()
    unnamed(table, 7)
    (found,) = weir.open(table.uri).shards()
    assert (found.value, found.is_routed) == (7, True)
    with weir.open(table.uri).writer() as again:
        again.put([{"id": 7, "v": "b"}])
    assert found.manifest().field_entries  # written when the shard was opened
    assert rows(table) == {7: "b"}


def test_x2_a_reshard_seals_shards_that_name_no_value(tmp_path):
    table = make(tmp_path, weir.Identity("id"))
    with table.writer() as writer:
        writer.put([{"id": 7, "v": "a"}])
    empty = table.shard(8)  # created, never written to
    unnamed(table, 7)
    unnamed(table, 8)
    report = weir.open(table.uri).reshard(weir.Unsharded())
    assert empty.id in report.sealed
    assert len(report.sealed) == 2
    assert empty.manifest().status is Status.SEALED
    assert rows(weir.open(table.uri)) == {7: "a"}


def test_x5_an_entry_that_lance_13_rewrote_is_put_right(tmp_path):
    table = make(tmp_path)
    with table.writer() as writer:
        writer.put([{"id": n, "v": str(n)} for n in range(10)])
    table.compact()
    lance.dataset(table.uri).create_scalar_index("id", "BTREE")
    lake = table.core.lake
    assert isinstance(lake, PylanceLake)
    base = lake.open_base()
    assert base.mem_wal is not None
    dropped = replace(base.mem_wal, maintain_all=False, maintained_indexes=())
    lake.replace_mem_wal(dropped, planned_at=base.version, properties={})
    with table.writer() as writer:
        writer.put([{"id": 1, "v": "new"}])
    table.compact()
    details = weir.open(table.uri).core.base().mem_wal
    assert details is not None
    assert details.maintain_all
    assert details.maintained_indexes == ("id_idx",)
    assert details.compacted == {table.shards()[0].id: 2}


@pytest.mark.parametrize("key", ["id", None])
def test_x4_compaction_leaves_sstables_to_readers_of_an_older_base(tmp_path, key):
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key=key)
    with table.writer() as writer:
        writer.put([{"id": 1, "v": "a"}, {"id": 2, "v": "b"}])
    (shard,) = table.shards()
    table.compact()
    assert [t.generation for t in shard.manifest().sstables] == [1]
    assert table.stats().generations == 0  # nothing left to fold
    assert table.scan().to_table().num_rows == table.scan().count() == 2
    assert table.compact().base_version is None  # nothing to do
    assert table.gc(dry_run=True).pruned == 0
    assert table.gc().pruned == 0  # folded only moments ago
    assert [t.generation for t in shard.manifest().sstables] == [1]
    now = table.core.store.now() + 16 * 60
    late = at_time(table, [now])
    assert late.gc(dry_run=True).pruned == 1
    assert late.gc().pruned == 1
    assert shard.manifest().sstables == ()
    assert table.scan().count() == 2


def test_x4_a_base_rolled_back_by_lance_releases_nothing_that_it_does_not_hold(tmp_path):
    table = make(tmp_path)
    first = 0
    for n in (1, 2):
        with table.writer() as writer:
            writer.put([{"id": n, "v": "a"}])
        table.compact()
        first = first or lance.dataset(table.uri).version
    folded = table.core.store.now()
    lance.dataset(table.uri, version=first).restore()
    # Fifteen minutes ago the base held both rows; the current base holds only the first.
    assert at_time(table, [folded + 15 * 60]).gc().ok
    assert [t.generation for t in table.shards()[0].manifest().sstables] == [2]
    assert rows(table) == rows(weir.open(table.uri)) == {1: "a", 2: "a"}


@pytest.fixture(params=["named by LanceDB", "says so itself"])
def beside(request, tmp_path, monkeypatch) -> tuple[weir.Table, UUID]:
    """A table of two buckets, and another program's shard that takes rows of bucket 0."""
    sharding = weir.Bucket("id", 2)
    if request.param == "named by LanceDB":
        monkeypatch.setattr(making, "FIRST_ROUTING", 1)  # ids of its own, not LanceDB's
        rival = shard_id(sharding, 0, FIRST_ROUTING)
    else:
        rival = uuid4()
    table = make(tmp_path, sharding)
    with table.writer() as writer:
        writer.put([{"id": n, "v": "ours"} for n in range(8)])
    table.compact()
    entries = () if request.param == "named by LanceDB" else field_entries(sharding, 0, None)
    table.core.log(rival).manifests.create(first_manifest(rival, 1, entries))
    with Shard(table.core, rival, None, is_routed=False).writer() as writer:
        writer.put([{"id": n, "v": "theirs"} for n in (*zeroes(), 900)])
        writer.delete([zeroes()[-1]])
    return weir.open(table.uri), rival


def zeroes() -> list[int]:
    """Ids below 8 that are in bucket 0 of two."""
    return [n for n, b in enumerate(bucket(pa.array(range(8), pa.int64()), 2)) if b == 0]


def test_x3_writers_of_the_value_are_refused_and_others_go_on(beside):
    table, rival = beside
    assert set(rows(table)) >= {n for n in range(8) if n not in zeroes()}
    first, other = zeroes()[0], next(n for n in range(8) if n not in zeroes())
    epoch = table.shard(0).manifest().writer_epoch
    with weir.open(table.uri).writer() as writer:
        writer.put([{"id": other, "v": "still"}])
    routed = table.shard(0).id
    # A handle that has read nothing yet looks for rivals too, and so does a shard's writer.
    for put in (
        lambda late: late.writer().put([{"id": first, "v": "late"}]),
        lambda late: late.shard(0).writer(),
    ):
        with pytest.raises(weir.InvalidInput, match="adopt-shard") as told:
            put(weir.open(table.uri))
        assert str(rival) in str(told.value)
        assert str(routed) in str(told.value)
    assert table.core.log(routed).manifests.require().writer_epoch == epoch, "nobody claimed it"


@pytest.mark.parametrize("at", ["now", "a checkpoint"])
def test_x3_parts_of_a_snapshot_beside_a_rival_have_each_key_once(tmp_path, at):
    """L-2: a worker or a task that read a shard alone returned keys of the rival as well."""
    sharding = weir.Bucket("id", 2)
    table = make(tmp_path, sharding)
    rival = uuid4()
    entries = field_entries(sharding, 0, None)
    table.core.log(rival).manifests.create(first_manifest(rival, 1, entries))
    with table.writer() as writer:  # rows of the same keys in both, none of them in the base
        writer.put([{"id": n, "v": "ours"} for n in range(8)])
        with Shard(weir.open(table.uri).core, rival, None, is_routed=False).writer() as theirs:
            theirs.put([{"id": n, "v": "theirs"} for n in zeroes()])
    pinned = table.checkpoint() if at == "a checkpoint" else None
    handle = weir.open(table.uri)
    loader = pickle.loads(pickle.dumps(handle.scan(checkpoint=pinned).loader()))
    assert handle.count(checkpoint=pinned) == 8
    for workers in (1, 2, 3):
        parts = [loader.part(index, workers) for index in range(workers)]
        found = [row for part in parts for batch in part for row in batch.to_pylist()]
        assert sorted(row["id"] for row in found) == list(range(8))
        assert {row["id"]: row["v"] for row in found} == {
            row["id"]: row["v"] for row in handle.scan(checkpoint=pinned).to_table().to_pylist()
        }
    again = Snapshot.from_json(loader.snapshot.to_json())
    assert again.overlapping == loader.snapshot.overlapping == {rival}


def test_x3_a_rival_of_an_identity_value_is_found_by_the_first_writer(tmp_path):
    table = make(tmp_path, weir.Identity("id"))
    with table.writer() as writer:
        writer.put([{"id": n, "v": "ours"} for n in (1, 2)])
    rival = uuid4()
    entries = field_entries(weir.Identity("id"), 1, pa.int64())
    table.core.log(rival).manifests.create(first_manifest(rival, 1, entries))
    with Shard(table.core, rival, None, is_routed=False).writer() as writer:
        writer.put([{"id": 1, "v": "theirs"}])
    with weir.open(table.uri).writer() as writer:
        with pytest.raises(weir.InvalidInput, match=str(rival)):
            writer.put([{"id": 1, "v": "late"}])
        writer.put([{"id": 2, "v": "still"}])


def test_x3_a_rival_of_lancedbs_name_is_seen_by_a_writer_that_was_there_before(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(making, "FIRST_ROUTING", 1)  # ids of its own, not LanceDB's
    sharding = weir.Bucket("id", 2)
    table = make(tmp_path, sharding)
    with table.writer() as writer:
        rival = shard_id(sharding, 0, FIRST_ROUTING)
        table.core.log(rival).manifests.create(first_manifest(rival, 1, ()))
        with Shard(weir.open(table.uri).core, rival, None, is_routed=False).writer() as theirs:
            theirs.put([{"id": zeroes()[0], "v": "theirs"}])
        with pytest.raises(weir.InvalidInput, match=str(rival)):
            writer.put([{"id": zeroes()[0], "v": "late"}])


def test_x3_the_first_writer_looks_for_rivals_by_one_listing(tmp_path):
    """Shards that the record explains, including those of former routings, are not read."""
    table = make(tmp_path, weir.Bucket("id", 4))
    table.reshard(weir.Bucket("id", 2))
    handle = weir.open(table.uri)
    counting = count_requests(handle)
    look_for_rivals(handle.core)
    assert counting.requests == 1


def test_x3_compaction_leaves_both_shards_alone(beside):
    table, rival = beside
    routed = table.shard(0).id
    with Shard(table.core, routed, 0, is_routed=False).writer() as writer:
        writer.put([{"id": zeroes()[0], "v": "newest"}])
    before = rows(table)
    assert before[zeroes()[0]] == "newest"  # of two unfolded rows, the routed shard's is shown
    report = table.compact()
    assert rival not in report.generations
    assert routed not in report.generations
    assert rows(table) == rows(weir.open(table.uri)) == before


@pytest.mark.parametrize("order", ["newer", "older"])
def test_x3_an_adopted_shard_is_folded_as_it_was_said(beside, order):
    table, rival = beside
    table.adopt_shard(rival, order)
    wins = "theirs" if order == "newer" else "ours"
    want = dict.fromkeys(range(8), "ours") | dict.fromkeys(zeroes(), wins) | {900: "theirs"}
    if order == "newer":
        del want[zeroes()[-1]]
    assert rows(table) == rows(weir.open(table.uri)) == want
    with weir.open(table.uri).writer() as writer:
        writer.put([{"id": zeroes()[0], "v": "again"}])
    assert rows(table) == want | {zeroes()[0]: "again"}
    assert table.adopt_shard(rival, order).rows == 0


def test_x3_an_adoption_that_died_is_completed(beside):
    table, rival = beside

    with pytest.raises(Died):
        adopt_shard(watched(table.core, "adopt", dies_at("sealed")), rival, "newer")
    table.adopt_shard(rival, "newer")
    assert rows(table)[zeroes()[0]] == "theirs"


def test_x3_only_a_shard_outside_the_routing_is_adopted(beside):
    table, _ = beside
    for shard, order, match in (
        (table.shard(0).id, "newer", "nothing to adopt"),
        (uuid4(), "newer", "no shard"),
        (table.shard(0).id, "first", "newer"),
    ):
        with pytest.raises(weir.InvalidInput, match=match):
            table.adopt_shard(shard, order)
