"""The first row of a shard, which shows its value when its manifest does not.

LanceDB writes no field entries into the manifests of the shards that it makes.
"""

from __future__ import annotations

import pyarrow as pa

from weir.format.manifest import ShardManifest
from weir.format.schema import TableSchema
from weir.lake.api import Lake
from weir.log.shard_log import ShardLog
from weir.log.tailer import WalTailer


def first_row(
    lake: Lake, log: ShardLog, manifest: ShardManifest, schema: TableSchema, column: str
) -> pa.RecordBatch | None:
    """One row of the shard, that column only; None while the shard is empty. A few requests."""
    for table in manifest.sstables:
        for batch in lake.open_sstable(log.shard, table.path, schema).scan([column]):
            if batch.num_rows:
                return batch.select([column]).slice(0, 1)
    tip = log.tip()
    if tip <= manifest.replay_after:
        return None
    for entry in WalTailer(log).read_range(manifest.replay_after, tip):
        for batch in entry.batches:
            if batch.num_rows and column in batch.schema.names:
                return batch.select([column]).slice(0, 1)
    return None
