"""The commit of a Spark sink dies at every write; Spark reruns the batch, and each row is in once.

This runs the driver's own code without Spark: what the tasks stage and what the commit writes. The
cluster tests kill real executors and drivers.
"""

from collections import Counter
from dataclasses import dataclass

import pyarrow as pa
import pytest

import weir
from tests.support.dying import Life, die_at_every_write
from weir.spark.shard_sink import ENTRY_BYTES, Token
from weir.spark.sink import Sink
from weir.spark.writers import ShardWriters

SCHEMA = pa.schema([("id", pa.int64()), ("batch", pa.int64())])
ROWS = 12

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Here:
    """A table as a Spark process has it open."""

    table: weir.Table

    def open(self):
        return self.table

    def current(self):
        self.table.core.refresh()
        return self.table

    def writers(self):
        return ShardWriters(self.table.core)


def write_batch(table, number, *, app="query"):
    """Run two tasks and the commit, with the batch's token."""
    sink = Sink(
        place=Here(table),
        layout=None,
        delete_column=None,
        entry_bytes=ENTRY_BYTES,
        app=app,
        version=number,
    )
    token = Token(app, number)
    messages = []
    for task in range(2):
        ids = range(number * 100 + task, number * 100 + ROWS, 2)
        rows = pa.record_batch([pa.array(ids, pa.int64()), [number] * len(ids)], schema=SCHEMA)
        messages.append(sink.write(iter([rows]), token))
    sink.publish(messages, token)


@pytest.mark.parametrize("resharded", [False, True], ids=["same routing", "resharded since"])
def test_o_a_commit_that_dies_at_any_write_is_repeated_and_each_row_is_in_once(tmp_path, resharded):
    count = [0]

    def place():
        return str(tmp_path / f"t{count[0]}")

    def run(life: Life) -> None:
        count[0] += 1
        table = weir.create(place(), SCHEMA, sharding=weir.Bucket("id", 2))
        write_batch(table, 1)
        write_batch(life.table(weir.open(place())), 2)

    def check(n: int, finished: bool) -> None:
        if resharded and n % 2:
            weir.open(place()).reshard(weir.Bucket("id", 3), compact=False)
        for number in (2, 2, 3):  # the batch again, and a third time by a zombie driver
            write_batch(weir.open(place()), number)
        found = weir.open(place()).scan().to_table()
        times = Counter(found["id"].to_pylist())
        assert set(times.values()) == {1}, n
        assert len(times) == 3 * ROWS, n

    assert die_at_every_write(run, check) > 8
