"""LanceDB's upkeep on weir tables: nothing of weir's is lost, and whatever it removes is reported.

Index creation, column changes, clean-up and `drop_table` run beside rows in the base, in SSTables
and in the log, and a checkpoint that holds an older state.
"""

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import weir
from tests.interop.test_lancedb import SCHEMA, made, merge, opened, ours, theirs
from weir.cli.checks import check_table
from weir.errors import NotAWeirTable

lancedb = pytest.importorskip("lancedb")

pytestmark = pytest.mark.interop

AT_ONCE = timedelta(milliseconds=1)
"""Short enough that every version is older; LanceDB does not warn about it."""


def bad(table: weir.Table) -> list[str]:
    return [found.detail for found in check_table(table.uri, {}) if found.state == "bad"]


def test_k1_its_clean_up_leaves_what_a_checkpoint_holds(tmp_path: Path) -> None:
    table = made(tmp_path, "bucket", "weir")
    with table.writer() as writer:
        writer.put([{"id": n, "v": "pinned"} for n in range(8)])
    table.compact()
    pinned = table.checkpoint(scope="all", name="then")
    with table.writer() as writer:
        writer.put([{"id": n, "v": "newer"} for n in range(4)])
    table.compact()
    writer = table.writer()
    writer.put([{"id": 9, "v": "in the log"}])
    # The checkpoint's tag protects its version, so the whole clean-up is refused.
    with pytest.raises(RuntimeError, match="tag"):
        opened(tmp_path).optimize(cleanup_older_than=AT_ONCE, delete_unverified=True)
    opened(tmp_path).optimize(cleanup_older_than=timedelta(days=1))
    want = {**dict.fromkeys(range(8), "pinned"), **dict.fromkeys(range(4), "newer")}
    assert ours(table) == {**want, 9: "in the log"}
    assert ours(table, checkpoint=pinned) == dict.fromkeys(range(8), "pinned")
    writer.close()
    table.compact()
    table.delete_checkpoint(pinned)
    opened(tmp_path).optimize(cleanup_older_than=AT_ONCE, delete_unverified=True)
    assert ours(table) == theirs(tmp_path) == {**want, 9: "in the log"}
    assert bad(table) == []


def test_c1_a_clone_of_a_version_that_it_wrote_is_read(tmp_path: Path) -> None:
    """Lance 13, in LanceDB, notes the place of its transaction in the manifest under a number of
    its own. Copied to a clone that place means nothing, and Lance panics at it."""
    table = made(tmp_path, "bucket", "weir")
    with table.writer() as writer:
        writer.put([{"id": n, "v": "a"} for n in range(8)])
    table.compact()
    opened(tmp_path).delete("id = 3")
    want = {n: "a" for n in range(8) if n != 3}
    for number, deep in enumerate((False, True)):
        assert ours(table.clone(str(tmp_path / f"c{number}"), deep=deep)) == want


@pytest.mark.filterwarnings("ignore::deprecation.DeprecatedWarning")
def test_x5_its_indexes_and_columns_change_beside_rows_in_the_log(tmp_path: Path) -> None:
    table = made(tmp_path, "bucket", "weir")
    with table.writer() as writer:
        writer.put([{"id": n, "v": f"v{n}"} for n in range(6)])
    table.compact()
    writer = table.writer()
    writer.put([{"id": 6, "v": "v6"}])  # stays unflushed during all of this
    handle = opened(tmp_path)
    handle.create_scalar_index("id")
    handle.add_columns(pa.field("w", pa.int64()))
    handle.alter_columns({"path": "v", "rename": "text"})
    want = {n: (f"v{n}", None) for n in range(7)}

    def shown() -> dict[int, tuple[str, int | None]]:
        rows = weir.open(table.uri).scan().to_table().to_pylist()
        assert len(rows) == len({row["id"] for row in rows})
        return {row["id"]: (row["text"], row["w"]) for row in rows}

    assert shown() == want
    writer.close()
    with weir.open(table.uri).writer() as again:
        again.put([{"id": 7, "text": "v7", "w": 7}])
    want[7] = ("v7", 7)
    handle = opened(tmp_path)
    handle.drop_index("id_idx")
    assert shown() == want
    table.compact()
    assert shown() == want
    opened(tmp_path).drop_columns(["w"])
    merged = pa.table(
        {"id": [8], "text": ["lancedb"]}, schema=SCHEMA.set(1, pa.field("text", "utf8"))
    )
    handle = opened(tmp_path)
    query = handle.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    query.execute(merged)
    handle.close_lsm_writers()
    found = weir.open(table.uri).get([7, 8])
    assert found.to_pylist() == [{"id": 7, "text": "v7"}, {"id": 8, "text": "lancedb"}]
    assert bad(table) == []


def test_x6_drop_table_is_told_to_those_who_have_it_open(tmp_path: Path) -> None:
    """`drop_table` also deletes the log and weir's records; only a clone protects against it."""
    table = made(tmp_path, "unsharded", "weir")
    with table.writer() as writer:
        writer.put([{"id": 1, "v": "weir"}])
    table.compact()
    kept = table.clone(str(tmp_path / "kept.lance"), deep=True)
    lancedb.connect(str(tmp_path)).drop_table("t")
    assert not weir.exists(table.uri)
    with pytest.raises(NotAWeirTable):
        weir.open(table.uri)
    with pytest.raises(weir.WeirError):
        table.scan().to_table()
    with pytest.raises(weir.WeirError):
        table.writer()
    assert not (tmp_path / "t.lance").exists(), "nothing was written where it had been"
    assert ours(kept) == theirs(tmp_path, "kept") == {1: "weir"}
    merge(opened(tmp_path, "kept"), (2, "lancedb"))
    assert ours(kept) == {1: "weir", 2: "lancedb"}
