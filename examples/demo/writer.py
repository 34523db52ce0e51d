"""A writer in a process of its own, which the demo kills, or freezes.

Reads {"uri", "storage_options", "files"} as a line of JSON (storage options may be secrets, so they
are not on the command line), then puts the files one by one and prints the number of each that was
acknowledged. A writer that was fenced prints the epochs and ends, as it should.
"""

import json
import sys

import pyarrow.parquet as pq

import weir

order = json.loads(sys.stdin.readline())
writer = weir.open(order["uri"], storage_options=order["storage_options"]).writer()
for number, file in enumerate(order["files"], 1):
    try:
        writer.put(pq.read_table(file))
    except (weir.FencedError, weir.PartialWrite) as error:
        parts = error.failures.values() if isinstance(error, weir.PartialWrite) else [error]
        print("fenced", [(one.epoch, one.fenced_by) for one in parts][0], flush=True)  # noqa: RUF015
        sys.exit(1)
    print(number, flush=True)
    sys.stdin.readline()  # the demo says when to go on
