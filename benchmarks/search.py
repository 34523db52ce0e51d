"""Puts with a maintained index, and searches over fresh rows, beside pylance's writer.

    python benchmarks/search.py [--rows 20000] [--batch 100] [--rounds 3] [--kind vector text]

Both sides write the same batches, durably, to the same kind of table with the same base index, in
turns. pylance has no search that sees its MemTable from Python, so searches over unflushed rows are
weir's alone; over flushed rows its LSM planner stands beside.
"""

import argparse
import shutil
import statistics
import tempfile
import time
import uuid
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
from lance.mem_wal import LsmVectorSearchPlanner, ShardSnapshot

import weir

DIM = 128
BASE_ROWS = 2_000
SEARCHES = 30
RNG = np.random.default_rng(0)
WORDS = np.array([f"word{i}" for i in range(5_000)])
KEY = {"lance-schema:unenforced-primary-key": "true"}


def schema(kind):
    payload = pa.list_(pa.float32(), DIM) if kind == "vector" else pa.utf8()
    return pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", payload)])


def rows(kind, first, count):
    ids = pa.array(np.arange(first, first + count))
    if kind == "vector":
        values = RNG.normal(size=count * DIM).astype("f4")
        payload = pa.FixedSizeListArray.from_arrays(values, DIM)
    else:
        payload = pa.array([" ".join(RNG.choice(WORDS, 20)) for _ in range(count)])
    return pa.record_batch([ids, payload], schema=schema(kind))


def make_base(uri, kind):
    fields = schema(kind)
    keyed = pa.schema([fields.field(0).with_metadata(KEY), fields.field(1)])
    data = pa.Table.from_batches([rows(kind, 0, BASE_ROWS)]).cast(keyed)
    dataset = lance.write_dataset(data, uri)
    if kind == "vector":
        dataset.create_index("v", "IVF_FLAT", name="i", num_partitions=8)
    elif kind == "text":
        dataset.create_scalar_index("v", "INVERTED", name="i", with_position=False)
    dataset.initialize_mem_wal(unsharded=True)
    return dataset


def query(kind):
    if kind == "vector":
        return RNG.normal(size=DIM).astype("f4")
    return " ".join(RNG.choice(WORDS, 2))


def latency(search, kind):
    search(query(kind))
    took = []
    for _ in range(SEARCHES):
        asked = query(kind)
        began = time.perf_counter()
        search(asked)
        took.append(time.perf_counter() - began)
    return statistics.median(took) * 1e3


def with_weir(uri, kind, batches, figures):
    make_base(uri, kind)
    table = weir.enable(uri)
    count = sum(batch.num_rows for batch in batches)
    writer = table.shard(None).writer()
    began = time.perf_counter()
    for batch in batches:
        writer.put(batch)
    figures["weir put rows/s"].append(count / (time.perf_counter() - began))
    figures["weir own search, fresh ms"].append(
        latency(lambda q: writer.search("v", q, columns=["id"]), kind)
    )
    figures["weir table search, WAL tail ms"].append(
        latency(lambda q: table.search("v", q, columns=["id"]), kind)
    )
    began = time.perf_counter()
    writer.close()
    figures["weir close (flush, index) s"].append(time.perf_counter() - began)
    figures["weir table search, flushed ms"].append(
        latency(lambda q: table.search("v", q, columns=["id"]), kind)
    )


def with_pylance(uri, kind, batches, figures):
    dataset = make_base(uri, kind)
    shard = str(uuid.uuid4())
    count = sum(batch.num_rows for batch in batches)
    writer = dataset.mem_wal_writer(shard, durable_write=True)
    began = time.perf_counter()
    for batch in batches:
        writer.put(batch)
    figures["pylance put rows/s"].append(count / (time.perf_counter() - began))
    began = time.perf_counter()
    writer.close()
    figures["pylance close (flush, index) s"].append(time.perf_counter() - began)
    if kind != "vector":
        return
    snapshot = ShardSnapshot(shard)
    for path in sorted((Path(uri) / "_mem_wal" / shard).glob("*_gen_*")):
        generation = int(path.name.rsplit("_", 1)[1])
        snapshot.with_sstable(generation, path.name).with_current_generation(generation + 1)
    planner = LsmVectorSearchPlanner(dataset, [snapshot], "v")
    figures["pylance planner, flushed ms"].append(
        latency(lambda q: planner.plan_search(pa.array(q), columns=["id"]).to_table(), kind)
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kind", nargs="+", default=["vector", "text"])
    asked = parser.parse_args()
    for kind in asked.kind:
        batches = [
            rows(kind, BASE_ROWS + first, asked.batch)
            for first in range(0, asked.rows, asked.batch)
        ]
        names = [
            *("weir put rows/s", "pylance put rows/s"),
            *("weir close (flush, index) s", "pylance close (flush, index) s"),
            *("weir own search, fresh ms", "weir table search, WAL tail ms"),
            *("weir table search, flushed ms", "pylance planner, flushed ms"),
        ]
        figures = {name: [] for name in names}
        for number in range(asked.rounds):
            sides = [with_weir, with_pylance]
            for run in sides if number % 2 else reversed(sides):
                folder = tempfile.mkdtemp()
                run(f"{folder}/t", kind, batches, figures)
                shutil.rmtree(folder)
        print(f"{kind}: {asked.rows} rows, puts of {asked.batch}, median of {asked.rounds} rounds")
        for name, values in figures.items():
            if values:
                print(f"  {name:<34} {statistics.median(values):>12,.2f}")


if __name__ == "__main__":
    main()
