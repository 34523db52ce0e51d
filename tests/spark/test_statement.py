"""P-7: a statement writes what it read, or nothing. Tests the driver's part without a session."""

import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import weir
from weir.errors import CommitConflict, InvalidInput
from weir.format.schema import TOMBSTONE
from weir.format.sharding import Value
from weir.read.snapshot import Snapshot
from weir.spark.publish import publish
from weir.spark.shard_sink import ENTRY_BYTES, Token
from weir.spark.staging import Stage, Staged
from weir.spark.statement import Statement
from weir.spark.writers import ShardWriters

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.utf8())])
Row = tuple[int, str | None]


@pytest.fixture
def table(tmp_path: Path) -> weir.Table:
    table = weir.create(
        str(tmp_path / "t"), SCHEMA, primary_key="id", sharding=weir.Bucket("id", 2)
    )
    write(table, *((n, "a") for n in range(8)))
    return table


def write(table: weir.Table, *rows: Row, config: weir.WriterConfig | None = None) -> None:
    with weir.open(table.uri).writer(config) as writer:
        writer.put([{"id": n, "v": v} for n, v in rows])


def stage(table: weir.Table, puts: list[Row], deletes: list[int]) -> dict[Value, list[Staged]]:
    """Stage one file per row, the deletes last: the worst possible order."""
    found: dict[Value, list[Staged]] = {}
    for number, (key, value, gone) in enumerate(
        [*((k, v, False) for k, v in puts), *((k, None, True) for k in deletes)]
    ):
        stage = Stage(table.core, "job", number, limit=ENTRY_BYTES)
        batch = {"id": [key], "v": pa.array([value], pa.utf8()), TOMBSTONE: [gone]}
        stage.add(pa.RecordBatch.from_pydict(batch))
        for part in stage.finish():
            found.setdefault(part.value, []).append(part)
    return found


def run(
    table: weir.Table,
    read: Snapshot,
    puts: list[Row],
    deletes: list[int] | None = None,
    token: Token | None = None,
    entry_bytes: int = ENTRY_BYTES,
    inserts: bool = False,
) -> None:
    token = token or Token(uuid.uuid4().hex, 0)
    publish(
        ShardWriters(weir.open(table.uri).core),
        stage(table, puts, deletes or []),
        token,
        entry_bytes=entry_bytes,
        statement=Statement(read, token, inserts=inserts),
    )


def rows(table: weir.Table) -> dict[int, str]:
    found = weir.open(table.uri).scan().to_table().to_pylist()
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: row["v"] for row in found}


@pytest.mark.parametrize("memtable", [True, False])
@pytest.mark.parametrize("entry_bytes", [ENTRY_BYTES, 1])
def test_p7_a_row_that_changed_since_is_refused_and_others_are_not(
    table: weir.Table, memtable: bool, entry_bytes: int
) -> None:
    read = table.snapshot()
    config = weir.WriterConfig(enable_memtable=memtable)
    write(table, (1, "quick"), config=config)
    with pytest.raises(CommitConflict, match=r"\{'id': 1\} was written after"):
        run(table, read, [(0, "slow"), (1, "slow"), (2, "slow")], entry_bytes=entry_bytes)
    expected = dict.fromkeys(range(8), "a") | {1: "quick"}
    assert rows(table) == expected  # no row was written in any shard
    run(table, read, [(0, "slow"), (2, "slow")], [3], entry_bytes=entry_bytes)
    del expected[3]
    assert rows(table) == expected | {0: "slow", 2: "slow"}


def test_p7_a_delete_and_a_new_row_of_others_are_seen_too(table: weir.Table) -> None:
    read = table.snapshot()
    with weir.open(table.uri).writer() as writer:
        writer.delete([5])
        writer.put([{"id": 50, "v": "new"}])
    for put in (5, 50):
        with pytest.raises(CommitConflict):
            run(table, read, [(put, "slow")])
    with pytest.raises(CommitConflict):
        run(table, read, [], [50])


def test_p7_what_passes_the_log_by_is_a_conflict(table: weir.Table) -> None:
    read = table.snapshot()
    kept = table.checkpoint("all", name="kept")
    table.compact()
    run(table, read, [(1, "folded meanwhile")])
    assert rows(table)[1] == "folded meanwhile"
    read = weir.open(table.uri).snapshot()
    weir.open(table.uri).restore(kept)
    with pytest.raises(CommitConflict):
        run(table, read, [(1, "slow")])


def by_update(base: lance.LanceDataset) -> None:
    base.update({"v": "'theirs'"}, where="id = 1")


def by_delete(base: lance.LanceDataset) -> None:
    base.delete("id = 1")


def by_append(base: lance.LanceDataset) -> None:
    lance.write_dataset(pa.table({"id": [9], "v": ["theirs"]}, schema=SCHEMA), base, mode="append")


def by_merge(base: lance.LanceDataset) -> None:
    theirs = pa.table({"id": [1], "v": ["theirs"]}, schema=SCHEMA)
    base.merge_insert("id").when_matched_update_all().execute(theirs)


@pytest.mark.parametrize("change", [by_update, by_delete, by_append, by_merge])
def test_p7_rows_that_another_program_changed_in_the_base_are_a_conflict(
    table: weir.Table, change: Callable[[lance.LanceDataset], None]
) -> None:
    table.compact()
    read = weir.open(table.uri).snapshot()
    change(lance.dataset(table.uri))
    theirs = rows(table)
    with pytest.raises(CommitConflict, match="another program changed rows of the base"):
        run(table, read, [(1, "slow"), (9, "slow")])
    assert rows(table) == theirs


def test_p7_what_changes_no_living_row_of_the_base_is_no_conflict(tmp_path: Path) -> None:
    timed = SCHEMA.append(pa.field("t", pa.timestamp("us", "UTC")))
    table = weir.create(str(tmp_path / "t"), timed, primary_key="id", sharding=weir.Bucket("id", 2))
    with table.writer() as writer:
        writer.put(
            [{"id": 1, "v": "a"}, {"id": 2, "v": "old", "t": datetime(2000, 1, 1, tzinfo=UTC)}]
        )
    table.compact()
    table.set_expire(weir.Expire("t", "1d"))
    read = weir.open(table.uri).snapshot()
    assert weir.open(table.uri).compact().rows_expired == 1
    weir.open(table.uri).create_index("v")
    lance.dataset(table.uri).optimize.compact_files()
    run(table, read, [(1, "slow")])
    assert rows(table) == {1: "slow"}


def test_p7_a_collected_log_is_a_conflict(table: weir.Table) -> None:
    read = table.snapshot()
    write(table, *((n, "later") for n in range(100, 108)))
    for shard in table.shards():
        shard.log.manifests.floors.raise_to("wal", int(shard.log.tip()))
    with pytest.raises(CommitConflict, match="collected"):
        run(table, read, [(1, "slow")])


def test_p7_a_collected_snapshot_is_a_conflict(table: weir.Table) -> None:
    """Whether a key is new is read from the snapshot, long after the statement began."""
    write(table, (1, "in the log"), config=weir.WriterConfig(enable_memtable=False))
    read = table.snapshot()
    weir.open(table.uri).compact(fold_wal=True)
    weir.open(table.uri).gc(min_age=0, fence_retention="2m")
    with pytest.raises(CommitConflict, match="Run the statement again"):
        run(table, read, [(key, "new") for key in range(100, 108)], inserts=True)
    assert max(rows(table)) < 100


def test_p7_a_put_beats_a_delete_and_two_puts_are_refused(table: weir.Table) -> None:
    run(table, table.snapshot(), [(1, "was 2"), (2, "was 1"), (9, "new")], [1, 2, 3])
    found = rows(table)
    assert (found[1], found[2], found[9]) == ("was 2", "was 1", "new")
    assert 3 not in found
    with pytest.raises(InvalidInput, match="one key twice"):
        run(table, table.snapshot(), [(20, "x"), (20, "y"), (21, "z")])
    assert rows(table) == found


def test_p7_a_statement_that_is_in_is_not_refused_by_its_own_rows(table: weir.Table) -> None:
    read, token = table.snapshot(), Token("app", 3)
    run(table, read, [(1, "mine")], token=token)
    write(table, (1, "later"))
    run(table, read, [(1, "mine")], token=token)
    assert rows(table)[1] == "later"


def test_p7_a_row_is_not_put_at_the_key_of_another_that_stays(table: weir.Table) -> None:
    """`UPDATE t SET id = 2 WHERE id = 1` would lose row 2; swapping both keys loses nothing."""
    table.compact()
    write(table, (20, "in the log"))
    before = rows(table)
    for there in (2, 20):
        with pytest.raises(InvalidInput, match=rf"key \{{'id': {there}\}}, which another row"):
            run(table, table.snapshot(), [(0, "kept"), (there, "moved")], [0, 1], inserts=True)
        assert rows(table) == before
    run(table, table.snapshot(), [(1, "was 2"), (2, "was 1"), (9, "new")], [1, 2], inserts=True)
    assert rows(table) == before | {1: "was 2", 2: "was 1", 9: "new"}
    with weir.open(table.uri).writer() as writer:
        writer.delete([3])
    run(table, weir.open(table.uri).snapshot(), [(3, "free")], inserts=True)
    assert rows(table)[3] == "free"
