"""Folding: the right rows, in one commit, exactly once."""

import uuid
from collections.abc import Sequence
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.lake.conftest import SCHEMA, MakeLake, compact_files, content, table
from weir.env import SYSTEM
from weir.errors import CommitConflict, InvalidInput, StoreError
from weir.keys.keyset import KeySet
from weir.lake.api import Base
from weir.lake.base import adopt, fold, fold_commit
from weir.lake.pylance_lake import PylanceLake
from weir.store.open import open_store

SHARD = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
OLD = table({1: "a", 2: "b", 3: "c", 4: "d", 5: "e", 6: "f"})
NONE = SCHEMA.empty_table()


def fold_local(
    lake: PylanceLake, upserts: pa.Table, deletes: pa.Table = NONE, **kwargs: Any
) -> int:
    """Run both steps of a fold in this process: one base commit, then the marks."""
    marks = kwargs.pop("marks", {})
    claim = fold.BaseFence("me", lake.fence_base("me"))
    planned = kwargs.pop("base", None) or lake.open_base()
    version = lake.commit_fold(
        fold.fold_rows(planned, upserts, deletes, SYSTEM),
        claim=claim,
        planned_at=planned.version,
        fold_id=kwargs.pop("fold_id", uuid.uuid4().hex),
        properties=kwargs.pop("properties", {}),
        folded=marks,
        **kwargs,
    )
    lake.mark_compacted(marks)
    return version


@pytest.mark.parametrize("index", [None, "BTREE"])
@pytest.mark.parametrize("enable_stable_row_ids", [False, True])
def test_deletes_and_upserts_are_one_commit(
    make_lake: MakeLake, index: Any, *, enable_stable_row_ids: bool
) -> None:
    lake = make_lake(rows=OLD, enable_stable_row_ids=enable_stable_row_ids)
    if index:
        lance.dataset(lake.uri).create_scalar_index("id", index)
    version = fold_local(
        lake,
        table({2: "B", 9: "I"}),
        table({1: None, 77: None}),
        marks={SHARD: 4},
        properties={"weir.progress": "{}"},
        fold_id="the fold",
    )
    expected = [(2, "B"), (3, "c"), (4, "d"), (5, "e"), (6, "f"), (9, "I")]
    assert content(lake) == expected
    base = lake.open_base()
    assert base.compacted == {SHARD: 4}
    # The version before the mark holds the whole fold, the one before that none of it.
    assert base.version == version + 1
    assert lake.open_base(version).count() == 6
    assert lake.open_base(version - 1).count() == 6
    assert lake.open_base(version - 1).lookup(pa.table({"id": [1]})).num_rows == 1
    said = next(lake.commits(after=version - 1, until=version)).properties
    assert said == {"weir.progress": "{}", fold_commit.FOLD: "the fold"}
    assert lake.find_commit(fold_commit.FOLD, "the fold", after=1) == version
    assert lake.find_commit(fold_commit.FOLD, "the fold", after=version) is None
    for key, value in expected:
        assert base.lookup(pa.table({"id": [key]})).to_pylist() == [{"id": key, "v": value}]


def test_pieces_on_executors_equal_the_fold_in_one_process(make_lake: MakeLake) -> None:
    lake, other = make_lake(rows=OLD, rows_per_file=2), make_lake(rows=OLD, rows_per_file=2)
    upserts, deletes = table({2: "B", 9: "I"}), pa.table({"id": [5, 6, 77]})
    fold_local(other, upserts, table({5: None, 6: None, 77: None}))
    mine = fold.BaseFence("me", lake.fence_base("me"))
    base = lake.open_base()
    keys = fold.key_set(
        base, pa.concat_tables([upserts.select(["id"]).cast(deletes.schema), deletes])
    )
    parts = [fold.delete_keys_in_fragment(base, i, keys) for i, _ in base.fragments()]
    parts.append(fold.write_rows(base, upserts.to_batches(max_chunksize=1), rows_per_file=1))
    # A task's result travels as text.
    changes = fold.VersionEdit.from_json(fold.combine(parts).to_json())
    assert [len(changes.updated), list(changes.removed), len(changes.added)] == [1, [2], 2]
    lake.commit_fold(changes, claim=mine, planned_at=base.version, fold_id="f", properties={})
    assert content(lake) == content(other)


@given(
    old=st.dictionaries(st.integers(0, 30), st.sampled_from("abc"), max_size=20),
    new=st.dictionaries(st.integers(0, 30), st.sampled_from("xyz"), max_size=20),
    gone=st.sets(st.integers(0, 30)),
)
@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_a_fold_equals_the_dictionary_model(
    make_lake: MakeLake, old: dict[int, str], new: dict[int, str], gone: set[int]
) -> None:
    lake = make_lake(rows=table(dict(old)) if old else None, rows_per_file=5)
    deletes = table(dict.fromkeys(gone - new.keys()))
    fold_local(lake, table(dict(new)), deletes)
    model = {k: v for k, v in {**old, **new}.items() if k in new or k not in gone}
    assert content(lake) == sorted(model.items())


@pytest.mark.parametrize(
    "dtype", [pa.utf8(), pa.large_binary(), pa.uint64(), pa.int8(), pa.bool_()]
)
def test_every_kind_of_key_is_found(make_lake: MakeLake, dtype: pa.DataType) -> None:
    values = {
        pa.bool_(): [True, False],
        pa.utf8(): ["a", "b'", "", "日"],
        pa.large_binary(): [b"a", b"\x00", b"", b"z"],
    }.get(dtype, [0, 1, 2, 100])
    schema = pa.schema([pa.field("k", dtype, nullable=False), pa.field("v", pa.int32())])
    rows = pa.table({"k": pa.array(values, dtype), "v": range(len(values))}, schema=schema)
    for in_pieces in (False, True):
        lake = make_lake(schema, ("k",), rows)
        base = lake.open_base()
        keys = rows.select(["k"]).slice(0, 1)
        if in_pieces:
            changes = fold.delete_keys_in_fragment(base, 0, fold.key_set(base, keys))
        else:
            changes = fold.delete_keys(base, keys, SYSTEM)
        mine = fold.BaseFence("me", lake.fence_base("me"))
        with pytest.raises(InvalidInput, match="before its own fence"):
            lake.commit_fold(
                changes, claim=mine, planned_at=base.version, fold_id="f", properties={}
            )
        lake.commit_fold(changes, claim=mine, planned_at=mine.fenced_at, fold_id="f", properties={})
        left = pa.Table.from_batches(lake.open_base().scan(["k"])).column("k").to_pylist()
        assert left == values[1:]


def test_composite_keys(make_lake: MakeLake) -> None:
    schema = pa.schema(
        [
            pa.field("a", pa.utf8(), nullable=False),
            pa.field("b", pa.int32(), nullable=False),
            pa.field("v", pa.int32()),
        ]
    )
    rows = pa.table({"a": ["x", "x", "y"], "b": [1, 2, 1], "v": [1, 2, 3]}, schema=schema)
    for in_pieces in (False, True):
        lake = make_lake(schema, ("b", "a"), rows)
        upserts = pa.table({"a": ["x", "y"], "b": [2, 2], "v": [20, 40]}, schema=schema)
        if in_pieces:
            mine = fold.BaseFence("me", lake.fence_base("me"))
            base = lake.open_base()
            keys = fold.key_set(base, upserts)
            parts = [fold.delete_keys_in_fragment(base, 0, keys), fold.write_rows(base, upserts)]
            lake.commit_fold(
                fold.combine(parts),
                claim=mine,
                planned_at=base.version,
                fold_id="f",
                properties={},
            )
        else:
            fold_local(lake, upserts, upserts.slice(0, 0))
        found = lake.open_base().lookup(pa.table({"b": [2, 2, 1], "a": ["x", "y", "x"]}), ["v"])
        assert sorted(found.column("v").to_pylist()) == [1, 20, 40]
        assert lake.open_base().count() == 4


def test_l4_append_only_rows_are_never_doubled(make_lake: MakeLake) -> None:
    lake = make_lake(SCHEMA, (), OLD)
    mine = fold.BaseFence("me", lake.fence_base("me"))
    base = lake.open_base()
    changes = fold.fold_rows(base, table({7: "g"}), NONE, SYSTEM)
    versions = {
        lake.commit_fold(
            changes, claim=mine, planned_at=base.version, fold_id="once", properties={}
        )
        for _ in range(3)
    }
    assert len(versions) == 1
    assert lake.open_base().count() == 7
    with pytest.raises(InvalidInput, match="no primary key"):
        fold.fold_rows(base, NONE, table({1: None}), SYSTEM)


class _Flaky:
    """Stands in for `LanceDataset.commit`: fails once, before or after the commit."""

    def __init__(self, *, applies: bool) -> None:
        self._real = lance.LanceDataset.commit
        self._applies = applies
        self._failed = False
        self.lost: tuple[Any, ...] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        is_fold = fold_commit.FOLD in (args[1].transaction_properties or {})
        if self._failed or not is_fold:
            return self._real(*args, **kwargs)
        self._failed = True
        self.lost = args
        if self._applies:
            self._real(*args, **kwargs)
        raise OSError("error sending request: connection reset")


@pytest.mark.parametrize("key", [("id",), ()])
def test_l4_a_lost_answer_is_settled_by_looking(
    make_lake: MakeLake, monkeypatch: pytest.MonkeyPatch, key: tuple[str, ...]
) -> None:
    lake = make_lake(SCHEMA, key, OLD)
    monkeypatch.setattr(lance.LanceDataset, "commit", _Flaky(applies=True))
    fold_local(lake, table({7: "g"}))
    assert lake.open_base().count() == 7


@pytest.mark.parametrize("key", [("id",), ()])
def test_l4_a_commit_that_never_arrived_cannot_arrive_later(
    make_lake: MakeLake, monkeypatch: pytest.MonkeyPatch, key: tuple[str, ...]
) -> None:
    lake = make_lake(SCHEMA, key, OLD)
    flaky = _Flaky(applies=False)
    monkeypatch.setattr(lance.LanceDataset, "commit", flaky)
    with pytest.raises(StoreError, match="connection reset"):
        fold_local(lake, table({7: "g"}))
    assert lake.open_base().count() == 6
    with pytest.raises(OSError, match="preempted"):
        flaky(*flaky.lost)
    assert lake.open_base().count() == 6


def test_commits_of_others_between_plan_and_commit(make_lake: MakeLake) -> None:
    lake = make_lake(rows=OLD)
    mine = fold.BaseFence("me", lake.fence_base("me"))
    base = lake.open_base()
    changes = fold.fold_rows(base, table({1: "A"}), NONE, SYSTEM)
    stored = pa.Table.from_arrays(table({50: "x"}).columns, schema=base.dataset.schema)
    lance.write_dataset(stored, lake.uri, mode="append")
    lance.dataset(lake.uri).create_scalar_index("id", "BTREE")
    asked: list[list[int]] = []

    def hide(version: int, fragments: Sequence[int]) -> fold.VersionEdit:
        asked.append(list(fragments))
        newer = lake.open_base(version)
        keys = fold.key_set(newer, table({2: None}))
        return fold.combine(fold.delete_keys_in_fragment(newer, f, keys) for f in fragments)

    def commit(planned: Base, changes: fold.VersionEdit, fold_id: str, **how: Any) -> None:
        lake.commit_fold(
            changes, claim=mine, planned_at=planned.version, fold_id=fold_id, properties={}, **how
        )

    commit(base, changes, "f", hide=hide)
    assert (1, "A") in content(lake)
    assert (50, "x") in content(lake)
    assert asked == [[2]], "only the fragment that came since is looked at"

    base = lake.open_base()
    changes = fold.fold_rows(base, table({2: "B"}), NONE, SYSTEM)
    compact_files(lake)
    with pytest.raises(CommitConflict, match="another program changed rows"):
        commit(base, changes, "g")
    assert (2, "b") in content(lake)
    commit(base, changes, "g", hide=hide)
    assert (2, "B") in content(lake)
    assert (2, "b") not in content(lake)


def test_marks_rise_and_may_be_repeated(make_lake: MakeLake) -> None:
    for key in (("id",), ()):
        lake = make_lake(SCHEMA, key, OLD)
        other = uuid.uuid4()
        assert lake.mark_compacted({SHARD: 2, other: 1}) == lake.open_base().version
        assert lake.mark_compacted({SHARD: 2}) is None
        assert lake.mark_compacted({SHARD: 1}) is None
        lake.mark_compacted({SHARD: 3, other: 1})
        assert lake.open_base().compacted == {SHARD: 3, other: 1}
        assert lake.open_base().count() == 6


def test_marks_need_the_index(tmp_path: Any) -> None:
    uri = str(tmp_path / "t")
    lake = PylanceLake(uri, None, open_store(uri))
    adopt.create_base(uri, SCHEMA, ("id",), None)
    with pytest.raises(InvalidInput, match="no MemWAL index"):
        lake.mark_compacted({SHARD: 1})


def test_a_handle_in_use_never_moves(make_lake: MakeLake) -> None:
    """Lance's mutating calls advance the handle they are called on; a reader must not notice."""
    lake = make_lake(rows=OLD)
    base = lake.open_base()
    version = base.version
    fold_local(lake, table({1: "A"}), marks={SHARD: 1})
    compact_files(lake)
    lake.restore(version, "a checkpoint")
    assert base.version == version
    assert base.dataset.version == version


def test_folding_into_a_shallow_clone(make_lake: MakeLake, tmp_path: Any) -> None:
    lake = make_lake(rows=OLD)
    lance.dataset(lake.uri).delete("id = 3")
    parent = content(lake)
    uri = str(tmp_path / "clone")
    lake.shallow_clone(open_store(uri), lake.open_base().version)
    clone = PylanceLake(uri, None, open_store(uri))
    fold_local(clone, table({1: "A", 8: "H"}), table({2: None}))
    assert content(clone) == [(1, "A"), (4, "d"), (5, "e"), (6, "f"), (8, "H")]
    assert content(lake) == parent
    mine = fold.BaseFence("me", clone.fence_base("me"))
    base = clone.open_base()
    keys = fold.key_set(base, pa.table({"id": [4, 5]}))
    parts = [fold.delete_keys_in_fragment(base, i, keys) for i, _ in base.fragments()]
    clone.commit_fold(
        fold.combine(parts), claim=mine, planned_at=base.version, fold_id="f", properties={}
    )
    assert content(clone) == [(1, "A"), (6, "f"), (8, "H")]
    assert content(lake) == parent


def test_an_empty_fold_still_leaves_its_properties(make_lake: MakeLake) -> None:
    lake = make_lake(rows=OLD)
    version = fold_local(lake, NONE, NONE, fold_id="empty", properties={"p": "1"})
    assert lake.find_commit("p", "1", after=1) == version
    assert lake.open_base().count() == 6


def test_key_set_tells_keys_with_one_hash_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    import weir.keys.numbers as module

    monkeypatch.setattr(module, "_hashes", lambda keys: np.zeros(len(keys), np.int64))
    keys = KeySet.of([pa.array(["a"]), pa.array(["b"])], pa.utf8())
    assert keys.find(pa.array(["b", "c", "a", "d"])).tolist() == [0, 2]
