"""Two writers, one shard: the newer fences the older, and no row is lost.

The fenced writer does not open the shard again. If both did, they would fence each other for ever
and write nothing. A scheduler, a lease or a person decides ownership, not the writers.
"""

import pyarrow as pa

import weir

schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("by", pa.string())])
table = weir.create("jobs", schema, primary_key="id")
old = table.shard(0).writer()
old.put([{"id": 1, "by": "old"}])
new = table.shard(0).writer()  # a takeover: claims, fences, replays row 1
try:
    old.put([{"id": 2, "by": "old"}])
except weir.FencedError as fenced:
    print(f"epoch {fenced.epoch} was fenced by epoch {fenced.fenced_by}")
    for batch in fenced.not_written:  # handed over to the owner, on purpose
        new.put(batch)
new.put([{"id": 3, "by": "new"}])
new.close()
print(table.scan().to_table().sort_by("id").to_pylist())
