"""P-7: a statement writes what it read, or nothing. Tests the driver's part without a session."""

import uuid
from pathlib import Path

import pyarrow as pa
import pytest

import weir
from weir.errors import CommitConflict, InvalidInput
from weir.format.schema import TOMBSTONE
from weir.read.snapshot import Snapshot
from weir.spark.shard_sink import ENTRY_BYTES, Token
from weir.spark.staging import Stage, Staged
from weir.spark.statement import Statement

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


def stage(table: weir.Table, puts: list[Row], deletes: list[int]) -> dict[object, list[Staged]]:
    """Stage one file per row, the deletes last: the worst possible order."""
    found: dict[object, list[Staged]] = {}
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
) -> None:
    statement = Statement(read, token or Token(uuid.uuid4().hex, 0), entry_bytes)
    core = weir.open(table.uri).core
    statement.publish(core, stage(table, puts, deletes or []), core.record.routing_version)  # type: ignore[arg-type]


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
    read = weir.open(table.uri).snapshot()
    core = weir.open(table.uri).core
    weir.open(table.uri).reshard(weir.Bucket("id", 4))
    statement = Statement(read, Token("app", 0), ENTRY_BYTES)
    with pytest.raises(CommitConflict, match="resharded"):
        staged = stage(table, [(1, "slow")], [])
        statement.publish(
            weir.open(table.uri).core,
            staged,  # type: ignore[arg-type]
            core.record.routing_version,
        )


def test_p7_a_collected_log_is_a_conflict(table: weir.Table) -> None:
    read = table.snapshot()
    write(table, *((n, "later") for n in range(100, 108)))
    for shard in table.shards():
        shard.log.manifests.floors.raise_to("wal", int(shard.log.tip()))
    with pytest.raises(CommitConflict, match="collected"):
        run(table, read, [(1, "slow")])


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
