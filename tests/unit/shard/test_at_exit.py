"""What a program that ends with rows in memory is told, in a real interpreter."""

import subprocess
import sys

import pytest

PROGRAM = """
import atexit, sys, weir

def close():
    if sys.argv[2] == "close at exit":
        writer.close()

atexit.register(close)  # runs after every handler that is registered later
import pyarrow as pa
schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
table = weir.create(sys.argv[1], schema, primary_key="id")
config = weir.WriterConfig(durable_write=False, max_wal_flush_interval=3600)
writer = table.shard(None).writer(config)
writer.put([{"id": 1}])
if sys.argv[2] == "close":
    writer.close()
elif sys.argv[2] == "flush_wal":
    writer.flush_wal()
"""


ENDS = [("leave", 0), ("flush_wal", 1), ("close", 1), ("close at exit", 1)]


@pytest.mark.parametrize(("end", "rows"), ENDS)
def test_m8_rows_that_no_entry_has_are_told_at_exit(tmp_path, end, rows):
    import weir

    uri = str(tmp_path / "t")
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, uri, end], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ("not durable yet" in ran.stderr) == (end == "leave")
    assert weir.open(uri).count() == rows
