"""A vector search sees a row as soon as the row is acknowledged."""

import numpy as np
import pyarrow as pa

import weir

vector = pa.list_(pa.float32(), 32)
schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("embedding", vector)])
table = weir.create("documents", schema, primary_key="id")
points = np.random.default_rng(1).normal(size=(500, 32)).astype("float32")
with table.writer() as writer:
    writer.put([{"id": i, "embedding": point.tolist()} for i, point in enumerate(points)])
    query = points[123] + 0.01
    print(table.search("embedding", query, k=3, columns=["id"]).to_pylist())  # 123 is the nearest
