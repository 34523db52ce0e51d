"""weir, pylance and LanceDB on one table: by turns, taking over from each other, killed in between.

Whatever the order, weir shows the newest acknowledged row of each key after every step, and at the
end each of the three programs shows each key once.
"""

import random
import signal
import subprocess
import sys
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import weir
from tests.interop.test_lancedb import SCHEMA, SHARDINGS, made, merge, opened, ours, theirs

pytestmark = pytest.mark.interop

KEYS = range(6)
KILLED = """
import os, signal, sys
import pyarrow as pa
program, uri, shard, key, value = sys.argv[1:]
schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.utf8())])
rows = pa.table({"id": [int(key)], "v": [value]}, schema=schema)
if program == "weir":
    import weir
    writer = weir.open(uri).writer()
    writer.put(rows)
elif program == "pylance":
    import lance
    writer = lance.dataset(uri).mem_wal_writer(shard)
    writer.put(rows)
else:
    import lancedb
    folder, name = uri.rsplit("/", 1)
    handle = lancedb.connect(folder).open_table(name.removesuffix(".lance"))
    handle.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows)
print("acknowledged", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


class Story:
    """The table, and the rows that were acknowledged."""

    def __init__(self, place: Path, table: weir.Table, seed: int) -> None:
        self.place = place
        self.table = table
        self.random = random.Random(seed)
        self.want = ours(table)
        self.steps = 0
        self.refused = 0

    def check(self) -> None:
        assert ours(weir.open(self.table.uri)) == self.want, self.steps

    def value(self, program: str) -> tuple[int, str]:
        self.steps += 1
        return self.random.choice(KEYS), f"{program} {self.steps}"

    def weir(self) -> None:
        key, value = self.value("weir")
        writer = weir.open(self.table.uri).writer()
        if self.random.random() < 0.2:
            writer.delete([key])
            self.want.pop(key, None)
        else:
            writer.put([{"id": key, "v": value}])
            self.want[key] = value
        if self.random.random() < 0.7:
            writer.close()  # otherwise it stays open, and the next owner fences it

    def lancedb(self) -> None:
        key, value = self.value("lancedb")
        handle = opened(self.place)
        try:
            merge(handle, (key, value))
        except RuntimeError:
            # Lance 13 cannot replay what the others left unflushed, so nothing was acknowledged.
            self.refused += 1
            weir.open(self.table.uri).checkpoint("all")
            merge(opened(self.place), (key, value))
        self.want[key] = value

    def pylance(self) -> None:
        key, value = self.value("pylance")
        writer = lance.dataset(self.table.uri).mem_wal_writer(self.shard(key))
        writer.put(pa.table({"id": [key], "v": [value]}, schema=SCHEMA))
        self.want[key] = value
        if self.random.random() < 0.7:
            writer.close()

    def killed(self, program: str) -> None:
        key, value = self.value(f"killed {program}")
        if program == "lancedb":
            weir.open(self.table.uri).checkpoint("all")
        told = (program, self.table.uri, self.shard(key), str(key), value)
        ran = subprocess.run(
            [sys.executable, "-c", KILLED, *told],
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == -signal.SIGKILL, ran.stderr
        assert "acknowledged" in ran.stdout
        self.want[key] = value

    def upkeep(self) -> None:
        table = weir.open(self.table.uri)
        what = self.random.choice(["compact", "fold", "gc", "base"])
        if what == "compact":
            table.compact()
        elif what == "fold":
            table.compact(fold_wal=True)
        elif what == "gc":
            assert table.gc(min_age=0).ok
        else:
            lance.dataset(table.uri).optimize.compact_files()

    def shard(self, key: int) -> str:
        table = weir.open(self.table.uri)
        (value,) = [v for v, _ in table.core.router.values(pa.table({"id": [key]}))]
        return str(table.core.ensure_shard(value))


@pytest.mark.parametrize("maker", ["weir", "lancedb"])
@pytest.mark.parametrize("how", SHARDINGS)
def test_x1_each_key_is_there_once_with_its_newest_acknowledged_row(tmp_path, how, maker):
    story = Story(tmp_path, made(tmp_path, how, maker), seed=sum(map(ord, how + maker)))
    killed = story.random.sample(["weir", "pylance", "lancedb"], 1)
    for step in range(20):
        story.random.choice([story.weir, story.lancedb, story.pylance, story.upkeep])()
        story.check()
        if step % 10 == 5 and killed:
            story.killed(killed.pop())
            story.check()
    table = weir.open(story.table.uri)
    table.compact(fold_wal=True)
    story.check()
    assert theirs(tmp_path) == story.want
    base = lance.dataset(table.uri).to_table().to_pylist()
    assert sorted((row["id"], row["v"]) for row in base) == sorted(story.want.items())
    assert table.gc(min_age=0).ok
    story.check()
    assert theirs(tmp_path) == story.want
