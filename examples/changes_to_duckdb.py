"""Keep a DuckDB table in sync from the change feed; the bookmark is stored with the rows."""

import duckdb
import pyarrow as pa

import weir

schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("total", pa.float64())])
table = weir.create("orders", schema, primary_key="id", sharding=weir.Bucket("id", 2))
with table.writer() as writer:
    writer.put([{"id": i, "total": i * 1.5} for i in range(10)])
    writer.delete([3, 4])

db = duckdb.connect("orders.duckdb")
db.execute("CREATE TABLE orders (id BIGINT PRIMARY KEY, total DOUBLE)")
db.execute("CREATE TABLE bookmark (position VARCHAR)")
saved = db.execute("SELECT max(position) FROM bookmark").fetchone()[0]
changes = table.changes(since=saved)
for change in changes:
    rows = pa.Table.from_batches([change.batch])
    if change.kind == "put":
        db.execute("INSERT OR REPLACE INTO orders SELECT * FROM rows")
    else:
        db.execute("DELETE FROM orders WHERE id IN (SELECT id FROM rows)")
db.execute("INSERT INTO bookmark VALUES (?)", [changes.bookmark.to_json()])
print(db.execute("SELECT count(*), sum(total) FROM orders").fetchone())
