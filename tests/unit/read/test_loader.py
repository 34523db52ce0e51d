"""Batches for training: each row once, whatever the order, the workers or the process."""

import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pyarrow as pa
import pytest

import weir

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("v", pa.float32()),
        pa.field("vec", pa.list_(pa.float32(), 3)),
        pa.field("name", pa.string()),
        pa.field("gap", pa.int32()),
    ]
)
COLUMNS = ["id", "v", "vec", "name"]


def rows(first: int, last: int, v: float) -> pa.Table:
    ids = np.arange(first, last)
    vectors = pa.FixedSizeListArray.from_arrays(
        pa.array(np.repeat(ids, 3), pa.float32()), list_size=3
    )
    return pa.table(
        {
            "id": pa.array(ids),
            "v": pa.array(np.full(len(ids), v), pa.float32()),
            "vec": vectors,
            "name": [f"n{i}" for i in ids],
            "gap": pa.array([None if i % 2 else i for i in ids], pa.int32()),
        },
        schema=SCHEMA,
    )


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> weir.Table:
    """Six fragments of a hundred rows; fifty replaced in an SSTable, fifty more in the log."""
    made = weir.create(
        tmp_path_factory.mktemp("loader") / "t",
        SCHEMA,
        primary_key="id",
        sharding=weir.Bucket("id", 2),
    )
    lake = made.core.lake
    for first in range(0, 600, 100):
        with made.writer() as writer:
            writer.put(rows(first, first + 100, 0))
        made.compact()
    assert len(lake.open_base().fragments()) >= 6
    with made.writer() as writer:
        writer.put(rows(550, 650, 1))
        writer.flush()
        writer.put(rows(0, 50, 2))
        writer.delete([7])
        for shard in writer.shard_writers().values():
            shard.flush_wal()
    return made


def ids(loader: weir.Loader) -> list[int]:
    return [n for batch in loader for n in batch.column("id").to_pylist()]


EXPECTED = sorted(set(range(650)) - {7})


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize(("size", "buffer"), [(64, 1), (64, 200), (1000, 50), (1, 10_000)])
def test_a_pass_has_every_row_once(
    table: weir.Table, seed: int | None, size: int, buffer: int
) -> None:
    loader = table.scan(COLUMNS).loader(size, seed=seed, buffer_rows=buffer)
    batches = list(loader)
    assert [b.num_rows for b in batches[:-1]] == [size] * (len(batches) - 1)
    assert sorted(ids(loader)) == EXPECTED
    newest = {row["id"]: row["v"] for batch in batches for row in batch.to_pylist()}
    assert (newest[0], newest[600], newest[100]) == (2, 1, 0)
    dropped = table.scan(["id"]).loader(size, seed=seed, drop_last=True)
    assert len(ids(dropped)) == len(EXPECTED) // size * size


def test_a_seed_decides_the_order_and_an_epoch_changes_it(table: weir.Table) -> None:
    scan = table.scan(["id"])
    one = ids(scan.loader(50, seed=1, buffer_rows=100))
    assert one == ids(scan.loader(50, seed=1, buffer_rows=100))
    others = [
        ids(scan.loader(50, seed=2, buffer_rows=100)),
        ids(scan.loader(50, seed=1, buffer_rows=100).at_epoch(1)),
        ids(scan.loader(50, buffer_rows=100)),
    ]
    for other in others:
        assert sorted(other) == EXPECTED
        assert other != one
    # Shuffled by fragments and within a buffer: the first batch has rows of several fragments.
    assert len({n // 100 for n in one[:150]}) > 1
    assert others[2] == ids(scan.loader(7))  # without a seed, in stored order


def test_workers_share_the_rows(table: weir.Table) -> None:
    loader = table.scan(["id"]).loader(32, seed=5)
    for count in (1, 2, 3, 20):
        shares = [ids(loader.part(index, count)) for index in range(count)]
        assert sorted(n for share in shares for n in share) == EXPECTED
    first, second = (len(ids(loader.part(index, 2))) for index in range(2))
    assert min(first, second) > 150


def test_workers_in_other_processes_read_the_same_snapshot(table: weir.Table) -> None:
    loader = table.scan(["id"], filter="id < 400").loader(32, seed=5)
    copies = [pickle.loads(pickle.dumps(loader.part(index, 2))) for index in range(2)]
    with table.writer() as writer:
        writer.put(rows(390, 395, 9))
        writer.put(rows(10_000, 10_010, 9))
        writer.delete([1])
    try:
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            shares = list(pool.map(ids, copies))
        assert shares == [ids(loader.part(index, 2)) for index in range(2)]
        assert sorted(shares[0] + shares[1]) == [n for n in EXPECTED if n < 400]
    finally:
        with table.writer() as writer:
            writer.put(rows(1, 2, 2))
            writer.put(rows(390, 395, 0))
            writer.delete(list(range(10_000, 10_010)))


def test_batches_are_arrays_that_belong_to_their_reader(table: weir.Table) -> None:
    batch = next(table.scan(COLUMNS).loader(16, seed=0).numpy())
    assert (batch["id"].dtype, batch["v"].dtype, batch["vec"].dtype) == ("i8", "f4", "f4")
    assert batch["vec"].shape == (16, 3)
    assert (batch["vec"][:, 0] == batch["id"]).all()
    assert batch["name"].tolist() == [f"n{n}" for n in batch["id"]]
    for name in ("id", "v", "vec"):
        batch[name][0] = 0  # the caller may write to it


def test_nulls_are_refused_where_arrays_have_none(table: weir.Table) -> None:
    with pytest.raises(weir.InvalidInput, match=r"'gap' has nulls.*IS NOT NULL"):
        list(table.scan(["gap"]).loader().numpy())
    filled = table.scan({"gap": "coalesce(gap, -1)"}).loader(10_000)
    assert (next(filled.numpy())["gap"] == -1).sum() == len([n for n in EXPECTED if n % 2])


@pytest.mark.parametrize(
    "wrong", [{"batch_size": 0}, {"worker": (2, 2)}, {"seed": -1}, {"buffer_rows": 1.5}]
)
def test_wrong_numbers_are_refused(table: weir.Table, wrong: dict) -> None:
    with pytest.raises(weir.InvalidInput, match=next(iter(wrong))):
        table.scan().loader(**wrong)
    with pytest.raises(weir.InvalidInput, match="a loader cannot have limit"):
        table.scan(limit=4).loader()


def test_an_append_only_table_is_loaded_too(tmp_path) -> None:
    made = weir.create(tmp_path / "log", pa.schema([("id", pa.int64())]))
    assert ids(made.scan().loader(4, seed=1)) == []
    with made.writer() as writer:
        writer.put([{"id": n} for n in range(10)])
    made.compact()
    with made.writer() as writer:
        writer.put([{"id": n} for n in range(10, 25)])
    assert sorted(ids(made.scan().loader(4, seed=1))) == list(range(25))
