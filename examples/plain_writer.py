"""Write rows and read them back at once."""

import pyarrow as pa

import weir

schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.float64())])
table = weir.create("events", schema, primary_key="id", sharding=weir.Bucket("id", 4))
with table.writer() as writer:
    writer.put([{"id": i, "v": i / 10} for i in range(1000)])  # durable when it returns
    writer.put([{"id": 7, "v": 70.0}])  # the newest row of a key wins
    writer.delete([8])
    print(table.scan(filter="v > 60").to_table().to_pylist())
print(table.scan().count(), "rows")
