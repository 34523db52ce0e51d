"""A process that puts a row for each number it is sent and answers when the row is durable."""

from __future__ import annotations

import json
import sys

import weir
from benchmarks import data
from benchmarks.peers import one_shard


def main() -> None:
    """The first line names the table; each later one is a key."""
    asked = json.loads(sys.stdin.readline())
    table = weir.open(asked["uri"], storage_options=asked["options"] or None)
    with one_shard(table).writer() as writer:
        print("ready", flush=True)
        for line in sys.stdin:
            writer.put(data.batch(int(line), 1))
            print("durable", flush=True)


if __name__ == "__main__":
    main()
