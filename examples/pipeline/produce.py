"""A producer: appends events, beside any number of others, until it is told to stop.

    python produce.py TABLE NAME

Prints the number of each event once it is durable.
"""

import itertools
import signal
import sys
import time

import weir


def visit(name: str, number: int) -> weir.Rows:
    """What `put` takes in any of its forms; here one row."""
    return {"producer": name, "number": number, "page": f"/{number % 7}"}


def main(uri: str, name: str) -> None:
    stops: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stops.append(number))
    # Each writer of this table has a shard of its own, so producers never meet.
    with weir.open(uri).writer() as writer:
        for number in itertools.count():
            if stops:
                return  # the writer closes, and its shard is the next one's
            try:
                writer.put(visit(name, number))
            except weir.UnknownOutcome:
                continue  # it was frozen in the midst of a put: this event may be in the table
            print(number, flush=True)
            time.sleep(0.02)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
