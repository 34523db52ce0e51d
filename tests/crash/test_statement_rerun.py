"""The commit of a statement dies at every write; run again with its id, it is done once.

This runs the driver's own code without Spark, as test_sink_commit.py does for batches.
"""

import pyarrow as pa
import pytest

import weir
from tests.crash.test_sink_commit import Here
from tests.support.dying import Life, die_at_every_write
from weir.errors import CommitConflict
from weir.format.schema import TOMBSTONE
from weir.spark import publish as publishing
from weir.spark.reruns import NamedStatement
from weir.spark.shard_sink import ENTRY_BYTES, Token
from weir.spark.sink import Sink
from weir.spark.snapshots import RoutedSnapshot
from weir.spark.writers import ShardWriters

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("n", pa.int64())])
KEYS = range(8)
EXPECTED = {key + 100: 1 for key in KEYS}

pytestmark = pytest.mark.slow


def make(place: str) -> weir.Table:
    table = weir.create(place, SCHEMA, primary_key="id", sharding=weir.Bucket("id", 3))
    with table.writer() as writer:
        writer.put([{"id": key, "n": 0} for key in KEYS])
    return table


def update(table: weir.Table, statement_id: str | None) -> None:
    """UPDATE t SET id = id + 100, n = n + 1 WHERE id < 100: rows move between shards."""
    read = RoutedSnapshot.take(table)
    found = [row for row in table.scan().to_table().to_pylist() if row["id"] < 100]
    sink = Sink(
        place=Here(table),  # type: ignore[arg-type]
        layout=None,
        delete_column="gone",
        entry_bytes=ENTRY_BYTES,
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
    token = Token("job", 0)
    sink.publish([sink.write(iter([batch] if rows else []), token)], token)


def bucket_of(table: weir.Table, key: int) -> int:
    row = pa.RecordBatch.from_pylist([{"id": key, "n": 0}], SCHEMA)
    return next(iter(table.core.router.split(row)))[0]  # type: ignore[return-value]


def rows_of(place: str) -> dict[int, int]:
    found = weir.open(place).scan().to_table().to_pylist()
    assert len(found) == len({row["id"] for row in found})
    return {row["id"]: row["n"] for row in found}


def rerun(place: str, statement_id: str) -> None:
    """As the functions of `weir.spark` do: what was begun is finished, nothing is computed."""
    table = weir.open(place)
    named = NamedStatement(table.core, statement_id)
    state = named.state()
    if state == "begun":
        named.finish(ShardWriters(table.core))
    elif state == "new":
        update(table, statement_id)


@pytest.mark.parametrize("through_the_sink", [False, True], ids=["resumed", "computed again"])
def test_p7_a_statement_that_dies_at_any_write_is_finished_once(
    tmp_path, through_the_sink: bool
) -> None:
    count = [0]
    half = [0]

    def place() -> str:
        return str(tmp_path / f"t{count[0]}")

    def run(life: Life) -> None:
        count[0] += 1
        make(place())
        update(life.table(weir.open(place())), "s1")

    def check(n: int, finished: bool) -> None:
        before = rows_of(place())
        half[0] += before not in (dict.fromkeys(KEYS, 0), EXPECTED)
        for _ in range(2):  # and once more, after it is done
            if through_the_sink:
                update(weir.open(place()), "s1")
            else:
                rerun(place(), "s1")
            assert rows_of(place()) == EXPECTED, n

    assert die_at_every_write(run, check) > 8
    assert half[0], "no death left the statement half done"


def die_after_the_first_shard(monkeypatch, table: weir.Table) -> None:
    """Run the statement, and end its driver when one shard is written."""
    write = publishing._Share.write
    done = []

    def first_only(share: publishing._Share) -> None:
        if done:
            raise OSError("the driver died")
        done.append(share)
        write(share)

    monkeypatch.setattr(publishing._Share, "write", first_only)
    monkeypatch.setattr(publishing, "WORKERS", 1)
    with pytest.raises(OSError, match="died"):
        update(table, "s1")
    monkeypatch.undo()


def test_p7_a_half_done_statement_does_not_undo_a_later_write(tmp_path, monkeypatch) -> None:
    place = str(tmp_path / "t")
    die_after_the_first_shard(monkeypatch, make(place))
    left = [key for key in KEYS if key in rows_of(place)]
    assert 0 < len(left) < len(KEYS)
    with weir.open(place).writer() as writer:
        writer.put([{"id": left[0], "n": 50}])
    with pytest.raises(CommitConflict, match="was written"):
        rerun(place, "s1")
    assert rows_of(place)[left[0]] == 50


def test_p7_what_is_left_is_written_also_when_a_rerun_finds_no_row(tmp_path, monkeypatch) -> None:
    """The row has left its old shard, and is in no other: nothing is left to compute from."""
    place = str(tmp_path / "t")
    table = weir.create(place, SCHEMA, primary_key="id", sharding=weir.Bucket("id", 3))
    # Shards are written in the order of their buckets: the delete first, then the put.
    key = next(k for k in range(100) if bucket_of(table, k) < bucket_of(table, k + 100))
    with table.writer() as writer:
        writer.put([{"id": key, "n": 0}])
    die_after_the_first_shard(monkeypatch, table)
    assert rows_of(place) == {}
    update(weir.open(place), "s1")
    assert rows_of(place) == {key + 100: 1}
