"""P-8: a statement over several shards is in all of them or in none, wherever its driver dies.

This runs the driver's own code without Spark, as test_sink_commit.py does for batches.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import weir
from tests.crash.test_sink_commit import Here
from tests.support.dying import Life, die_at_every_write
from weir.format.schema import TOMBSTONE
from weir.read.scan import Scan
from weir.records.statements import StatementRecords
from weir.routing import statements
from weir.routing.finishing import finish
from weir.spark.shard_sink import ENTRY_BYTES, Token
from weir.spark.sink import Sink
from weir.spark.snapshots import RoutedSnapshot

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("n", pa.int64())])
KEYS = range(12)
STEP = int(os.environ.get("WEIR_DEATH_STEP", "4"))
"""Of the writes at which a statement dies, every so manieth: `make soak` takes each."""
BEFORE = dict.fromkeys(KEYS, 0)
AFTER = {key + 100: 1 for key in KEYS}


@pytest.fixture(autouse=True)
def nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever meets an open statement acts at once: its driver is dead, or will try again."""
    monkeypatch.setattr(statements, "PATIENCE_SECONDS", 0.0)


def make(place: str, buckets: int = 4) -> weir.Table:
    table = weir.create(place, SCHEMA, primary_key="id", sharding=weir.Bucket("id", buckets))
    with table.writer() as writer:
        writer.put([{"id": key, "n": 0} for key in KEYS])
    return table


def update(
    table: weir.Table,
    statement_id: str | None = None,
    *,
    entry_bytes: int = ENTRY_BYTES,
    read: RoutedSnapshot | None = None,
    below: int = 100,
) -> None:
    """UPDATE t SET id = id + 100, n = n + 1 WHERE id < below: rows move between shards."""
    read = read or RoutedSnapshot.take(table)
    held = Scan(table.core, pinned=read.snapshot).to_table().to_pylist()
    found = [row for row in held if row["id"] < below]
    sink = Sink(
        place=Here(table),  # type: ignore[arg-type]
        layout=None,
        delete_column="gone",
        entry_bytes=entry_bytes,
        app=None,
        version=None,
        statement=read.to_json(),
        inserts=True,
        statement_id=statement_id,
    )
    rows = [{"id": row["id"], "n": None, "gone": True} for row in found]
    rows += [{"id": row["id"] + 100, "n": row["n"] + 1, "gone": False} for row in found]
    marked = SCHEMA.append(pa.field("gone", pa.bool_()))
    batch = pa.RecordBatch.from_pylist(rows, pa.schema([f.with_nullable(True) for f in marked]))
    assert TOMBSTONE not in batch.schema.names
    token = Token("\x1fjob\x1fone", 0)
    sink.publish([sink.write(iter([batch] if rows else []), token)], token)


def rows_of(table: weir.Table) -> dict[int, int]:
    found = table.scan().to_table().to_pylist()
    assert len(found) == len({row["id"] for row in found})
    return {row["id"]: row["n"] for row in found}


def seen(place: str) -> dict[int, int]:
    """What every way to read says; all must say the same."""
    table = weir.open(place)
    found = rows_of(table)
    assert found in (BEFORE, AFTER), found
    assert table.count() == len(KEYS)
    keys = [*KEYS, *(key + 100 for key in KEYS)]
    assert {row["id"]: row["n"] for row in table.get(keys).to_pylist()} == found
    by_key = {key: table.get([key]).num_rows for key in keys}
    assert {key for key, count in by_key.items() if count} == set(found)
    parts = [row for part in table.scan().loader(batch_size=3) for row in part.to_pylist()]
    assert {row["id"]: row["n"] for row in parts} == found
    return found


def finished_by_nobody(place: str) -> None:
    pass


def by_gc(place: str) -> None:
    weir.open(place).gc(min_age=0)


def by_a_checkpoint(place: str) -> None:
    table = weir.open(place)
    found = rows_of(table)
    for scope in ("durable", "all"):
        kept = table.checkpoint(scope)
        assert rows_of_scan(table.scan(checkpoint=kept)) == found


def rows_of_scan(scan: Any) -> dict[int, int]:
    return {row["id"]: row["n"] for row in scan.to_table().to_pylist()}


def by_a_clone(place: str) -> None:
    table = weir.open(place)
    found = rows_of(table)
    assert rows_of(table.clone(f"{place}-clone")) == found


def by_a_reshard(place: str) -> None:
    weir.open(place).reshard(weir.Bucket("id", 3))


def by_a_compaction(place: str) -> None:
    weir.open(place).compact()


def by_writers(place: str) -> None:
    """A writer of each shard that looks at the rows before it writes."""
    table = weir.open(place)
    found = rows_of(table)
    with table.writer() as writer:
        writer.update([{"id": key, "n": n} for key, n in found.items()])


def by_a_restore(place: str) -> None:
    table = weir.open(place)
    found = rows_of(table)
    kept = table.checkpoint("all")
    with table.writer() as writer:
        writer.put([{"id": 7000, "n": 0}])
    table.restore(kept)
    assert rows_of(weir.open(place)) == found


def by_a_rerun(place: str) -> None:
    for _ in range(2):
        update(weir.open(place), "s1")
    assert rows_of(weir.open(place)) == AFTER


FINISHERS = [
    finished_by_nobody,
    by_gc,
    by_a_checkpoint,
    by_a_clone,
    by_a_reshard,
    by_a_compaction,
    by_writers,
    by_a_restore,
    by_a_rerun,
]


@pytest.mark.slow
@pytest.mark.parametrize("entry_bytes", [ENTRY_BYTES, 1], ids=["one piece", "pieces"])
@pytest.mark.parametrize("comes", FINISHERS, ids=lambda comes: comes.__name__)
def test_p8_a_statement_that_dies_at_any_write_is_in_every_shard_or_in_none(
    tmp_path: Path, comes: Callable[[str], None], entry_bytes: int
) -> None:
    count = [0]
    outcomes = set()

    def place() -> str:
        return str(tmp_path / f"t{count[0]}")

    def run(life: Life) -> None:
        count[0] += 1
        make(place())
        update(life.table(weir.open(place())), "s1", entry_bytes=entry_bytes)

    def check(n: int, finished: bool) -> None:
        before = seen(place())
        assert not finished or before == AFTER
        outcomes.add(before == AFTER)
        comes(place())
        after = seen(place())
        assert after == before or comes is by_a_rerun, n
        table = weir.open(place())
        finish(table.core)
        assert seen(place()) == after
        assert not StatementRecords(table.core.store, table.core.env).load().open
        if comes in (finished_by_nobody, by_a_checkpoint):  # the log shows each row once
            changes = [row for batch in entries_of(table) for row in batch.to_pylist()]
            puts = [row["id"] for row in changes if row["id"] >= 100 and not row[TOMBSTONE]]
            assert sorted(puts) == (sorted(AFTER) if after == AFTER else []), n

    first = (FINISHERS.index(comes) + 2 * (entry_bytes == 1)) % STEP
    assert die_at_every_write(run, check, first=first, step=STEP) > 20
    assert outcomes == {True, False}


def entries_of(table: weir.Table) -> list[pa.RecordBatch]:
    return [
        batch for shard in table.shards() for entry in shard.tailer(1) for batch in entry.batches
    ]
