"""Keep a DuckDB table in sync: the rows of now, then every change. Rows and bookmark are one
transaction, so every change is applied once, also when the program is stopped anywhere and run
again; and collection waits for the consumer "duckdb", however long it is not run (up to 7 days)."""

import duckdb
import pyarrow as pa

import weir

schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("total", pa.float64())])
if not weir.exists("orders"):
    weir.create("orders", schema, primary_key="id", sharding=weir.Bucket("id", 2))
table = weir.open("orders")
with table.writer() as writer:
    writer.put([{"id": i, "total": i * 1.5} for i in range(10)])
    writer.delete([3, 4])

db = duckdb.connect("orders.duckdb")
db.execute("CREATE TABLE IF NOT EXISTS orders (id BIGINT PRIMARY KEY, total DOUBLE)")
db.execute("CREATE TABLE IF NOT EXISTS bookmark (one INT PRIMARY KEY, position VARCHAR)")
saved = db.execute("SELECT position FROM bookmark").fetchone()
for change in table.follow("duckdb", since=saved[0] if saved else None, once=True):
    rows = pa.Table.from_batches([change.batch])
    db.begin()
    if change.kind == "put":
        db.execute("INSERT OR REPLACE INTO orders SELECT * FROM rows")
    else:
        db.execute("DELETE FROM orders WHERE id IN (SELECT id FROM rows)")
    db.execute("INSERT OR REPLACE INTO bookmark VALUES (1, ?)", [change.bookmark.to_json()])
    db.commit()
print(db.execute("SELECT count(*), sum(total) FROM orders").fetchone())
