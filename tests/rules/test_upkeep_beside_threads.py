"""Upkeep of a table that other threads of the process read and write through the same handle.

A pylance dataset refuses a call while another one has it exclusively; the simulator's model of
Lance does not, so these tests use threads and pylance itself.
"""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import weir
import weir.aio
from tests.support.threads import Caller

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])
ROUNDS = 12


def filled(place: Path) -> weir.Table:
    table = weir.create(str(place), SCHEMA, primary_key="id")
    with table.writer() as writer:
        writer.put([{"id": n, "v": str(n)} for n in range(200)])
    table.compact()
    return table


def checkpoint(table: weir.Table, _place: Path) -> None:
    table.checkpoint()


def delete_checkpoint(table: weir.Table, _place: Path) -> None:
    table.delete_checkpoint(table.checkpoint().id)


def clone(table: weir.Table, place: Path) -> None:
    table.clone(str(place))


def reshard(table: weir.Table, _place: Path) -> None:
    table.reshard(weir.Bucket("id", 3 if table.sharding == weir.Bucket("id", 2) else 2))


def restore(table: weir.Table, _place: Path) -> None:
    table.restore(table.checkpoint())


def add_columns(table: weir.Table, place: Path) -> None:
    table.core.lake.add_columns([pa.field(place.name, pa.int64())])  # type: ignore[attr-defined]


VERBS = [checkpoint, delete_checkpoint, clone, reshard, restore, add_columns]


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
def test_readers_of_one_handle_go_on_beside(
    tmp_path: Path, verb: Callable[[weir.Table, Path], None]
) -> None:
    table = filled(tmp_path / "t")
    ended = threading.Event()

    def read() -> int:
        reads = 0
        while not ended.is_set():
            assert table.get([7]).num_rows == 1
            assert table.count("id < 50") == 50
            reads += 1
        return reads

    readers = [Caller(read), Caller(read)]
    try:
        for n in range(ROUNDS if verb is not reshard else 3):
            verb(table, tmp_path / f"made{n}")
    finally:
        ended.set()
    assert all(reader.result(30) > 0 for reader in readers)


def test_a_writer_goes_on_beside_checkpoints_of_all_rows(tmp_path: Path) -> None:
    table = filled(tmp_path / "t")
    ended = threading.Event()

    def write() -> int:
        puts = 0
        with table.writer() as writer:
            while not ended.is_set():
                writer.put([{"id": n, "v": str(puts)} for n in range(50)])
                puts += 1
        return puts

    writing = Caller(write)
    try:
        for _ in range(ROUNDS):
            table.checkpoint("all")
    finally:
        ended.set()
    last = writing.result(30) - 1
    assert table.get([7]).column("v").to_pylist() == [str(last)]


def test_tasks_of_one_loop_read_beside_a_checkpoint(tmp_path: Path) -> None:
    filled(tmp_path / "t")

    async def main() -> None:
        table = await weir.aio.open(str(tmp_path / "t"))
        ended = asyncio.Event()

        async def read() -> None:
            while not ended.is_set():
                assert (await table.get([7])).num_rows == 1

        async def pin() -> None:
            try:
                for _ in range(ROUNDS):
                    await table.checkpoint()
            finally:
                ended.set()

        await asyncio.gather(read(), read(), pin())

    asyncio.run(main())
