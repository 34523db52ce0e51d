"""The model of Lance and Lance itself meet the same contract, which the mass runs rely on."""

from dataclasses import replace

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from simulator.model_fragments import FragmentLake
from simulator.model_lake import ModelLake
from tests.support.one_shard import SHARD, small_schema
from weir.env import SYSTEM
from weir.errors import CommitConflict
from weir.format.base_manifest import ShardingField, ShardingSpec
from weir.format.schema import TOMBSTONE
from weir.lake.base import adopt, fence, fold, fold_commit
from weir.lake.pylance_lake import PylanceLake
from weir.store.memory import MemoryStore
from weir.store.open import open_store

FIELD = ShardingField("bucket", (), "unsharded", None, "int32")


class Model:
    """The model behind the interface of this suite."""

    def __init__(self, folder, *, keyed):
        self.schema = small_schema(keyed=keyed)
        self.folder = folder
        self.stores = {}
        self.lake = self._at(MemoryStore(f"{folder.name}-parent"))
        self.lake.create_base()

    def _at(self, store):
        self.stores[store.uri] = store
        return ModelLake(store, self.schema, self.stores.__getitem__)

    def clone(self, version):
        """A clone of that version, as a lake of its own."""
        store = MemoryStore(f"{self.folder.name}-clone")
        for _ in range(2):  # idempotent
            assert self.lake.shallow_clone(store, version) == version
        return self._at(store)

    def changes(self, rows):
        return self.lake.write_changes(f"{id(rows):x}", wal_rows(rows, self.schema))


class OnFragments:
    """What weir does with fragments, whichever lake holds them."""

    def changes(self, rows):
        table = wal_rows(rows, self.schema)
        marks = table.column(TOMBSTONE)
        live = table.filter(pc.invert(marks)).select(["k", "v"])
        gone = table.filter(marks).select(["k"])
        return fold.fold_rows(self.lake.open_base(), live, gone, SYSTEM)


class Fragments(OnFragments):
    """The model with fragments behind the same interface."""

    def __init__(self, _folder, *, keyed):
        self.schema = small_schema(keyed=keyed)
        self.lake = FragmentLake(MemoryStore(), self.schema, SYSTEM)
        self.lake.create_base()

    def plain_change(self, who, gone, rows):
        table = pa.table(
            [pa.array([row[i] for row in rows], pa.int64()) for i in range(2)],
            schema=self.schema.plain,
        )
        self.lake.plain_change(who, gone, table)


class Lance(OnFragments):
    """pylance behind the same interface."""

    def __init__(self, folder, *, keyed):
        self.folder = folder
        uri = str(folder / "table")
        store = open_store(uri)
        self.lake = PylanceLake(uri, None, store)
        plain = small_schema(keyed=keyed).plain
        made = adopt.create_base(uri, plain, ["k"] if keyed else [], None)
        adopt.initialize_mem_wal(made, {})
        self.schema = self.lake.open_base().schema

    def plain_change(self, _who, gone, rows):
        if gone:
            lance.dataset(self.lake.uri).delete(f"k in ({', '.join(map(str, gone))})")
        if rows:
            columns = [pa.array([row[i] for row in rows], pa.int64()) for i in range(2)]
            table = pa.table(columns, schema=lance.dataset(self.lake.uri).schema)
            lance.write_dataset(table, self.lake.uri, mode="append")

    def clone(self, version):
        """A clone of that version, as a lake of its own."""
        store = open_store(str(self.folder / "clone"))
        for _ in range(2):  # idempotent
            assert self.lake.shallow_clone(store, version) == version
        return PylanceLake(store.uri, None, store)


def wal_rows(rows, schema):
    """(key, value) pairs; a value None is a delete."""
    columns = [
        pa.array([k for k, _ in rows], pa.int64()),
        pa.array([v for _, v in rows], pa.int64()),
        pa.array([v is None for _, v in rows]),
    ]
    return pa.Table.from_arrays(columns, schema=schema.wal)


def pairs(batches):
    return sorted((row["k"], row["v"]) for batch in batches for row in batch.to_pylist())


@pytest.fixture(params=[Model, Lance], ids=["model", "lance"])
def whole(request, tmp_path):
    """The lakes that make clones and change the sharding."""
    return request.param(tmp_path, keyed=True)


@pytest.fixture(params=[Fragments, Lance], ids=["fragments", "lance"], name="shared")
def _shared(request, tmp_path):
    """The lakes whose base other programs change."""
    return request.param(tmp_path, keyed=True)


@pytest.fixture(params=[Model, Fragments, Lance], ids=["model", "fragments", "lance"])
def keyed(request, tmp_path):
    return request.param(tmp_path, keyed=True)


@pytest.fixture(params=[Model, Fragments, Lance], ids=["model", "fragments", "lance"])
def keyless(request, tmp_path):
    return request.param(tmp_path, keyed=False)


def commit(side, rows, claim, fold_id):
    planned = side.lake.open_base().version
    changes = side.changes(rows)
    return side.lake.commit_fold(
        changes, claim=claim, planned_at=planned, fold_id=fold_id, properties={"why": "test"}
    )


def claim(side, token):
    return fold.BaseFence(token, side.lake.fence_base(token))


def test_an_sstable_keeps_the_newest_row_of_each_key_and_its_deletes(keyed):
    batches = wal_rows([(1, 1), (2, 2), (1, 3), (2, None)], keyed.schema).to_batches()
    keyed.lake.write_sstable(SHARD, "0123abcd_gen_1", batches, keyed.schema)
    table = keyed.lake.open_sstable(SHARD, "0123abcd_gen_1", keyed.schema)
    rows = pa.Table.from_batches(table.scan())
    found = zip(*(rows[name].to_pylist() for name in ("k", "v", TOMBSTONE)), strict=True)
    assert sorted(found) == [(1, 3, False), (2, None, True)]
    keys = pa.table({"k": pa.array([2, 9], pa.int64())})
    assert table.lookup(keys)["k"].to_pylist() == [2]


def test_an_sstable_without_a_key_keeps_every_row(keyless):
    batches = wal_rows([(1, 1), (1, 1), (2, 2)], keyless.schema).to_batches()
    keyless.lake.write_sstable(SHARD, "0123abcd_gen_1", batches, keyless.schema)
    table = keyless.lake.open_sstable(SHARD, "0123abcd_gen_1", keyless.schema)
    assert pairs(table.scan(["k", "v"])) == [(1, 1), (1, 1), (2, 2)]


def test_parts_of_an_sstable_are_its_rows_in_order(keyless):
    batches = wal_rows([(n, n) for n in range(5)], keyless.schema).to_batches()
    keyless.lake.write_sstable(SHARD, "0123abcd_gen_1", batches, keyless.schema)
    table = keyless.lake.open_sstable(SHARD, "0123abcd_gen_1", keyless.schema)
    parts = [table.part((offset, 2)) for offset in (0, 2, 4)]
    assert [pairs(part.scan(["k", "v"])) for part in parts] == [
        [(0, 0), (1, 1)],
        [(2, 2), (3, 3)],
        [(4, 4)],
    ]
    assert all(part.rows >= 1 for part in parts)


def test_commits_are_told_newest_first_with_what_they_say(keyed):
    before = keyed.lake.open_base().version
    mine = claim(keyed, "me")
    folded = commit(keyed, [(1, 1)], mine, "a")
    commits = list(keyed.lake.commits(after=before))
    assert [c.version for c in commits] == sorted((c.version for c in commits), reverse=True)
    assert {c.version: c.properties.get(fold_commit.FOLD) for c in commits}[folded] == "a"
    assert keyed.lake.find_commit(fence.FENCE, "me", after=before) == mine.fenced_at
    assert keyed.lake.find_commit(fence.FENCE, "me", after=mine.fenced_at) is None
    assert not any(c.is_restore for c in commits)
    keyed.lake.restore(before, "a checkpoint")
    assert next(iter(keyed.lake.commits(after=before))).is_restore


def test_a_fold_replaces_deletes_and_adds(keyed):
    mine = claim(keyed, "me")
    commit(keyed, [(1, 1), (2, 2), (3, 3)], mine, "a")
    commit(keyed, [(1, 10), (2, None), (4, 4)], mine, "b")
    assert pairs(keyed.lake.open_base().scan()) == [(1, 10), (3, 3), (4, 4)]
    assert keyed.lake.open_base().count() == 3


def test_a_fold_is_committed_once_whoever_asks_again(keyless):
    mine = claim(keyless, "me")
    planned = keyless.lake.open_base().version
    changes = keyless.changes([(1, 1)])
    made = [
        keyless.lake.commit_fold(
            changes, claim=mine, planned_at=planned, fold_id="a", properties={}
        )
        for _ in range(2)
    ]
    assert made[0] == made[1]
    assert pairs(keyless.lake.open_base().scan()) == [(1, 1)]
    assert keyless.lake.find_commit(fold_commit.FOLD, "a", after=planned) == made[0]


def test_l4_a_fold_planned_before_a_fence_is_dead(keyed):
    mine = claim(keyed, "me")
    planned = keyed.lake.open_base().version
    changes = keyed.changes([(1, 1)])
    claim(keyed, "other")
    with pytest.raises(CommitConflict):
        keyed.lake.commit_fold(changes, claim=mine, planned_at=planned, fold_id="a", properties={})
    assert keyed.lake.open_base().count() == 0


def test_l4_a_fold_planned_after_a_foreign_fence_is_dead_too(keyed):
    mine = claim(keyed, "me")
    claim(keyed, "other")
    with pytest.raises(CommitConflict):
        commit(keyed, [(1, 1)], mine, "a")


def test_marks_rise_and_never_fall(keyed):
    keyed.lake.mark_compacted({SHARD: 3})
    assert keyed.lake.mark_compacted({SHARD: 2}) is None
    assert keyed.lake.open_base().compacted == {SHARD: 3}


def test_l7_a_fold_counts_from_its_commit_on(keyless):
    mine = claim(keyless, "me")
    planned = keyless.lake.open_base().version
    changes = keyless.changes([(1, 1)])
    assert keyless.lake.open_base().compacted.get(SHARD, 0) == 0
    keyless.lake.commit_fold(
        changes, claim=mine, planned_at=planned, fold_id="a", properties={}, folded={SHARD: 2}
    )
    assert keyless.lake.open_base().compacted == {SHARD: 2}
    assert keyless.lake.open_base().marked.get(SHARD, 0) == 0
    keyless.lake.mark_compacted({SHARD: 2})
    assert keyless.lake.open_base().compacted == keyless.lake.open_base().marked == {SHARD: 2}


def test_old_versions_stay_readable_and_protected_ones_survive_clean_up(keyed):
    mine = claim(keyed, "me")
    first = commit(keyed, [(1, 1)], mine, "a")
    commit(keyed, [(1, 2)], mine, "b")
    assert pairs(keyed.lake.open_base(first).scan()) == [(1, 1)]
    keyed.lake.protect_version("weir-test", first)
    assert keyed.lake.protected_versions()["weir-test"] == first
    keyed.lake.check_version(first)
    keyed.lake.release_version("weir-test")
    assert "weir-test" not in keyed.lake.protected_versions()


def test_a_restore_brings_back_rows_and_marks(keyed):
    mine = claim(keyed, "me")
    first = commit(keyed, [(1, 1)], mine, "a")
    commit(keyed, [(1, 2), (2, 2)], mine, "b")
    keyed.lake.mark_compacted({SHARD: 3})
    version = keyed.lake.restore(first, "a checkpoint")
    base = keyed.lake.open_base()
    assert base.version == version > first
    assert pairs(base.scan()) == [(1, 1)]
    assert base.compacted.get(SHARD, 0) == 0


def test_l4_a_fold_planned_before_a_restore_is_dead(keyed):
    mine = claim(keyed, "me")
    first = commit(keyed, [(1, 1)], mine, "a")
    planned = keyed.lake.open_base().version
    changes = keyed.changes([(1, 2)])
    keyed.lake.restore(first, "a checkpoint")
    with pytest.raises(CommitConflict):
        keyed.lake.commit_fold(changes, claim=mine, planned_at=planned, fold_id="b", properties={})
    assert pairs(keyed.lake.open_base().scan()) == [(1, 1)]


def test_a_shallow_clone_is_that_version_and_stays_it(whole):
    mine = claim(whole, "me")
    first = commit(whole, [(1, 1), (2, 2)], mine, "a")
    whole.lake.mark_compacted({SHARD: 2})
    copy = whole.clone(first)
    commit(whole, [(1, 10)], mine, "b")
    assert copy.open_base().version == first
    assert pairs(copy.open_base().scan()) == [(1, 1), (2, 2)]
    copy.fence_base("its own")
    assert pairs(copy.open_base().scan()) == [(1, 1), (2, 2)]
    assert pairs(whole.lake.open_base().scan()) == [(1, 10), (2, 2)]


def test_c11_the_sharding_is_replaced_once(whole):
    base = whole.lake.open_base()
    details = replace(base.mem_wal, sharding_specs=(ShardingSpec(7, (FIELD,)),))
    told = {"planned_at": base.version, "properties": {"weir.routing": "2"}}
    version = whole.lake.replace_mem_wal(details, **told)
    assert [spec.spec_id for spec in whole.lake.open_base().mem_wal.sharding_specs] == [7]
    assert whole.lake.find_commit("weir.routing", "2", after=base.version) == version
    with pytest.raises(CommitConflict):
        whole.lake.replace_mem_wal(details, **told)


def test_l8_a_fold_hides_what_others_brought(shared):
    mine = claim(shared, "me")
    commit(shared, [(1, 1), (2, 2), (3, 3)], mine, "a")
    planned = shared.lake.open_base().version
    changes = shared.changes([(1, 10), (4, 40)])
    shared.plain_change("b", [2], [(4, 7), (9, 9)])
    looked_at = []

    def hide(version, fragments):
        looked_at.append(version)
        base = shared.lake.open_base(version)
        keys = pa.table({"k": pa.array([1, 4], pa.int64())})
        wanted = fold.key_set(base, keys)
        return fold.combine(fold.delete_keys_in_fragment(base, f, wanted) for f in fragments)

    told = {"claim": mine, "planned_at": planned, "properties": {}}
    with pytest.raises(CommitConflict):
        shared.lake.commit_fold(changes, fold_id="c", **told)
    shared.lake.commit_fold(changes, fold_id="c", hide=hide, **told)
    assert looked_at
    assert pairs(shared.lake.open_base().scan()) == [(1, 10), (3, 3), (4, 40), (9, 9)]


def test_l7_files_are_rewritten_and_what_a_fold_says_stays(shared):
    mine = claim(shared, "me")
    commit(shared, [(1, 1), (2, 2)], mine, "a")
    planned = shared.lake.open_base().version
    changes = shared.changes([(1, 10), (3, 3)])
    shared.lake.commit_fold(
        changes, claim=mine, planned_at=planned, fold_id="b", properties={}, folded={SHARD: 2}
    )
    before = len(shared.lake.open_base().fragments())
    if isinstance(shared.lake, PylanceLake):
        lance.dataset(shared.lake.uri).optimize.compact_files(target_rows_per_fragment=1000)
    else:
        shared.lake.compact_files()
    assert len(shared.lake.open_base().fragments()) == 1 < before
    shared.plain_change("c", [3], [(5, 5)])
    assert shared.lake.open_base().compacted == {SHARD: 2}
    assert pairs(shared.lake.open_base().scan()) == [(1, 10), (2, 2), (5, 5)]
