"""A dropped table is gone, and none of its writers acknowledges a row afterwards."""

import pickle
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest

import weir
from simulator.steps import Died, dies_at
from tests.support.moments import make, put
from tests.support.tables import load_rows
from weir.env import Env
from weir.format import paths
from weir.records.table import TableRecords
from weir.store.open import open_store
from weir.testing.faulty import FaultyStores
from weir.upkeep import drop as dropping
from weir.upkeep.compact.claim import take_claim
from weir.upkeep.compact.jobs import Jobs
from weir.upkeep.owner import Owner
from weir.upkeep.pinning import base_marks

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])
KINDS = {"memtable": weir.WriterConfig(), "log only": weir.WriterConfig(enable_memtable=False)}


def filled(uri: Path, **options: object) -> weir.Table:
    table = weir.create(str(uri), SCHEMA, primary_key="id", **options)
    with table.writer() as writer:
        writer.put([{"id": n} for n in range(10)])
        writer.flush()
        writer.put([{"id": 99}])
    return table


def files(place: Path) -> list[Path]:
    return [path for path in place.rglob("*") if path.is_file()]


def left(place: Path) -> set[str]:
    """The folders in which something is left, of what the table wrote."""
    kinds = set()
    for path in files(place):
        folder = path.parent.relative_to(place).as_posix().split("/")
        folder = folder[paths.is_log_folder(folder[0]) :]
        kinds.add("/".join("*" if len(part) == 36 else part for part in folder))
    return kinds


GRAVE = {
    "_mem_wal/*/manifest",
    "_mem_wal/*/wal",
    "_weir/shards/*/floor/manifest",
    "_weir/shards/*/floor/used",
    "_weir/shards/*/floor/wal",
    "_weir/table",
}

NUMBERS = {"_weir/shards/*/floor/place", "_weir/shards/*/places"}
"""Where the log had a place of its own: the number of the next one."""


class Overtaken:
    """A store before whose first new object in a folder something else happens."""

    def __init__(self, inner: Any, folder: str, act: Callable[[], object]) -> None:
        self._inner, self._folder, self._act = inner, folder, [act]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def put_if_absent(self, path: str, data: bytes) -> Any:
        if path.startswith(self._folder) and self._act:
            self._act.pop()()
        return self._inner.put_if_absent(path, data)


def ids(table: weir.Table) -> list[int]:
    return sorted(table.scan().to_table().column("id").to_pylist())


def test_c16_only_what_stops_the_writers_is_left_of_a_table(tmp_path: Path) -> None:
    table = filled(tmp_path / "t", sharding=weir.Bucket("id", 2))
    table.compact()
    table.checkpoint(scope="durable")
    (tmp_path / "t" / "README").write_text("mine")
    weir.drop(table.uri)
    assert left(tmp_path / "t") - {"."} == GRAVE | {"_weir/compaction"}
    assert len(files(tmp_path / "t" / "_weir" / "compaction")) == 1
    assert len(list((tmp_path / "t" / "_mem_wal").rglob("*.binpb"))) == 2
    assert len(list((tmp_path / "t" / "_mem_wal").rglob("*.arrow"))) == 4  # fences: put and drop
    assert (tmp_path / "t" / "README").read_text() == "mine"
    assert not weir.exists(table.uri)
    with pytest.raises(weir.NotAWeirTable):
        weir.open(table.uri)
    with pytest.raises(weir.NotAWeirTable):
        weir.drop(table.uri)


def test_c16_of_a_log_in_a_store_of_its_own_the_fences_are_left(tmp_path: Path) -> None:
    wal = tmp_path / "wal"
    table = filled(tmp_path / "t", wal_uri=str(wal), sharding=weir.Bucket("id", 2))
    weir.drop(table.uri)
    assert left(wal) == {"_mem_wal/*/wal"}
    assert len(files(wal)) == 4
    assert left(tmp_path / "t") == GRAVE - {"_mem_wal/*/wal"} | NUMBERS
    again = filled(tmp_path / "t", wal_uri=str(wal), sharding=weir.Bucket("id", 2))
    assert ids(weir.open(again.uri)) == [*range(10), 99]


@pytest.mark.parametrize("old", ["beside", "wal", "gone"])
@pytest.mark.parametrize("new", ["beside", "wal", "other"])
def test_c16_the_feed_of_the_next_table_begins_after_the_dropped_one(
    tmp_path: Path, old: str, new: str
) -> None:
    """The last fence of the dropped table may be in another store: that is no hole."""

    def wal(name: str) -> dict[str, object]:
        return {} if name == "beside" else {"wal_uri": str(tmp_path / name)}

    dropped = filled(tmp_path / "t", **wal(old))
    if old == "gone":
        shutil.rmtree(tmp_path / "gone")
    weir.drop(dropped.uri)
    table = weir.create(dropped.uri, SCHEMA, primary_key="id", **wal(new))
    feed = table.changes()
    assert list(feed) == []
    with table.writer() as writer:
        writer.put([{"id": 1}])
    for changes in (table.changes(), table.changes(feed.bookmark)):
        assert [change.batch["id"].to_pylist() for change in changes] == [[1]]
    assert ids(weir.open(table.uri)) == [1]


@pytest.mark.parametrize("old", ["beside", "wal"])
def test_c16_a_feed_from_now_on_passes_the_shards_of_a_dropped_table(
    tmp_path: Path, old: str
) -> None:
    """Also when a reshard of the next table uses their places again."""
    wal = {} if old == "beside" else {"wal_uri": str(tmp_path / old)}
    dropped = filled(tmp_path / "t", sharding=weir.Bucket("id", 2), **wal)
    weir.drop(dropped.uri)
    table = weir.create(dropped.uri, SCHEMA, primary_key="id")
    with table.writer() as writer:
        writer.put([{"id": 1}])
    feed = table.changes("now")
    assert list(table.changes("now", consumer="c")) == []
    table.reshard(weir.Bucket("id", 2))
    with weir.open(table.uri).writer() as writer:
        writer.put([{"id": number} for number in range(20, 30)])
    for changes in (table.changes(feed.bookmark), table.changes(consumer="c")):
        found = [number for change in changes for number in change.batch["id"].to_pylist()]
        assert sorted(found) == [*range(20, 30)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fence_ttl", [0, 60])
@pytest.mark.parametrize("apart", [False, True])
def test_c16_a_writer_of_a_dropped_table_acknowledges_nothing(
    tmp_path: Path, kind: str, fence_ttl: float, apart: bool
) -> None:
    wal = {"wal_uri": str(tmp_path / "wal")} if apart else {}
    table = filled(tmp_path / "t", **wal)
    writer = table.writer(weir.WriterConfig(**{**vars_of(KINDS[kind]), "fence_ttl": fence_ttl}))
    writer.put([{"id": 1}])
    weir.drop(table.uri)
    for _ in range(3):
        with pytest.raises(weir.WeirError):
            writer.put([{"id": 2}])
    assert left(tmp_path / "t") | left(tmp_path / "wal") == GRAVE | (NUMBERS if apart else set())


def vars_of(config: weir.WriterConfig) -> dict[str, object]:
    return {"enable_memtable": config.enable_memtable}


def test_c16_collection_keeps_fences_as_long_as_a_dropped_writer_may_need_them(
    tmp_path: Path,
) -> None:
    """The writer of the dropped table trusts its proof for an hour, that of the next for none."""
    hour = weir.WriterConfig(fence_ttl=3600)
    old = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id", writer_defaults=hour)
    zombie = old.writer()
    zombie.put([{"id": 1}])
    weir.drop(old.uri)
    brief = weir.WriterConfig(fence_ttl=0)
    new = weir.create(old.uri, SCHEMA, primary_key="id", writer_defaults=brief)
    for n in (11, 12):
        with new.writer() as writer:
            writer.put([{"id": n}])
    new.compact(fold_wal=True)
    with pytest.raises(weir.InvalidInput, match="at least 7200 s"):
        new.gc(min_age=0, fence_retention=0)
    new.gc(min_age=0, fence_retention="2h")
    with pytest.raises(weir.WeirError):
        zombie.put([{"id": 2}])
    assert ids(new) == [11, 12]


@pytest.mark.parametrize("kind", KINDS)
def test_g8_a_writer_whose_manifests_are_gone_acknowledges_nothing(
    tmp_path: Path, kind: str
) -> None:
    table = filled(tmp_path / "t")
    config = weir.WriterConfig(enable_memtable=kind == "memtable", fence_ttl=0)
    writer = table.writer(config)
    writer.put([{"id": 1}])
    shutil.rmtree(tmp_path / "t")
    with pytest.raises(weir.UnknownOutcome, match="the table was removed"):
        writer.put([{"id": 2}])


@pytest.mark.parametrize("kind", KINDS)
def test_c16_a_writer_of_a_dropped_table_writes_nothing_into_the_next(
    tmp_path: Path, kind: str
) -> None:
    old = filled(tmp_path / "t", sharding=weir.Bucket("id", 2))
    zombie = old.writer(KINDS[kind])
    zombie.put([{"id": n, "v": "old"} for n in range(6)])
    weir.drop(old.uri)
    new = weir.create(old.uri, SCHEMA, primary_key="id", sharding=weir.Bucket("id", 4))
    assert ids(new) == []
    for n in range(6):
        with pytest.raises(weir.WeirError):
            zombie.put([{"id": n, "v": "zombie"}])
    with new.writer() as writer:
        writer.put([{"id": n, "v": "new"} for n in range(8)])
    assert ids(weir.open(old.uri)) == list(range(8))
    new.compact()
    assert set(new.scan().to_table().column("v").to_pylist()) == {"new"}
    assert len(new.shards()) == 4


def test_c16_a_handle_of_a_dropped_table_writes_nothing_into_the_next(tmp_path: Path) -> None:
    old = filled(tmp_path / "t", sharding=weir.Bucket("id", 2))
    weir.drop(old.uri)
    new = weir.create(old.uri, SCHEMA, primary_key="id", sharding=weir.Bucket("id", 4))
    with new.writer() as writer:
        writer.put([{"id": n, "v": "new"} for n in range(8)])
    stale = old.writer()
    with pytest.raises(weir.WeirError, match="was dropped"):
        stale.put([{"id": n, "v": "old"} for n in range(8)])
    assert set(weir.open(old.uri).scan().to_table().column("v").to_pylist()) == {"new"}


READS = {
    "count": lambda table: table.count(),
    "get": lambda table: table.get([1]),
    "scan": lambda table: table.scan().to_table(),
    "base": lambda table: table.scan(freshness="base").to_table(),
    "flushed": lambda table: table.scan(freshness="flushed").to_table(),
    "stats": lambda table: table.checkpoint(),
    "compact": lambda table: table.compact(),
    "gc": lambda table: table.gc(),
}


@pytest.mark.parametrize("of", ["table", "shard"])
def test_c16_a_handle_of_a_dropped_table_fences_no_writer_of_the_next(
    tmp_path: Path, of: str
) -> None:
    old = filled(tmp_path / "t")
    shard = old.shards()[0]
    weir.drop(old.uri)
    new = weir.create(old.uri, SCHEMA, primary_key="id")
    writer = new.writer()
    writer.put([{"id": 1}])

    def put() -> None:
        (old if of == "table" else shard).writer().put([{"id": 2}])

    with pytest.raises(weir.NotAWeirTable, match="was dropped"):
        put()
    writer.put([{"id": 3}])
    assert ids(new) == [1, 3]


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("is_there_a_new_one", [False, True])
def test_c16_a_handle_of_a_dropped_table_reads_no_dead_rows(
    tmp_path: Path, read: str, is_there_a_new_one: bool
) -> None:
    old = filled(tmp_path / "t")
    old.compact()
    assert old.count() == 11
    assert old.get([1]).num_rows == 1
    weir.drop(old.uri)
    if is_there_a_new_one:
        new = filled(tmp_path / "t")
        new.compact()
    with pytest.raises(weir.WeirError):
        READS[read](old)


def test_c16_work_planned_on_a_dropped_table_is_not_done_on_the_next(tmp_path: Path) -> None:
    old = filled(tmp_path / "t")
    old.compact()
    planned = pickle.dumps(old)
    weir.drop(old.uri)
    filled(tmp_path / "t").compact()
    with pytest.raises(weir.NotAWeirTable, match="was dropped"):
        pickle.loads(planned)


AT = ("claimed", "fenced", "planned", "written", "committed", "marked")


@pytest.mark.parametrize("folds", [0, 2])
@pytest.mark.parametrize("at", AT)
def test_c16_a_compaction_of_a_dropped_table_changes_nothing_of_the_next(
    tmp_path: Path, at: str, folds: int
) -> None:
    table = filled(tmp_path / "t")
    table.compact()
    put(table.writer(), [5], "old")
    made: list[weir.Table] = []

    def replace(name: str) -> None:
        if name == f"compact.{at}" and not made:
            made.append(next_table(table.uri, folds))

    old = weir.open(table.uri, env=Env(failpoint=replace))
    with pytest.raises(weir.NotAWeirTable):
        old.compact(fold_wal=True)
    require_whole(made[0])


def next_table(uri: str, folds: int = 1) -> weir.Table:
    """Drop the table there, make another one; of its rows 100 and 101 the first is in its base."""
    weir.drop(uri)
    table = weir.create(uri, SCHEMA, primary_key="id")
    with table.writer() as writer:
        writer.put([{"id": 100}])
    for _ in range(folds):
        table.compact(fold_wal=True)
    with table.writer() as writer:
        writer.put([{"id": 101}])
    return table


def require_whole(table: weir.Table) -> None:
    latest = weir.open(table.uri)
    assert ids(latest) == [100, 101]
    assert latest.schema.names == SCHEMA.names
    assert latest.wal_uri is None
    assert latest.compact().skipped is None
    with latest.writer() as writer:
        writer.put([{"id": 102}])
    assert ids(weir.open(table.uri)) == [100, 101, 102]


def test_c16_a_load_that_a_drop_overtook_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shards that it was about to flush are nobody's any more, or the next table's."""
    table = filled(tmp_path / "t")
    put(table.writer(weir.WriterConfig(enable_memtable=False)), [5], "in the log")
    opened = Owner._writer

    def overtaken(self: Owner) -> object:
        writer = opened(self)
        weir.drop(table.uri)
        return writer

    monkeypatch.setattr(Owner, "_writer", overtaken)
    with pytest.raises(weir.NotAWeirTable):
        load_rows(weir.open(table.uri), {7: "loaded"}, replaces=True)


def test_c16_a_claim_of_a_dropped_table_in_the_chain_of_the_next_is_left(tmp_path: Path) -> None:
    """Nobody waits for it."""
    table = filled(tmp_path / "t")
    old = weir.open(table.uri).core
    after = next_table(table.uri)
    jobs = Jobs(old.store)
    claimed = jobs.claim("old", jobs.latest())
    with pytest.raises(weir.NotAWeirTable):
        take_claim(old, claimed)
    require_whole(after)


CHANGES = {
    "add": lambda table: table.add_columns(pa.field("n", pa.int64())),
    "drop": lambda table: table.drop_columns("v"),
    "rename": lambda table: table.rename_column("v", "q"),
    "move": lambda table: table.move_wal(f"{table.uri}-wal"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_c16_a_change_by_a_handle_of_a_dropped_table_that_slept_is_refused(
    tmp_path: Path, change: str
) -> None:
    table = filled(tmp_path / "t")
    stores = FaultyStores()
    old = weir.open(table.uri, env=stores.env)
    gate = stores.at(table.uri).on("list_folder", "_weir/clone").pause()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(CHANGES[change], old)
        gate.wait_reached()
        after = next_table(table.uri)
        gate.release()
        with pytest.raises(weir.NotAWeirTable):
            call.result()
    require_whole(after)


def test_c16_a_writer_fenced_just_before_the_drop_acknowledges_nothing(tmp_path: Path) -> None:
    table = filled(tmp_path / "t")
    config = weir.WriterConfig(fence_ttl=60)
    zombie = table.writer(config)
    zombie.put([{"id": 1}])
    other = weir.open(table.uri).writer(config)
    other.put([{"id": 2}])
    weir.drop(table.uri)
    with pytest.raises(weir.WeirError):
        zombie.put([{"id": 3}])
    weir.drop(filled(tmp_path / "t").uri)
    assert left(tmp_path / "t") == GRAVE


def test_c16_a_clone_dropped_and_made_again_is_the_new_copy(tmp_path: Path) -> None:
    table = filled(tmp_path / "t")
    table.compact()
    copy = table.clone(str(tmp_path / "copy"))
    with copy.writer() as writer:
        writer.put([{"id": 1000}])
    assert copy.count() == 12
    zombie = copy.writer()
    zombie.put([{"id": 1001}])
    weir.drop(copy.uri)
    with table.writer(KINDS["log only"]) as writer:
        writer.put([{"id": n} for n in range(200, 203)])
    again = table.clone(copy.uri)
    assert ids(again) == [*range(10), 99, 200, 201, 202]
    assert sum(change.batch.num_rows for change in again.changes()) == 3
    with pytest.raises(weir.WeirError):
        zombie.put([{"id": 1002}])
    with pytest.raises(weir.NotAWeirTable, match="was dropped"):
        copy.count()
    with again.writer() as writer:
        writer.put([{"id": 300}])
    again.compact()
    assert ids(weir.open(copy.uri)) == [*range(10), 99, 200, 201, 202, 300]


def test_c16_an_interrupted_clone_where_a_table_was_dropped_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = filled(tmp_path / "t", sharding=weir.Bucket("id", 2))
    weir.drop(filled(tmp_path / "copy", sharding=weir.Bucket("id", 2)).uri)
    checkpoint = table.checkpoint()
    with monkeypatch.context() as patched:
        from weir.upkeep import clone as cloning

        patched.setattr(cloning, "append_lineage", _dying_at_ready(cloning.append_lineage))
        with pytest.raises(RuntimeError, match="killed"):
            table.clone(str(tmp_path / "copy"), checkpoint)
    copy = table.clone(str(tmp_path / "copy"), checkpoint)
    assert ids(copy) == [*range(10), 99]


def test_c16_a_discarded_clone_leaves_what_stops_older_writers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = filled(tmp_path / "t")
    old = filled(tmp_path / "copy")
    zombie = old.writer()
    zombie.put([{"id": 1}])
    weir.drop(old.uri)
    with monkeypatch.context() as patched:
        from weir.upkeep import clone as cloning

        patched.setattr(cloning, "append_lineage", _dying_at_ready(cloning.append_lineage))
        with pytest.raises(RuntimeError, match="killed"):
            table.clone(str(tmp_path / "copy"), table.checkpoint())
    table.discard_clone(old.uri)
    assert not weir.exists(old.uri)
    with pytest.raises(weir.WeirError):
        zombie.put([{"id": 2}])
    assert ids(filled(tmp_path / "copy")) == [*range(10), 99]


@pytest.mark.parametrize("sharding", [None, weir.Bucket("id", 2)], ids=["same shard", "others"])
def test_c16_a_clone_discarded_as_it_copied_leaves_no_hole_in_the_next_log(
    tmp_path: Path, sharding: weir.Bucket | None
) -> None:
    """What the clone copied goes as a whole, its fences too."""
    table = filled(tmp_path / "t", sharding=sharding)
    for _ in range(2):  # rows between two fences
        with table.writer(KINDS["log only"]) as writer:
            writer.put([{"id": n} for n in range(200, 210)])
    checkpoint = table.checkpoint()
    weir.drop(filled(tmp_path / "copy").uri)

    mortal = weir.open(table.uri, env=Env(failpoint=dies_at("clone.copied")))
    with pytest.raises(Died):
        mortal.clone(str(tmp_path / "copy"), checkpoint)
    table.discard_clone(str(tmp_path / "copy"))
    again = weir.create(str(tmp_path / "copy"), SCHEMA, primary_key="id", sharding=sharding)
    with again.writer() as writer:
        writer.put([{"id": 1}])
    assert [change.batch["id"].to_pylist() for change in again.changes()] == [[1]]


def _dying_at_ready(append: object) -> object:
    def dying(store: object, record: object, nonce: object) -> object:
        if record.state == "ready":  # type: ignore[attr-defined]
            raise RuntimeError("killed")
        return append(store, record, nonce)  # type: ignore[operator]

    return dying


def test_c16_tables_follow_one_another_at_a_place(tmp_path: Path) -> None:
    for n in range(3):
        table = filled(tmp_path / "t", sharding=weir.Bucket("id", 2 + n % 2))
        table.reshard(weir.Bucket("id", 4))
        with table.writer() as writer:
            writer.put([{"id": 1000 + n}])
        assert ids(weir.open(table.uri)) == [*range(10), 99, 1000 + n]
        table.compact()
        table.gc(min_age=0)
        assert ids(weir.open(table.uri)) == [*range(10), 99, 1000 + n]
        weir.drop(table.uri)


def test_c16_a_table_by_identity_follows_another(tmp_path: Path) -> None:
    schema = pa.schema([*SCHEMA, pa.field("g", pa.string())])
    for n in range(2):
        table = weir.create(str(tmp_path / "t"), schema, sharding=weir.Identity("g"))
        with table.writer() as writer:
            writer.put([{"id": n, "g": "a"}])
        assert ids(weir.open(table.uri)) == [n]
        weir.drop(table.uri)
        with pytest.raises(weir.NotAWeirTable):
            table.shard("b")
        assert not [p for p in files(tmp_path) if "data" in p.parts]


def test_g8_a_place_with_logs_of_a_removed_table_is_refused(tmp_path: Path) -> None:
    table = filled(tmp_path / "t")
    for folder in ("_versions", "_weir", "data", "_transactions"):
        shutil.rmtree(tmp_path / "t" / folder, ignore_errors=True)
    before = files(tmp_path)
    with pytest.raises(weir.InvalidInput, match="_mem_wal"):
        weir.create(table.uri, SCHEMA, primary_key="id")
    assert files(tmp_path) == before


def test_c16_an_interrupted_drop_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = filled(tmp_path / "t")

    def die(store: object, paths: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(dropping, "delete", die)
        with pytest.raises(RuntimeError, match="killed"):
            weir.drop(table.uri)
    with pytest.raises(weir.NotAWeirTable, match="finish an interrupted drop"):
        weir.open(table.uri)
    writer = table.writer()
    with pytest.raises(weir.WeirError):  # nobody can claim it again
        writer.put([{"id": 1}], timeout=0.1)
    assert weir.exists(table.uri)
    weir.drop(table.uri)
    assert left(tmp_path / "t") == GRAVE
    assert not weir.exists(table.uri)


@pytest.mark.parametrize(
    "step",
    [f"claim.{step}" for step in ("probed", "claimed", "fenced")]
    + [f"drop.{step}" for step in ("sealed", "logs", "listed", "rows")],
)
def test_c16_a_drop_that_slept_ends_nothing_of_the_next_table(tmp_path: Path, step: str) -> None:
    """It sealed the next table's shards, and their rows were gone."""
    uri = filled(tmp_path / "t").uri
    writers = []

    def overtake(name: str) -> None:
        if name == step and not writers:
            weir.drop(uri)  # another process finishes it, and makes the next table
            table = weir.create(uri, SCHEMA, primary_key="id")
            writers.append(table.writer())
            writers[0].put([{"id": 77}])
            writers[0].flush()
            table.compact()

    weir.drop(uri, env=Env(failpoint=overtake))
    writers[0].put([{"id": 78}])
    writers[0].close()
    assert ids(weir.open(uri)) == [77, 78]


@pytest.mark.parametrize("wal", [False, True], ids=["beside the data", "apart"])
def test_c16_drops_at_one_moment_end_with_the_table_gone(tmp_path: Path, *, wal: bool) -> None:
    """Each fenced the other's claims, and neither went on."""
    start = Barrier(4)

    def drop(uri: str) -> str:
        start.wait()
        try:
            weir.drop(uri)
        except weir.NotAWeirTable:
            return "gone"
        return "dropped"

    with ThreadPoolExecutor(4) as pool:
        for number in range(8):
            place = tmp_path / str(number)
            wal_uri = str(tmp_path / "wal") if wal else None
            table = filled(place, sharding=weir.Bucket("id", 4), wal_uri=wal_uri)
            assert "dropped" in list(pool.map(drop, [table.uri] * 4))
            assert not weir.exists(table.uri)
            assert left(place) <= GRAVE | NUMBERS


def test_c15_a_table_whose_files_a_clone_shares_stays(tmp_path: Path) -> None:
    table = filled(tmp_path / "t")
    table.compact()
    copy = table.clone(str(tmp_path / "copy"))
    with pytest.raises(weir.InvalidInput, match="its clone"):
        weir.drop(table.uri)
    assert table.count() == 11
    weir.drop(copy.uri)  # releases its parent (C-14)
    weir.drop(table.uri)
    assert left(tmp_path / "t") == GRAVE | {"_weir/compaction"}
    assert left(tmp_path / "copy") == GRAVE


def test_c15_what_the_refusal_says_of_a_clone_is_true(tmp_path: Path) -> None:
    """It said that a compaction and a collection make a clone independent."""
    table = filled(tmp_path / "t")
    table.compact()
    copy = table.clone(str(tmp_path / "copy"))
    expected = ids(copy)
    copy.compact(rewrite=True)
    copy.gc(min_age=0)
    with pytest.raises(weir.InvalidInput, match="alone rewrite no file"):
        weir.drop(table.uri)
    with pytest.raises(weir.InvalidInput, match="every row of it was written anew"):
        table.release_clone(copy.uri)
    with pytest.raises(weir.InvalidInput, match="put them into a new one"):
        copy.clone(str(tmp_path / "deep"), deep=True)
    new = weir.create(str(tmp_path / "new"), copy.schema, primary_key="id")
    with new.writer() as writer:
        writer.put(copy.scan().to_table())
    with copy.writer() as writer:
        writer.update_where("true", {"v": "v"})
    copy.compact()
    copy.gc(min_age=0)
    weir.drop(table.uri)
    assert ids(weir.open(copy.uri)) == ids(weir.open(new.uri)) == expected


def test_s5_a_table_whose_log_is_gone_can_be_dropped(tmp_path: Path) -> None:
    table = filled(tmp_path / "t", wal_uri=str(tmp_path / "wal"))
    shutil.rmtree(tmp_path / "wal")
    weir.drop(table.uri)
    assert not weir.exists(table.uri)
    assert not (tmp_path / "wal").exists() or not files(tmp_path / "wal")
    again = filled(tmp_path / "t")
    assert ids(again) == [*range(10), 99]


def test_c16_records_of_a_dropped_table_are_not_those_of_the_next(tmp_path: Path) -> None:
    table = filled(tmp_path / "t", sharding=weir.Bucket("id", 2))
    table.reshard(weir.Bucket("id", 3))
    weir.drop(table.uri)
    filled(tmp_path / "t")
    records = TableRecords(open_store(table.uri, None))
    assert records.at_routing(table.core.record.routing_version) is None
    assert paths.table_chain() in {
        path.parent.relative_to(tmp_path / "t").as_posix() for path in files(tmp_path / "t")
    }


def test_c16_a_bookmark_of_a_dropped_table_is_refused_by_the_next(tmp_path: Path) -> None:
    feed = filled(tmp_path / "t").changes()
    for _ in feed:
        pass
    bookmark = feed.bookmark
    weir.drop(str(tmp_path / "t"))
    following = filled(tmp_path / "t").changes(bookmark)
    with pytest.raises(weir.SnapshotExpired):
        list(following)


def test_c16_a_handle_of_a_dropped_table_never_reads_the_next_one(tmp_path: Path) -> None:
    """The first read is refused, and so is every later one, whatever was cached meanwhile."""

    def job(key: int) -> weir.Table:
        table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id")
        with table.writer() as writer:
            writer.put([{"id": key}])
        table.compact(fold_wal=True)
        with table.writer() as writer:
            writer.put([{"id": key + 1}])
        return table

    job(1)
    old = weir.open(str(tmp_path / "t"))
    assert ids(old) == [1, 2]
    unaware = [weir.open(old.uri) for _ in range(6)]  # none learns of the drop from another call
    feed = old.changes(follow=True)
    weir.drop(str(tmp_path / "t"))
    job(11)
    asked: list[Callable[[weir.Table], object]] = [
        lambda handle: handle.schema,
        lambda handle: handle.expire,
        lambda handle: handle.indexes(),
        lambda handle: handle.checkpoints(),
        lambda handle: handle.shards(),
        lambda handle: handle.shard(None).manifest(),
    ]
    for ask, handle in zip(asked, unaware, strict=True):
        with pytest.raises(weir.NotAWeirTable):
            ask(handle)
    for read in (old.count, old.count, lambda: old.get([1, 2, 11, 12]), lambda: ids(old)):
        with pytest.raises(weir.NotAWeirTable):
            read()
    for act in (
        lambda: list(old.changes()),
        lambda: list(feed.poll()),
        lambda: old.set_expire(None),
        lambda: old.delete_checkpoint("daily"),
    ):
        with pytest.raises(weir.NotAWeirTable):
            act()


def test_c16_the_shards_of_a_dropped_table_with_a_moved_log_are_in_nobodys_way(tmp_path):
    """The next table has other shards, and its upkeep meets what is left of these."""
    keyed = weir.Bucket("id", 2)
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    old = weir.create(str(tmp_path / "t"), schema, primary_key="id", sharding=keyed)
    old.move_wal(str(tmp_path / "w"))
    with weir.open(old.uri).writer() as writer:
        writer.put([{"id": n} for n in range(9)])
    weir.drop(old.uri)
    anew = weir.create(str(tmp_path / "t"), schema, primary_key="id")
    with anew.writer() as writer:
        writer.put([{"id": 1}])
    for scope in ("durable", "all"):
        made = weir.open(anew.uri).checkpoint(scope)
        assert weir.open(anew.uri).scan(checkpoint=made).count() == 1
    weir.open(anew.uri).compact()
    assert weir.open(anew.uri).gc(min_age=0).ok
    weir.open(anew.uri).reshard(keyed)
    assert weir.open(anew.uri).count() == 1


@pytest.mark.parametrize("shards", [2, 1], ids=["the same shards", "other shards"])
def test_c16_a_mover_that_slept_marks_no_place_of_the_next_table(
    tmp_path: Path, shards: int
) -> None:
    """Every read, put and collection of the next table said that an object was missing."""
    table = filled(tmp_path / "t", sharding=weir.Bucket("id", 2))
    table.move_wal(str(tmp_path / "w"))
    weir.drop(table.uri)
    for shard in table.core.shard_ids():
        table.core.log(shard).manifests.floors.raise_to("place", 1)  # its last request
    sharding = weir.Bucket("id", 2) if shards == 2 else weir.Unsharded()
    anew = weir.open(filled(tmp_path / "t", sharding=sharding).uri)
    assert anew.gc(min_age=0).ok
    anew.move_wal(str(tmp_path / "w"))
    assert ids(anew) == [*range(10), 99]
    weir.drop(anew.uri)
    assert not {path.name for path in files(tmp_path / "t") if path.suffix == ".lance"}


def test_c16_a_collection_that_slept_raises_no_floor_of_the_next_table(tmp_path: Path) -> None:
    """Its request may come as late as it likes: versions of the base begin anew."""
    table = filled(tmp_path / "t")
    weir.drop(table.uri)
    anew = filled(tmp_path / "t")
    base_marks(table.core).raise_to(50)
    assert anew.compact().base_version is not None
    anew.checkpoint(name="made")
    load_rows(anew, {7: "loaded"}, replaces=False)
    assert ids(anew) == [*range(10), 99]


def test_c16_a_restore_that_slept_is_not_announced_in_the_next_table(tmp_path: Path) -> None:
    """No verb would have taken the next table on: its restore could not be finished."""
    table = filled(tmp_path / "t")
    held = table.checkpoint()
    store, made = table.core.store, list[weir.Table]()

    def overtake() -> None:
        weir.drop(table.uri)
        made.append(filled(tmp_path / "t"))

    table.core.store = Overtaken(store, paths.clone_chain(), overtake)
    with pytest.raises(weir.WeirError):
        table.restore(held)
    (anew,) = made
    anew.compact()
    anew.checkpoint()
    assert ids(anew) == [*range(10), 99]


@pytest.mark.parametrize("shards", [1, 3])
def test_c16_a_flush_of_a_dropped_table_says_so_every_time(tmp_path: Path, shards: int) -> None:
    table = make(tmp_path / "t", shards)
    writer = table.writer()
    put(writer, range(9), "a")
    weir.drop(table.uri)
    for _ in range(2):
        with pytest.raises(weir.NotAWeirTable):
            writer.flush()
    writer.close()


@pytest.mark.parametrize("act", ["flush", "close"])
def test_c16_a_writer_of_a_dropped_table_leaves_no_rows_there(tmp_path: Path, act: str) -> None:
    table = make(tmp_path / "t", 1)
    writer = weir.open(table.uri).writer()
    put(writer, range(9), "secret")
    weir.drop(table.uri)
    if act == "flush":
        with pytest.raises(weir.NotAWeirTable):
            writer.flush()
    writer.close()
    held = [path for path in (tmp_path / "t").rglob("*") if path.is_file()]
    assert [path for path in held if b"secret" in path.read_bytes()] == []
    assert [path for path in held if "_gen_" in str(path)] == []


def test_c16_what_a_writer_of_a_dropped_table_flushes_is_collected_by_the_next_table(
    tmp_path: Path,
) -> None:
    """Its SSTable has a number below those of the next table, so nothing can publish it."""
    table = make(tmp_path / "t", 1)
    with table.writer() as earlier:
        for key in range(3):
            put(earlier, [key], "a")
            earlier.flush()
    writer = weir.open(table.uri).writer()
    put(writer, range(9), "secret")
    weir.drop(table.uri)
    anew = make(tmp_path / "t", 1)
    with anew.writer() as other:
        put(other, [1], "b")
    with pytest.raises(weir.WeirError):
        writer.flush()
    writer.close()
    assert anew.gc(min_age=0).ok
    held = [path for path in (tmp_path / "t").rglob("*") if path.is_file()]
    assert [path for path in held if b"secret" in path.read_bytes()] == []
    assert weir.open(anew.uri).count() == 1
    with weir.open(anew.uri).writer() as other:
        put(other, [2], "c")
    assert weir.open(anew.uri).count() == 2
