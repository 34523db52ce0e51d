"""Compaction in process against one bare pylance `merge_insert` of the already merged rows.

    python benchmarks/compaction.py [--rows 2000000] [--changes 200000] [--rounds 3]

Four overlapping generations, and a tenth of the changes are deletes; with and without a BTree on
the key.
"""

import argparse
import shutil
import tempfile
import time
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa

import weir

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("x", pa.float64()),
        pa.field("s", pa.utf8()),
    ]
)


def rows(ids: np.ndarray, tag: str) -> pa.Table:
    texts = pa.array([f"{tag}-{i:012d}" for i in ids.tolist()])
    return pa.table({"id": ids, "x": ids * 0.5, "s": texts}, schema=SCHEMA)


def make(place: Path, count: int, *, btree: bool) -> weir.Table:
    # A put ends up in one SSTable whatever its size; the table's settings bound its writers'.
    defaults = weir.WriterConfig(max_memtable_rows=100_000_000)
    weir.create(str(place), SCHEMA, primary_key="id", writer_defaults=defaults)
    stored = lance.dataset(str(place)).schema
    for start in range(0, count, 1_000_000):
        ids = np.arange(start, min(start + 1_000_000, count))
        part = pa.Table.from_arrays(rows(ids, "base").columns, schema=stored)
        lance.write_dataset(part, str(place), mode="append")
    if btree:
        lance.dataset(str(place)).create_scalar_index("id", "BTREE")
    return weir.open(str(place))


def change(table: weir.Table, count: int, changes: int) -> tuple[pa.Table, pa.Table]:
    """Write four generations; returns their merged result as (upserts, deletes)."""
    rng = np.random.default_rng(7)
    newest: dict[int, tuple[int, bool]] = {}
    for generation in range(4):
        ids = rng.choice(int(count * 1.05), changes // 4, replace=False)
        gone = ids[: len(ids) // 10]
        with table.shard(0).writer() as writer:
            writer.put(rows(ids, f"g{generation}"))
            writer.delete(pa.table({"id": gone}))
        newest.update((int(i), (generation, False)) for i in ids)
        newest.update((int(i), (generation, True)) for i in gone)
    live = np.array([i for i, (_, dead) in newest.items() if not dead])
    dead = np.array([i for i, (_, dead) in newest.items() if dead])
    return rows(live, "g9"), pa.table({"id": dead})


def bare(place: Path, upserts: pa.Table) -> float:
    """Seconds of one merge_insert of the merged rows; it skips the deletes, to its advantage."""
    dataset = lance.dataset(str(place))
    data = pa.Table.from_arrays(upserts.columns, schema=dataset.schema)
    began = time.perf_counter()
    merge = dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    merge.execute(data)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--changes", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    for btree in (False, True):
        ours, theirs = [], []
        for _ in range(given.rounds):
            folder = Path(tempfile.mkdtemp())
            table = make(folder / "t", given.rows, btree=btree)
            upserts, _ = change(table, given.rows, given.changes)
            shutil.copytree(folder / "t", folder / "copy")
            began = time.perf_counter()
            report = table.compact(indexes=False)
            ours.append(time.perf_counter() - began)
            assert report.rows_written == upserts.num_rows
            theirs.append(bare(folder / "copy", upserts))
            shutil.rmtree(folder)
        best, bare_best = min(ours), min(theirs)
        print(
            f"btree={btree!s:5} compact {best:.3f} s  merge_insert {bare_best:.3f} s "
            f" ratio {best / bare_best:.2f}   (all: {[f'{v:.3f}' for v in ours]}"
            f" {[f'{v:.3f}' for v in theirs]})"
        )


if __name__ == "__main__":
    main()
