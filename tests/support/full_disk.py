"""A program that writes to a table on a small disk until the disk is full.

`python full_disk.py FOLDER` writes until the disk is full, makes room, and continues; it prints the
acks, the errors and the rows that a reader saw, as JSON. `python full_disk.py FOLDER LIMIT` needs
no small disk: it limits the size of files to LIMIT bytes, which any user may do on any system.
"""

import json
import resource
import shutil
import signal
import sys
import time
from pathlib import Path

import pyarrow as pa

import weir
from weir.env import Env, SystemClock

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("text", pa.string())])
FILLER = "filler"
ROOM = 96 << 10


class Impatient(SystemClock):
    """Real time, but short sleeps: otherwise the retries on a full disk take seconds."""

    def sleep(self, seconds: float) -> None:
        """Sleep for at most 5 ms."""
        time.sleep(min(seconds, 0.005))


def fill(folder: Path) -> None:
    """Fill the disk but for `ROOM` bytes."""
    with (folder / FILLER).open("wb") as file:
        free = shutil.disk_usage(folder).free - ROOM
        file.write(b"\0" * max(0, free))


def main() -> None:
    """Write until a put fails, make room, write again."""
    folder = Path(sys.argv[1])
    limit = int(sys.argv[2]) if len(sys.argv) > 2 else None
    env = Env(clock=Impatient())
    table = weir.create(str(folder / "table"), SCHEMA, primary_key="id", env=env)
    config = weir.WriterConfig(max_memtable_rows=50)
    acked: list[int] = []
    errors: list[str] = []
    writer = table.shards()[0].writer(config)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit is None:
        fill(folder)
    else:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for number in range(400):
        size = 2000 if limit is None else 100 * number
        if limit is not None and number == 20:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            writer.put([{"id": number, "text": "x" * size}])
        except weir.WeirError as error:
            errors.append(f"{type(error).__name__}: {error}")
            break
        acked.append(number)
    seen = sorted(weir.open(table.uri).scan().to_table()["id"].to_pylist())
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    (folder / FILLER).unlink(missing_ok=True)
    try:
        writer.close()
    except weir.WeirError as error:
        errors.append(f"{type(error).__name__}: {error}")
    with table.shards()[0].writer(config) as again:
        again.put([{"id": -1, "text": "after"}])
    after = sorted(weir.open(table.uri).scan().to_table()["id"].to_pylist())
    print(json.dumps({"acked": acked, "errors": errors, "seen": seen, "after": after}))


if __name__ == "__main__":
    main()
