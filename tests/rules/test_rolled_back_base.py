"""L-8: a base rolled back with Lance, when the shards no longer hold the rows that it lost.

The tests do what LanceDB does in `checkout` and `restore`, with pylance's calls. Where the shards
still have the rows, nothing is lost and reads and writes go on.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import weir
from tests.rules.test_fold_beside_commits import make, put, rows_of
from tests.rules.test_overwritten_base import drop_index
from tests.support.tables import load_rows
from weir.cli.checks import check_table
from weir.errors import CommitConflict, CorruptEntry
from weir.lake.base.versions import Versions
from weir.upkeep.compact import run
from weir.upkeep.compact.jobs import FoldProgress, Jobs
from weir.upkeep.compact.run import compact

LOG_ONLY = weir.WriterConfig(enable_memtable=False)


def rolled_back(tmp_path: Path, *, from_log: bool) -> tuple[weir.Table, int, int]:
    """A table rolled back to before a fold whose rows are nowhere else; both versions."""
    table = make(tmp_path, keyed=True)
    put(table, {1: "first"})
    table.compact()
    if from_log:  # a log is not folded past SSTables that are still listed
        assert table.gc(min_age=0, kinds=["sstables"]).pruned
    before = lance.dataset(table.uri).version
    if from_log:
        with table.writer(LOG_ONLY) as writer:
            writer.put([{"id": 2, "v": "second"}])
    else:
        put(table, {2: "second"})
    table.compact()
    if not from_log:
        assert table.gc(min_age=0, kinds=["sstables"]).pruned == 2
    after = lance.dataset(table.uri).version
    lance.dataset(table.uri, version=before).restore()
    return weir.open(table.uri), before, after


WRITES: dict[str, Callable[[weir.Table], object]] = {
    "put": lambda t: t.writer().put([{"id": 3, "v": "third"}]),
    "open a shard": lambda t: t.shards()[0].writer(),
    "compact": lambda t: t.compact(),
    "gc": lambda t: t.gc(min_age=0),
    "gc of the base": lambda t: t.gc(min_age=0, kinds=["base"]),
    "checkpoint": lambda t: t.checkpoint("durable"),
    "checkpoint of all": lambda t: t.checkpoint("all"),
    "clone": lambda t: t.clone(f"{t.uri}-clone"),
    "deep clone": lambda t: t.clone(f"{t.uri}-clone", deep=True),
    "reshard": lambda t: t.reshard(weir.Bucket("id", 3)),
    "load": lambda t: load_rows(t, {3: "third"}, replaces=False),
}


@pytest.mark.parametrize("from_log", [False, True], ids=["from SSTables", "from the log"])
def test_l8_writers_and_compaction_refuse_before_they_write(tmp_path: Path, from_log: bool) -> None:
    table, _, after = rolled_back(tmp_path, from_log=from_log)
    version, manifest = lance.dataset(table.uri).version, table.shards()[0].manifest()
    jobs = Jobs(table.core.store).latest()
    for write in WRITES.values():
        with pytest.raises(CorruptEntry, match="reads miss rows compacted since"):
            write(weir.open(table.uri))
    assert lance.dataset(table.uri).version == version
    assert table.shards()[0].manifest() == manifest
    assert Jobs(table.core.store).latest() == jobs
    assert table.checkpoints() == []
    assert not Path(f"{table.uri}-clone").exists()
    bad = [f.detail for f in check_table(table.uri, {}) if f.state == "bad"]
    assert any("Restore" in text for text in bad), bad
    # The repair that the message names.
    lance.dataset(table.uri, version=after).restore()
    put(weir.open(table.uri), {3: "third"})
    table.compact()
    assert rows_of(table) == Counter({(1, "first"): 1, (2, "second"): 1, (3, "third"): 1})


def test_l8_where_the_shards_still_have_it_everybody_goes_on(tmp_path: Path) -> None:
    table = make(tmp_path, keyed=True)
    before = lance.dataset(table.uri).version
    # Shards of a reshard begin above generation 1: unused numbers do not count as missing.
    put(table, {1: "first"})
    table.reshard(weir.Bucket("id", 1))
    put(table, {2: "second"})
    table.compact()
    resharded = next(
        v
        for v in range(lance.dataset(table.uri).version, before, -1)
        if weir.open(table.uri).core.lake.open_base(v).compacted == {}
    )
    lance.dataset(table.uri, version=resharded).restore()
    put(weir.open(table.uri), {3: "third"})
    table.compact()
    want = Counter({(1, "first"): 1, (2, "second"): 1, (3, "third"): 1})
    assert rows_of(table) == rows_of(weir.open(table.uri)) == want


def test_l8_a_restore_by_weir_takes_the_shards_along(tmp_path: Path) -> None:
    table = make(tmp_path, keyed=True)
    put(table, {1: "first"})
    pinned = table.checkpoint(scope="all", name="then")
    with table.writer(LOG_ONLY) as writer:
        writer.put([{"id": 2, "v": "second"}])
    table.compact()
    table.gc(min_age=0, kinds=["sstables"])
    table.restore(pinned)
    put(weir.open(table.uri), {3: "third"})
    table.compact()
    assert rows_of(table) == Counter({(1, "first"): 1, (3, "third"): 1})


def test_l8_an_index_that_was_unset_and_set_again_has_lost_the_progress(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.utf8())])
    table = weir.create(
        str(tmp_path / "t"), schema, primary_key="id", sharding=weir.Bucket("id", 2)
    )
    put(table, dict.fromkeys(range(8), "old"))
    table.compact()
    put(table, {1: "new"})  # the note of this fold names one shard only
    table.compact()
    table.gc(min_age=0, kinds=["sstables"])
    drop_index(table)
    lance.dataset(table.uri).initialize_mem_wal(bucket_column="id", num_buckets=2)
    for write in WRITES.values():
        with pytest.raises(CorruptEntry, match="recreated its MemWAL index"):
            write(weir.open(table.uri))


def test_what_was_reached_is_joined_and_survives_the_record() -> None:
    reached = FoldProgress.of([8, 9, 3]).and_also(FoldProgress.of([10, 4], passed=7))
    assert reached == FoldProgress(((3, 4), (8, 10)), 7)
    assert list(reached.above(3)) == [4, 8, 9, 10]
    assert (reached.generation, FoldProgress().generation) == (10, 0)


def test_l8_an_older_restore_by_weir_does_not_excuse_another_program(tmp_path: Path) -> None:
    table = make(tmp_path, keyed=True)
    put(table, {1: "kept"})
    table.restore(table.checkpoint("durable"))
    before = lance.dataset(table.uri).version
    put(table, {2: "second"})
    table.compact()
    assert table.gc(min_age=0, kinds=["sstables"]).pruned
    lance.dataset(table.uri, version=before).restore()
    for write in WRITES.values():
        with pytest.raises(CorruptEntry, match="Another program restored an older version"):
            write(weir.open(table.uri))


@pytest.mark.parametrize("is_named", [True, False], ids=["named", "of an older release"])
def test_l8_a_base_that_weir_takes_back_late_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_named: bool
) -> None:
    """A restore slept before its rollback while a compaction went on: the state that waits for
    a rerun of the restore was blamed on another program. Found by seed 10001865."""
    table = make(tmp_path, keyed=True)
    put(table, {1: "kept"})
    moment = table.checkpoint("durable")
    put(table, {2: "later"})

    restore = Versions.restore

    def slept(lake: Versions, version: int, checkpoint: str) -> int:
        compact(weir.open(table.uri).core, lease=0)
        if is_named:
            return restore(lake, version, checkpoint)
        lance.dataset(table.uri, version=version).restore()
        return lance.dataset(table.uri).version

    with monkeypatch.context() as patched:
        patched.setattr(Versions, "restore", slept)
        # A compactor that looked for a restore before this one announced itself.
        patched.setattr(run, "require_settled", lambda _core, _verb: None)
        with pytest.raises(CommitConflict, match="took over"):
            weir.open(table.uri).restore(moment)
    for write in WRITES.values():
        with pytest.raises(CommitConflict, match=f"restore of checkpoint {moment.id} rolled"):
            write(weir.open(table.uri))
    told = [found.detail for found in check_table(table.uri, {}) if found.state == "bad"]
    assert told
    assert all("Wait for that restore, or run it again" in detail for detail in told)
    table.restore(moment)
    put(table, {3: "after"})
    table.compact()
    assert rows_of(weir.open(table.uri)) == Counter({(1, "kept"): 1, (3, "after"): 1})
    assert {found.state for found in check_table(table.uri, {})} == {"ok"}
