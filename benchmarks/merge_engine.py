"""Candidates for the merge of levels, and the merge itself against a bare scan and pylance.

    python -m benchmarks.merge_engine [folder]

Two million base rows (int64 or text key, a float, a text, a vector of 16) under four overlapping
SSTables of fifty thousand rows. Prints one line per measurement; docs/design/0001-merge-engine.md
holds the figures of one run.
"""

import sys
import tempfile
import time
from pathlib import Path

import datafusion
import duckdb
import lance
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from lance.mem_wal import LsmPointLookupPlanner, LsmScanner, ShardSnapshot

import weir
from weir.keys.keyset import KeySet

BASE_ROWS = 2_000_000
SSTABLES = 4
SSTABLE_ROWS = 50_000


def measure(name, run, repeat=3):
    best = float("inf")
    for _ in range(repeat):
        start = time.perf_counter()
        result = run()
        best = min(best, time.perf_counter() - start)
    print(f"{name:<46} {best * 1000:9.1f} ms  {result}")
    return best


def keys_of(numbers, kind):
    array = pa.array(numbers, pa.int64())
    if kind == "int64":
        return array
    return pc.binary_join_element_wise("key-", pc.cast(array, pa.utf8()), "")


def rows(rng, numbers, kind):
    count = len(numbers)
    vectors = pa.array(rng.random(count * 16, dtype=np.float32))
    return pa.table(
        {
            "id": keys_of(numbers, kind),
            "x": rng.random(count),
            "s": [f"name-{n % 1000}" for n in numbers],
            "v": pa.FixedSizeListArray.from_arrays(vectors, 16),
        }
    )


def candidates(kind):
    """Time how each engine finds the keys of the base that are among the fresh keys."""
    rng = np.random.default_rng(0)
    base = keys_of(rng.permutation(BASE_ROWS), kind)
    fresh = pc.unique(keys_of(rng.integers(0, BASE_ROWS + 100_000, 200_000), kind))
    left = pa.table({"id": base, "n": np.arange(BASE_ROWS)})
    right = pa.table({"id": fresh})
    for size in (65_536, 524_288, BASE_ROWS):
        parts = [base.slice(i, size) for i in range(0, BASE_ROWS, size)]
        measure(
            f"{kind} arrow is_in, batches of {size}",
            lambda parts=parts: sum(pc.is_in(p, value_set=fresh).true_count for p in parts),
        )
    measure(
        f"{kind} arrow hash join, one batch",
        lambda: left.join(right, "id", join_type="left anti").num_rows,
    )
    frame, keys = pl.from_arrow(left), pl.from_arrow(right)
    measure(
        f"{kind} polars anti join, one batch", lambda: frame.join(keys, on="id", how="anti").height
    )
    connection = duckdb.connect()
    connection.register("base", left)
    connection.register("fresh", right)
    query = "select * from base anti join fresh using (id)"
    measure(f"{kind} duckdb anti join", lambda: connection.sql(query).to_arrow_table().num_rows)
    context = datafusion.SessionContext()
    context.from_arrow(left, "base")
    context.from_arrow(right, "fresh")
    query_df = "select base.* from base left anti join fresh on base.id = fresh.id"
    measure(
        f"{kind} datafusion anti join",
        lambda: sum(b.num_rows for b in context.sql(query_df).collect()),
    )
    keyset = KeySet(fresh.type)
    keyset.add(fresh)
    parts = [base.slice(i, 65_536) for i in range(0, BASE_ROWS, 65_536)]
    measure(
        f"{kind} weir KeySet, batches of 65536",
        lambda: sum(int((~keyset.new(p)).sum()) for p in parts),
    )


def whole(folder, kind):
    """Time merged scans and point lookups, beside a bare scan of the base and pylance's own."""
    rng = np.random.default_rng(0)
    uri = str(Path(folder) / kind)
    table = weir.create(uri, rows(rng, [1], kind).schema, primary_key="id")
    base = rows(rng, rng.permutation(BASE_ROWS), kind)
    lance.write_dataset(base.cast(table.schema), uri, mode="append")
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    with table.writer() as writer:
        for _ in range(SSTABLES):
            writer.put(rows(rng, rng.choice(BASE_ROWS + 100_000, SSTABLE_ROWS, False), kind))
            writer.flush()
    dataset = lance.dataset(uri)
    manifest = table.shards()[0].manifest()
    snapshot = ShardSnapshot(str(manifest.shard_id))
    snapshot = snapshot.with_current_generation(manifest.current_generation)
    for sstable in manifest.sstables:
        snapshot = snapshot.with_sstable(sstable.generation, sstable.path)

    def drain(batches):
        return sum(batch.num_rows for batch in batches)

    for columns in (["id", "x", "s"], ["id", "x", "s", "v"]):
        name = f"{kind} {'+'.join(columns)}"
        measure(
            f"{name} bare scan of the base",
            lambda c=columns: drain(dataset.scanner(columns=c, batch_size=65_536).to_batches()),
        )
        measure(f"{name} weir", lambda c=columns: drain(table.scan(columns=c).to_batches()))
        measure(
            f"{name} LsmScanner",
            lambda c=columns: drain(
                LsmScanner.from_snapshots(dataset, [snapshot]).project(c).to_batches()
            ),
            repeat=2,
        )
    keys = [key.as_py() for key in keys_of(rng.integers(0, BASE_ROWS, 50), kind)]
    planner = LsmPointLookupPlanner(dataset, [snapshot], pk_columns=["id"])
    measure(f"{kind} 50 gets, weir", lambda: sum(table.get([k]).num_rows for k in keys))
    measure(
        f"{kind} 50 lookups, pylance planner",
        lambda: sum(planner.plan_lookup(pa.array([k])).to_table().num_rows for k in keys),
    )


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
    for kind in ("int64", "utf8"):
        candidates(kind)
        whole(folder, kind)


if __name__ == "__main__":
    main()
