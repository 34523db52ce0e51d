"""L-4: a compactor that lost its claim cannot commit, whatever it planned and whenever it wakes."""

import threading
import uuid
from typing import Any

import lance
import pytest

from tests.unit.lake.conftest import SCHEMA, MakeLake, content, table
from weir.env import SYSTEM
from weir.errors import CommitConflict, InvalidInput
from weir.lake.base import adopt, fold
from weir.lake.pylance_lake import PylanceLake
from weir.store.open import lance_options, open_store

OLD = table({1: "a", 2: "b", 3: "c", 4: "d", 5: "e", 6: "f"})
NEW = table({5: "E", 7: "G"})
NO_DELETES = SCHEMA.empty_table()

KINDS = {
    "keyed": (("id",), OLD),
    "keyed and empty": (("id",), None),
    "append-only": ((), OLD),
    "append-only and empty": ((), None),
}


def claim(lake: PylanceLake, token: str) -> fold.BaseFence:
    return fold.BaseFence(token, lake.fence_base(token))


def commit(lake: PylanceLake, planned: Any, who: fold.BaseFence, fold_id: str = "f") -> int:
    base, changes = planned
    return lake.commit_fold(
        changes, claim=who, planned_at=base.version, fold_id=fold_id, properties={"weir.x": "1"}
    )


def plan(lake: PylanceLake) -> Any:
    base = lake.open_base()
    return base, fold.fold_rows(base, NEW, NO_DELETES, SYSTEM)


@pytest.mark.parametrize("kind", KINDS)
def test_l4_a_fold_planned_before_a_fence_is_never_committed(
    make_lake: MakeLake, kind: str
) -> None:
    key, rows = KINDS[kind]
    lake = make_lake(SCHEMA, key, rows)
    old = claim(lake, "old")
    planned = plan(lake)
    before = content(lake)
    new = claim(lake, "new")
    with pytest.raises(CommitConflict, match="another compactor fenced"):
        commit(lake, planned, old)
    assert content(lake) == before
    assert commit(lake, plan(lake), new) == lake.open_base().version


@pytest.mark.parametrize("kind", KINDS)
def test_l4_without_a_fence_the_same_fold_would_be_committed(
    make_lake: MakeLake, kind: str
) -> None:
    """The control: the fence stops the fold, not the commits in between."""
    key, rows = KINDS[kind]
    lake = make_lake(SCHEMA, key, rows)
    old = claim(lake, "old")
    planned = plan(lake)
    lance.write_dataset(planned[0].dataset.schema.empty_table(), lake.uri, mode="append")
    lance.dataset(lake.uri).update_config({"a": "b"})
    commit(lake, planned, old)
    assert (7, "G") in content(lake)


def test_l4_a_plan_made_after_a_foreign_fence_is_refused(make_lake: MakeLake) -> None:
    lake = make_lake(rows=OLD)
    old = claim(lake, "old")
    claim(lake, "new")
    with pytest.raises(CommitConflict, match="another compactor fenced"):
        commit(lake, plan(lake), old)
    assert content(lake) == sorted(zip(*OLD.to_pydict().values(), strict=True))


def test_l4_own_fences_and_folds_do_not_stop_the_claimant(make_lake: MakeLake) -> None:
    lake = make_lake(rows=OLD)
    mine = claim(lake, "me")
    lake.fence_base("me")
    commit(lake, plan(lake), mine, "one")
    commit(lake, plan(lake), mine, "two")
    assert content(lake)[-3:] == [(5, "E"), (6, "f"), (7, "G")]


def test_a_fence_changes_no_row_and_keeps_indexes(make_lake: MakeLake) -> None:
    lake = make_lake(rows=OLD, enable_stable_row_ids=True)
    lance.dataset(lake.uri).create_scalar_index("id", "BTREE")
    lance.dataset(lake.uri).delete("id = 2")
    before = lake.open_base().dataset.to_table(with_row_id=True)
    lake.fence_base("me")
    after = lake.open_base()
    assert after.dataset.to_table(with_row_id=True).equals(before)
    assert [index.name for index in lake.indexes()] == ["id_idx"]
    assert after.mem_wal is not None
    assert "ScalarIndexQuery" in after.dataset.scanner(filter="id = 3").explain_plan()


def test_a_fence_needs_a_token(make_lake: MakeLake) -> None:
    with pytest.raises(InvalidInput, match="token"):
        make_lake().fence_base("")


def test_a_fence_goes_around_appends_of_others(
    make_lake: MakeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = make_lake(rows=OLD)
    latest = lake.datasets.latest
    appends = iter(range(3))

    def latest_then_append() -> lance.LanceDataset:
        dataset = latest()
        if next(appends, None) is not None:
            lance.write_dataset(dataset.to_table(limit=1), lake.uri, mode="append")
        return dataset

    monkeypatch.setattr(lake.datasets, "latest", latest_then_append)
    assert lake.fence_base("me") == lake.open_base().version
    assert lake.open_base().count() == 9


def test_l4_racing_claimants_each_fold_at_most_once(make_lake: MakeLake) -> None:
    lake = make_lake(SCHEMA, ())
    claim_lock = threading.Lock()
    landed: list[int] = []

    def run(number: int) -> None:
        mine = PylanceLake(lake.uri, None, open_store(lake.uri))
        for attempt in range(3):
            token = f"{number}-{attempt}"
            with claim_lock:  # stands in for the claim record, won by compare-and-swap
                who = claim(mine, token)
            base = mine.open_base()
            changes = fold.write_rows(base, table({number: token}))
            try:
                landed.append(commit(mine, (base, changes), who, token))
            except CommitConflict:
                continue

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lake.open_base().count() == len(landed) == len(set(landed)) >= 1


@pytest.mark.parametrize("rows", [OLD, None])
def test_l4_fence_on_s3(s3: Any, rows: Any) -> None:
    uri, options = f"s3://weir-test/{uuid.uuid4().hex}", s3.storage_options()
    lake = PylanceLake(uri, lance_options(uri, options), open_store(uri, options))
    made = adopt.create_base(uri, SCHEMA, (), lance_options(uri, options))
    adopt.initialize_mem_wal(made, {})
    if rows is not None:
        mine = claim(lake, "first")
        base = lake.open_base()
        commit(lake, (base, fold.write_rows(base, rows)), mine, "first")
    old = claim(lake, "old")
    planned = plan(lake)
    claim(lake, "new")
    with pytest.raises(CommitConflict):
        commit(lake, planned, old)
    assert lake.open_base().count() == (0 if rows is None else len(rows))
