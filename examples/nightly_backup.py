"""Make an independent copy of a table every night and keep the last seven; run it from cron."""

import datetime as dt
import shutil
from pathlib import Path

import pyarrow as pa

import weir

KEEP = 7


def backup(table: weir.Table, folder: Path, night: dt.date) -> None:
    moment = table.checkpoint(scope="durable", name=f"backup-{night}", ttl="1d")
    table.clone(str(folder / night.isoformat()), checkpoint=moment, deep=True)
    table.delete_checkpoint(moment)
    for old in sorted(folder.iterdir())[:-KEEP]:
        shutil.rmtree(old)


schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
orders = weir.create("orders", schema, primary_key="id")
for day in range(1, 10):
    with orders.writer() as writer:
        writer.put([{"id": day}])
    backup(orders, Path("backups"), dt.date(2026, 1, day))
print([(b.name, weir.open(str(b)).scan().count()) for b in sorted(Path("backups").iterdir())])
