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


FLUSHES = """
import sys, threading, time, weir
import pyarrow as pa
from weir.shard.flush import Flusher

begun, flush = threading.Event(), Flusher._flush_first

def slow(self, **how):
    begun.set()
    time.sleep(0.3)  # as in a library: the interpreter ends the thread when it comes out
    flush(self, **how)
    print("flushed", flush=True)

Flusher._flush_first = slow
schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
table = weir.create(sys.argv[1], schema, primary_key="id")
writer = table.writer(weir.WriterConfig(max_memtable_rows=4))
writer.put([{"id": n} for n in range(4)])
writer.put([{"id": n} for n in range(4)])
begun.wait()
"""


def test_a_flush_that_is_under_way_at_exit_is_waited_for(tmp_path):
    """Its thread may be inside of Lance, and would take the process down with it (SIGABRT)."""
    command = [sys.executable, "-c", FLUSHES, str(tmp_path / "t")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "flushed" in ran.stdout


FENCED = """
import sys, threading, time, weir
import pyarrow as pa
from weir.shard.flush import Flusher

begun, fenced, flush = threading.Event(), threading.Event(), Flusher._flush

def slow(self, table):
    begun.set()
    fenced.wait()
    time.sleep(0.3)  # as in a library
    try:
        flush(self, table)
    finally:
        print("flushed", flush=True)

schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
table = weir.create(sys.argv[1], schema, primary_key="id")
Flusher._flush = slow
writer = table.writer(weir.WriterConfig(max_memtable_rows=4))
writer.put([{"id": n} for n in range(4)])
writer.put([{"id": n} for n in range(4)])
begun.wait()
Flusher._flush = flush
with weir.open(sys.argv[1]).writer() as newer:
    newer.put([{"id": 9}])
try:
    writer.put([{"id": 5}])
except weir.FencedError:
    fenced.set()
"""


def test_a_flush_of_a_writer_that_was_fenced_is_waited_for(tmp_path):
    """A replica that was frozen and replaced ended by SIGABRT when it left."""
    command = [sys.executable, "-c", FENCED, str(tmp_path / "t")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "flushed" in ran.stdout
