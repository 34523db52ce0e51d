"""A writer process that the demo kills, or freezes: `python -m weir.demo.victim`.

Reads one line of JSON, {"uri", "storage_options", "files", "pause"}, from standard input, then
puts the files of events one by one. Prints `{"acked": n}` after each acknowledged file, and
`{"fenced": ...}` when a newer writer took a shard; then it exits, as a fenced writer should.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import pyarrow.parquet as pq

import weir


def main() -> int:
    """Put until done, killed or fenced."""
    order = json.loads(sys.stdin.readline())
    table = weir.open(order["uri"], storage_options=order["storage_options"])
    writer = table.writer()
    for number, file in enumerate(order["files"]):
        try:
            writer.put(pq.read_table(file))
        except (weir.FencedError, weir.PartialWrite) as error:
            _say(fenced=_epochs(error), file=file)
            return 1
        _say(acked=number)
        time.sleep(order["pause"])
    sys.stdin.readline()  # keeps its shards until told to end, or killed
    return 0


def _epochs(error: weir.WeirError) -> dict[str, Any]:
    found = error.failures.values() if isinstance(error, weir.PartialWrite) else [error]
    fenced = [one for one in found if isinstance(one, weir.FencedError)]
    return {
        "shards": len(fenced),
        "epoch": max((one.epoch for one in fenced), default=0),
        "by": max((one.fenced_by for one in fenced), default=0),
    }


def _say(**facts: Any) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
