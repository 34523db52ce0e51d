"""A client process for tests to kill: it writes batches and logs the outcome of each.

Run as `python kill_writer.py URI OPTIONS LOG NUMBER MODE`; it loads everything, prints `ready`, and
begins when it reads a line. Its log has one line per event and survives the process: `try ID SIZE`,
`ack ID`, `refused ID`, `end REASON`.
"""

import itertools
import json
import os
import sys

import pyarrow as pa

import weir

MODES = {
    "durable": weir.WriterConfig(max_memtable_rows=40, fence_ttl=0.2),
    "wal-only": weir.WriterConfig(enable_memtable=False, max_memtable_rows=40, fence_ttl=0.2),
    "tiny": weir.WriterConfig(max_memtable_rows=5, fence_ttl=0),
}


def main() -> None:
    """Write until fenced or killed."""
    uri, options, log_path, number, mode = sys.argv[1:6]
    table = weir.open(uri, storage_options=json.loads(options))
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(text: str) -> None:
        os.write(log, f"{text}\n".encode())

    print("ready", flush=True)
    if not sys.stdin.readline():
        return
    try:
        with table.shard(None).writer(MODES[mode]) as writer:
            note(f"open {writer.epoch}")
            for counter in itertools.count():
                batch = int(number) * 1_000_000 + counter
                size = 1 + counter % 4
                note(f"try {batch} {size}")
                if counter % 7 == 3:
                    refuse(writer, batch, note)
                    continue
                rows = {
                    "id": pa.array([batch * 10 + i for i in range(size)], pa.int64()),
                    "batch": pa.array([batch] * size, pa.int64()),
                    "size": pa.array([size] * size, pa.int64()),
                }
                writer.put(pa.table(rows))
                note(f"ack {batch}")
    except weir.WeirError as error:
        note(f"end {type(error).__name__}")


def refuse(writer: weir.ShardWriter, batch: int, note) -> None:  # type: ignore[no-untyped-def]
    """Put an invalid row, which no reader may ever see."""
    try:
        writer.put([{"id": None, "batch": batch, "size": 1}])
    except weir.InvalidInput:
        note(f"refused {batch}")


if __name__ == "__main__":
    main()
