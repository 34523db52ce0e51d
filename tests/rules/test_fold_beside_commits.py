"""L-7, L-8: other commits to the base between two steps of a fold neither double nor lose rows.

They come from plain Lance programs, which know nothing of weir, and from weir's own tidying.
"""

import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import weir
from simulator.steps import watched
from weir.env import Env
from weir.errors import CommitConflict, WeirError
from weir.upkeep.compact.run import compact

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.utf8())])
Rows = Counter[tuple[int, str | None]]


def make(tmp_path: Path, *, keyed: bool, name: str | None = None) -> weir.Table:
    return weir.create(
        str(tmp_path / (name or uuid.uuid4().hex)),
        SCHEMA,
        primary_key="id" if keyed else None,
        sharding=weir.Bucket("id", 2),
    )


def put(table: weir.Table, rows: dict[int, str]) -> None:
    with table.writer() as writer:
        writer.put([{"id": k, "v": v} for k, v in rows.items()])


def rows_of(table: weir.Table, **kwargs: Any) -> Rows:
    return Counter((r["id"], r["v"]) for r in table.scan(**kwargs).to_table().to_pylist())


def rewrite_files(table: weir.Table) -> None:
    lance.dataset(table.uri).optimize.compact_files(target_rows_per_fragment=1_000_000)


def tidy(table: weir.Table) -> None:
    lance.dataset(table.uri).optimize.compact_files(target_rows_per_fragment=1_000_000)


def drop_a_column(table: weir.Table) -> None:
    rewrite_files(table)
    lance.dataset(table.uri).drop_columns(["v"])


def at(step: str, act: Callable[[], None]) -> Callable[[str], None]:
    def pause(now: str) -> None:
        if now == step:
            act()

    return pause


@pytest.mark.parametrize("others", [rewrite_files, tidy])
def test_l7_a_fold_is_known_although_others_rewrite_its_files(
    tmp_path: Path, others: Callable[[weir.Table], None]
) -> None:
    """Append-only rows are counted once in the live table, in a checkpoint and in a clone."""
    table = make(tmp_path, keyed=False)
    put(table, dict.fromkeys(range(10), "a"))
    table.compact()
    put(table, dict.fromkeys(range(10), "b"))
    model = rows_of(table)
    pinned = []

    def look() -> None:
        others(table)
        reader = weir.open(table.uri)
        assert rows_of(reader) == model
        pinned.append(reader.checkpoint(scope="durable", name="between"))

    compact(watched(table.core, "compact", at("committed", look)))
    assert rows_of(table) == rows_of(table, freshness="base") == model
    put(table, {100: "late"})
    table.compact()
    assert rows_of(table, checkpoint=pinned[0]) == model
    copy = table.clone(str(tmp_path / "copy"), checkpoint=pinned[0])
    assert rows_of(copy) == model
    copy.compact()
    assert rows_of(copy) == rows_of(copy, freshness="base") == model


def test_l7_what_a_fold_says_of_itself_outlives_a_dropped_column(tmp_path: Path) -> None:
    table = make(tmp_path, keyed=False)
    put(table, dict.fromkeys(range(10), "a"))

    def look() -> None:
        drop_a_column(table)
        assert weir.open(table.uri).scan().to_table().num_rows == 10

    compact(watched(table.core, "compact", at("committed", look)))
    assert table.scan().to_table().num_rows == 10


def one(key: int, value: str) -> pa.Table:
    return pa.table({"id": pa.array([key], pa.int64()), "v": [value]}, schema=SCHEMA)


def upsert(table: weir.Table, key: int) -> None:
    merge = lance.dataset(table.uri).merge_insert("id")
    merge.when_matched_update_all().when_not_matched_insert_all().execute(one(key, "stranger"))


def restore(table: weir.Table) -> None:
    lance.dataset(table.uri, version=lance.dataset(table.uri).version).restore()


STRANGERS: dict[str, Callable[[weir.Table], Any]] = {
    "insert a new key": lambda t: lance.write_dataset(one(50, "stranger"), t.uri, mode="append"),
    "upsert a new key": lambda t: upsert(t, 50),
    "upsert an old key": lambda t: upsert(t, 3),
    "upsert another key": lambda t: upsert(t, 9),
    "update": lambda t: lance.dataset(t.uri).update({"v": "'stranger'"}, where="id < 5"),
    "delete": lambda t: lance.dataset(t.uri).delete("id = 3 or id = 9"),
    "delete all": lambda t: lance.dataset(t.uri).delete("true"),
    "compact": rewrite_files,
    "compact with an index": lambda t: (
        lance.dataset(t.uri).create_scalar_index("id", "BTREE"),
        upsert(t, 9),
        upsert(t, 8),
        rewrite_files(t),
    ),
    "restore": restore,
    "index": lambda t: lance.dataset(t.uri).create_scalar_index("v", "BTREE"),
    "add a column": lambda t: lance.dataset(t.uri).add_columns(pa.field("w", pa.int64())),
}


@pytest.mark.parametrize("stranger", STRANGERS)
@pytest.mark.parametrize("step", ["planned", "written"])
def test_l8_a_stranger_between_plan_and_commit_never_doubles_a_key(
    tmp_path: Path, stranger: str, step: str
) -> None:
    table = make(tmp_path, keyed=True)
    put(table, dict.fromkeys(range(10), "old"))
    table.compact()
    put(table, {**dict.fromkeys(range(8), "new"), 50: "new"})
    try:
        compact(watched(table.core, "compact", at(step, lambda: STRANGERS[stranger](table))))
    except CommitConflict:
        compact(weir.open(table.uri).core, lease=0)
    base = rows_of(table, freshness="base")
    assert base == rows_of(table)
    keys = Counter(key for key, _ in base.elements())
    assert max(keys.values()) == 1, "a key twice in the base"
    # weir's rows are newer than whatever is in the base.
    found = dict(base.keys())
    assert {k: found.get(k) for k in (*range(8), 50)} == {
        **dict.fromkeys(range(8), "new"),
        50: "new",
    }
    # Changes of the other program to other keys stay.
    untouched = {8: "old", 9: "old"}
    if stranger == "upsert another key":
        untouched[9] = "stranger"
    if stranger == "compact with an index":
        untouched = {8: "stranger", 9: "stranger"}
    if stranger == "delete":
        del untouched[9]
    if stranger == "delete all":
        untouched.clear()
    assert {k: v for k, v in found.items() if k in (8, 9)} == untouched


def test_l8_a_stranger_never_doubles_append_only_rows(tmp_path: Path) -> None:
    table = make(tmp_path, keyed=False)
    put(table, dict.fromkeys(range(10), "old"))
    table.compact()
    put(table, dict.fromkeys(range(10), "new"))
    model = rows_of(table) + Counter({(99, "stranger"): 1})

    def meddle() -> None:
        lance.write_dataset(one(99, "stranger"), table.uri, mode="append")
        rewrite_files(table)

    compact(watched(table.core, "compact", at("written", meddle)))
    assert rows_of(table) == rows_of(table, freshness="base") == model


def test_l8_a_merge_planned_before_a_fold_sees_its_rows(tmp_path: Path) -> None:
    """The reverse: Lance redoes another program's merge when a fold commits before it."""
    table = make(tmp_path, keyed=True)
    put(table, {1: "old"})
    table.compact()
    put(table, {50: "new"})
    late = lance.dataset(table.uri)
    table.compact()
    merge = late.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    merge.execute(one(50, "stranger"))
    assert rows_of(table) == Counter({(1, "old"): 1, (50, "stranger"): 1})


def test_l8_a_base_rolled_back_in_the_middle_is_planned_anew(tmp_path: Path) -> None:
    """A restore to before the last fold undoes its progress: no generation may be skipped, and
    the SSTables that are needed again still exist (X-4)."""
    table = make(tmp_path, keyed=True)
    before = lance.dataset(table.uri).version
    put(table, {1: "one"})
    table.compact()
    put(table, {2: "two"})

    def back() -> None:
        lance.dataset(table.uri, version=before).restore()

    with pytest.raises(CommitConflict, match="rolled back"):
        compact(watched(table.core, "compact", at("written", back)))
    compact(weir.open(table.uri).core, lease=0)
    assert rows_of(table) == Counter({(1, "one"): 1, (2, "two"): 1})


def test_l8_an_overwritten_base_is_not_folded_into(tmp_path: Path) -> None:
    table = make(tmp_path, keyed=True)
    put(table, {1: "one"})
    plain = one(7, "stranger")

    def overwrite() -> None:
        lance.write_dataset(plain, table.uri, mode="overwrite")

    with pytest.raises(WeirError, match="overwr"):
        compact(watched(table.core, "compact", at("written", overwrite)))
    assert lance.dataset(table.uri).to_table().to_pylist() == plain.to_pylist()


@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "appended"])
def test_l7_a_version_restored_from_the_middle_of_a_fold_is_marked_by_the_next(
    tmp_path: Path, *, keyed: bool
) -> None:
    """A Lance user restores it long after the fold: the marks for native readers are set again."""
    table = make(tmp_path, keyed=keyed)
    put(table, dict.fromkeys(range(20), "a"))
    committed = []

    def note(point: str) -> None:
        if point == "compact.committed":
            committed.append(lance.dataset(table.uri).version)

    weir.open(table.uri, env=Env(failpoint=note)).compact(fold_wal=True)
    before = rows_of(table)
    marked = weir.open(table.uri).core.base().mem_wal
    assert marked is not None
    assert marked.compacted
    lance.dataset(table.uri, version=committed[0]).restore()
    assert rows_of(weir.open(table.uri)) == before
    weir.open(table.uri).compact()
    again = weir.open(table.uri).core.base().mem_wal
    assert again is not None
    assert again.compacted == marked.compacted
    assert rows_of(weir.open(table.uri)) == before


def test_l8_a_key_that_the_base_has_twice_is_shown_by_get_and_scan_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Lance does not tell which of the two is newer: neither is hidden, and it is logged."""
    table = make(tmp_path, keyed=True)
    put(table, {1: "weir", 2: "weir"})
    table.compact()
    assert table.get([1, 2]).num_rows == 2
    assert "base.key_twice" not in caplog.text
    lance.write_dataset(one(1, "stranger"), table.uri, mode="append")
    want = [(1, "stranger"), (1, "weir"), (2, "weir")]
    found = table.get([2, 1], columns=["v"])
    assert sorted(found["v"].to_pylist()) == sorted(v for _, v in want)
    assert caplog.text.count("base.key_twice") == 1
    assert sorted(rows_of(table).elements()) == want
    put(table, {1: "again"})  # hides both rows, and the fold leaves one
    assert table.get([1])["v"].to_pylist() == ["again"]
    table.compact()
    assert rows_of(table, freshness="base") == Counter({(1, "again"): 1, (2, "weir"): 1})
