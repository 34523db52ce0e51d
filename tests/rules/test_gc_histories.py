"""Random histories of a real table with a collector at zero age: nothing acknowledged is lost."""

import os
import random
import time
from pathlib import Path

import pyarrow as pa
import pytest

import weir
from weir.errors import WeirError
from weir.format import paths

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64())])


class History:
    """One table, a dict of the rows it must hold, and operations drawn at random."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.folder = folder / "table"
        self.table = weir.create(str(self.folder), SCHEMA, primary_key="id")
        self.shard = self.table.shards()[0]
        self.writer = self.shard.writer()
        self.old: list[weir.ShardWriter] = []
        self.rows: dict[int, int] = {}
        self.held: dict[str, dict[int, int]] = {}
        self.clones: list[tuple[weir.Table, dict[int, int]]] = []
        self.told: list[str] = []

    def step(self) -> None:
        operations = {
            self.put: 6,
            self.delete: 2,
            self.flush: 2,
            self.take_over: 1,
            self.zombie_put: 2,
            self.compact: 1,
            self.checkpoint: 1,
            self.let_go: 1,
            self.clone: 0.5,
            self.collect: 3,
        }
        [operation] = self.rng.choices(list(operations), list(operations.values()))
        self.told.append(operation.__name__)
        operation()

    def put(self) -> None:
        rows = {self.rng.randrange(20): self.rng.randrange(1000) for _ in range(3)}
        self.writer.put([{"id": i, "v": v} for i, v in rows.items()])
        self.rows |= rows

    def delete(self) -> None:
        if self.rows:
            key = self.rng.choice(list(self.rows))
            self.writer.delete([key])
            del self.rows[key]

    def flush(self) -> None:
        self.writer.flush()

    def take_over(self) -> None:
        self.old.append(self.writer)
        self.writer = self.shard.writer()

    def zombie_put(self) -> None:
        """A put by a writer that was fenced long ago must be refused."""
        if self.old:
            with pytest.raises(WeirError):
                self.rng.choice(self.old).put([{"id": 1, "v": -1}])

    def compact(self) -> None:
        self.table.compact()

    def checkpoint(self) -> None:
        name = f"k{len(self.told)}"
        self.table.checkpoint(scope="durable", name=name)
        self.held[name] = dict(self.rows)

    def let_go(self) -> None:
        if self.held:
            name = self.rng.choice(list(self.held))
            del self.held[name]
            self.table.delete_checkpoint(name)

    def clone(self) -> None:
        where = self.folder.parent / f"clone{len(self.clones)}"
        self.clones.append((self.table.clone(str(where)), dict(self.rows)))

    def collect(self) -> None:
        report = self.table.gc(0, "7d")
        assert report.ok, report.errors
        self.check()

    def check(self) -> None:
        assert content(self.table) == self.rows
        for name, rows in self.held.items():
            assert content(self.table, checkpoint=name) == rows, name
        for table, rows in self.clones:
            assert content(table) == rows

    def release_everything(self) -> None:
        for name in self.held:
            self.table.delete_checkpoint(name)
        self.held = {}
        self.writer.close()
        self.table.compact()
        for old in self.old:
            old.close()


def content(table: weir.Table, **where) -> dict[int, int]:
    found = table.scan(**where).to_table()
    return dict(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))


def age(folder: Path, seconds: float) -> None:
    """Let time pass on the store by setting back the modification times of its files."""
    then = time.time() - seconds
    for path in folder.rglob("*"):
        if path.is_file():
            os.utime(path, (then, then))


@pytest.mark.parametrize("seed", range(4))
def test_g1_random_histories_lose_nothing_and_leave_nothing(tmp_path: Path, seed: int) -> None:
    history = History(tmp_path, seed)
    try:
        for _ in range(40):
            history.step()
        history.check()
        clones, history.clones = history.clones, []
        history.release_everything()
    except BaseException as error:
        error.add_note(f"seed {seed}: {' '.join(history.told)}")
        raise
    if clones:
        return  # clone pins are permanent, so shared objects stay
    age(history.folder, 8 * 86400)
    history.table.gc(0, "7d")
    history.table.gc(0, "7d")
    assert content(history.table) == history.rows
    shard = history.folder / paths.shard_dir(history.shard.id)
    assert len(list((shard / "wal").iterdir())) == 1, "the entry at R"
    assert len(list((shard / "manifest").glob("*.binpb"))) == 1
    assert not list(shard.glob("*_gen_*"))
    assert not list((history.folder / paths.CHECKPOINTS).rglob("*.json"))
    assert len(list((history.folder / "_versions").glob("*.manifest"))) == 1
    for kind in (history.folder / paths.floors_dir(history.shard.id)).iterdir():
        assert len(list(kind.iterdir())) <= 2, "a mark or two of each kind"
