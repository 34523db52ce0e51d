"""Tables with a large base and unfolded generations, made once and copied."""

from __future__ import annotations

import shutil
from typing import Any

import lance
import obstore
import pyarrow as pa

import weir
from benchmarks import data
from benchmarks.harness import Ctx
from benchmarks.peers import make_table, obstore_at, one_shard

BASE_STEP = 500_000


def make_layers(
    ctx: Ctx, *, base_rows: int, generations: int, generation_rows: int, btree: bool
) -> dict[str, Any]:
    """A base of consecutive keys and overlapping SSTables on top of it."""
    table = make_table(ctx, "layers")
    parts = (
        data.batch(start, min(BASE_STEP, base_rows - start))
        for start in range(0, base_rows, BASE_STEP)
    )
    rows = pa.RecordBatchReader.from_batches(data.SCHEMA, parts)
    stored = lance.dataset(table.uri, storage_options=ctx.options or None)
    reader = pa.RecordBatchReader.from_batches(
        stored.schema, (pa.RecordBatch.from_arrays(b.columns, schema=stored.schema) for b in rows)
    )
    dataset = lance.write_dataset(
        reader, table.uri, mode="append", storage_options=ctx.options or None
    )
    if btree:
        dataset.create_scalar_index("id", "BTREE")
    with one_shard(table).writer() as writer:
        for number in range(generations):
            writer.put(data.overlapping(number, generation_rows, base_rows))
            writer.flush()
    return {"uri": table.uri, "base_rows": base_rows, "generations": generations}


def fresh_keys(ctx: Ctx, generation_rows: int) -> list[int]:
    """Keys of the newest generation."""
    number = ctx.data["generations"] - 1
    made = data.overlapping(number, generation_rows, ctx.data["base_rows"])
    keys: list[int] = made.column("id").to_pylist()
    return keys


def snapshots(table: weir.Table) -> list[Any]:
    """The shards as pylance's scanner and planner take them, without folded generations."""
    from lance.mem_wal import ShardSnapshot

    made = []
    compacted = table.core.lake.open_base().compacted
    for shard in table.shards():
        manifest = shard.manifest()
        one = ShardSnapshot(str(shard.id)).with_current_generation(manifest.current_generation)
        for sstable in manifest.sstables:
            if sstable.generation > compacted.get(shard.id, 0):
                one = one.with_sstable(sstable.generation, sstable.path)
        made.append(one)
    return made


def copy_table(ctx: Ctx, source: str) -> str:
    """The same objects under a URI of their own."""
    target = ctx.uri("copy")
    if ctx.where == "local":
        shutil.copytree(source, target)
        return target
    # One store over both prefixes, so the server makes the copies.
    store = obstore_at(ctx.root, ctx.options)
    old = source.removeprefix(ctx.root + "/")
    new = target.removeprefix(ctx.root + "/")
    for page in obstore.list(store, old):
        for item in page:
            path = item["path"]
            obstore.copy(store, path, new + path.removeprefix(old))
    return target


def drop_table(ctx: Ctx, uri: str) -> None:
    """Remove a local copy; otherwise a full disk would distort the figures."""
    if ctx.where == "local":
        shutil.rmtree(uri, ignore_errors=True)
