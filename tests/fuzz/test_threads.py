"""Each verb of one handle beside each other one, in two threads, on real Lance.

`Table` and `TableWriter` are "safe to share between threads". The simulator's Lance is a model; the
borrows and locks of the real one are met only here.
"""

import itertools
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import weir
from weir.errors import (
    CommitConflict,
    FencedError,
    InvalidInput,
    PartialWrite,
    SealedShard,
    WriterClosed,
)

SECONDS = 0.05
ROWS = 40
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("v", pa.utf8()),
        pa.field("at", pa.timestamp("us")),
        pa.field("vec", pa.list_(pa.float32(), 2)),
    ]
)


@dataclass
class Scene:
    """A table with rows in its base, in SSTables and in its log, one handle and one writer."""

    folder: Path
    table: weir.Table
    writer: Any
    first: Any
    """A checkpoint that stays."""
    numbers: Any = field(default_factory=lambda: itertools.count(1))

    def row(self) -> list[dict[str, Any]]:
        number = next(self.numbers)
        return [{"id": number % ROWS, "v": f"red {number}", "vec": [number % 5, 1]}]

    def new(self) -> list[dict[str, Any]]:
        return [{"id": 1_000 + next(self.numbers), "v": "new"}]


def scene(folder: Path) -> Scene:
    table = weir.create(str(folder / "t"), SCHEMA, primary_key="id", sharding=weir.Bucket("id", 2))
    with table.writer() as writer:
        writer.put([{"id": i, "v": f"red {i}", "vec": [i % 5, i % 3]} for i in range(ROWS)])
    table.compact()
    with table.writer() as writer:
        writer.put([{"id": i, "v": f"green {i}", "vec": [i % 5, 0]} for i in range(0, ROWS, 3)])
    first = table.checkpoint(name="first")
    writer = table.writer()
    writer.put([{"id": 1, "v": "blue", "vec": [0, 0]}])
    return Scene(folder, table, writer, first)


def _put_and_reopen(s: Scene) -> None:
    """What an application does whose writer is fenced."""
    try:
        s.writer.put(s.row())
    except ENDED:
        s.writer = s.table.writer()
        raise


def _checkpoint_and_delete(s: Scene) -> None:
    s.table.delete_checkpoint(s.table.checkpoint())


def _reshard(s: Scene) -> None:
    s.table.reshard(weir.Bucket("id", 2 + next(s.numbers) % 2))


def _move_wal(s: Scene) -> None:
    s.table.move_wal(str(s.folder / f"wal-{next(s.numbers)}"))


def _clone(s: Scene) -> None:
    s.table.clone(str(s.folder / f"clone-{next(s.numbers)}"))


def _clone_deep(s: Scene) -> None:
    s.table.clone(str(s.folder / f"clone-{next(s.numbers)}"), deep=True)


def _set_expire(s: Scene) -> None:
    s.table.set_expire(weir.Expire("at", f"{next(s.numbers)}d"))


def _restore(s: Scene) -> None:
    checkpoint = s.table.checkpoint()
    while True:  # one that a writer's claim came between is run again
        with suppress(FencedError):
            s.table.restore(checkpoint)
            return


READS: dict[str, Callable[[Scene], object]] = {
    "scan": lambda s: s.table.scan().to_table(),
    "scan_at_checkpoint": lambda s: s.table.scan(checkpoint=s.first).to_table(),
    "get": lambda s: s.table.get([1, 2, 3]),
    "count": lambda s: s.table.count("id > 3"),
    "search_text": lambda s: s.table.search("v", "red"),
    "search_vector": lambda s: s.table.search("vec", [0, 0]),
    "hybrid_search": lambda s: s.table.hybrid_search({"v": "red", "vec": [0, 0]}),
    "changes": lambda s: list(s.table.changes()),
    "snapshot": lambda s: s.table.snapshot(),
    "stats": lambda s: s.table.stats(),
    "shards": lambda s: s.table.shards(),
    "schema": lambda s: s.table.schema,
    "expire": lambda s: s.table.expire,
    "checkpoints": lambda s: s.table.checkpoints(),
}
UPKEEP: dict[str, Callable[[Scene], object]] = {
    "put": _put_and_reopen,
    "checkpoint": _checkpoint_and_delete,
    "checkpoint_all": lambda s: s.table.checkpoint("all", ttl=60),
    "refresh_checkpoint": lambda s: s.table.refresh_checkpoint(s.first, ttl=60),
    "clone": _clone,
    "clone_deep": _clone_deep,
    "compact": lambda s: s.table.compact(),
    "compact_rewrite": lambda s: s.table.compact(fold_wal=True, rewrite=True, lease=0),
    "gc": lambda s: s.table.gc(),
    "set_expire": _set_expire,
    "move_wal": _move_wal,
    "reshard": _reshard,
    "restore": _restore,
}
TABLE_VERBS = READS | UPKEEP
WRITER_VERBS: dict[str, Callable[[Scene], object]] = {
    "put": lambda s: s.writer.put(s.row()),
    "put_without_waiting": lambda s: s.writer.put(s.row(), wait=False),
    "delete": lambda s: s.writer.delete([next(s.numbers) % ROWS]),
    "put_once": lambda s: s.writer.put_once(s.row(), app=f"{next(s.numbers)}", version=1),
    "insert": lambda s: s.writer.insert(s.new()),
    "update": lambda s: s.writer.update(s.row(), missing="skip"),
    "put_when": lambda s: s.writer.put(s.row(), when="current IS NULL"),
    "update_where": lambda s: s.writer.update_where("id < 9", {"v": "'white'"}),
    "delete_where": lambda s: s.writer.delete_where("id > 2000"),
    "flush": lambda s: s.writer.flush(),
    "flush_wal": lambda s: s.writer.flush_wal(),
    "stats": lambda s: s.writer.stats(),
}

ENDED = (FencedError, WriterClosed, SealedShard, PartialWrite)
CLAIMS = {"put", "checkpoint_all", "compact_rewrite", "move_wal", "reshard", "restore"}
"""Verbs that claim shards, or end writers: the other of two is fenced, as its page says."""
EXCLUSIVE = {"compact", "compact_rewrite", "reshard", "restore", "move_wal", "set_expire"}
"""Verbs of which the one that comes second may be told to read again and retry. Beside a restore
every verb that would build on half of it is told so."""


def is_documented(name: str, other: str, error: BaseException) -> bool:
    """True when the error of a verb is one that its page names for that company."""
    if isinstance(error, ENDED):
        return {name, other} <= CLAIMS
    if isinstance(error, CommitConflict):
        return other == "restore" or {name, other} <= EXCLUSIVE
    # An interrupted reshard has to be finished first; a restore does not go back over one.
    is_reshard = name == "reshard" or (name, other) == ("restore", "reshard")
    return isinstance(error, InvalidInput) and is_reshard and other in EXCLUSIVE


def beside(
    s: Scene, verbs: dict[str, Callable[[Scene], object]], names: tuple[str, str]
) -> list[str]:
    """Run two verbs in two threads for a moment; the errors that no page tells of."""
    wrong: list[str] = []
    end = time.monotonic() + SECONDS

    def run(name: str, other: str) -> None:
        while True:
            try:
                verbs[name](s)
            except Exception as error:
                if not is_documented(name, other, error):
                    wrong.append(f"{name} beside {other}: {type(error).__name__}: {error}")
                    return
            if time.monotonic() > end:
                return

    threads = [
        threading.Thread(target=run, args=(name, other), daemon=True)
        for name, other in (names, names[::-1])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        if thread.is_alive():
            wrong.append(f"{names}: hangs")
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize("name", UPKEEP)
def test_each_verb_of_a_table_runs_beside_each_other_one(name: str, tmp_path: Path) -> None:
    wrong = []
    later = list(TABLE_VERBS)[: list(TABLE_VERBS).index(name) + 1]
    for other in later:  # the others have had this one beside them
        (tmp_path / other).mkdir()
        with_fresh_table = scene(tmp_path / other)
        wrong += beside(with_fresh_table, TABLE_VERBS, (name, other))
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_reads_of_a_table_run_beside_each_other(tmp_path: Path) -> None:
    shared = scene(tmp_path)
    pairs = itertools.combinations_with_replacement(READS, 2)
    assert [wrong for pair in pairs for wrong in beside(shared, READS, pair)] == []


@pytest.mark.slow
def test_each_verb_of_a_writer_runs_beside_each_other_one(tmp_path: Path) -> None:
    shared = scene(tmp_path)
    pairs = itertools.combinations_with_replacement(WRITER_VERBS, 2)
    assert [wrong for pair in pairs for wrong in beside(shared, WRITER_VERBS, pair)] == []
    shared.writer.close()
