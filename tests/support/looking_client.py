"""A process that decides on few hot keys, by threads, and keeps a journal; tests kill it.

Each line is written in one call before, and after, an operation: what is in the file was said.
"""

import os
import random
import sys
import threading
import time

import weir

THREADS = 4
HOT = 3


def main(uri: str, journal: str, number: int) -> None:
    out = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def say(*words: object) -> None:
        os.write(out, (" ".join(map(str, (time.monotonic_ns(), *words))) + "\n").encode())

    writer = weir.open(uri).shard(0).writer()
    say("open", number)

    def work(thread: int) -> None:
        rng = random.Random(number * 100 + thread)
        for turn in range(100_000):
            op = f"{number}.{thread}.{turn}"
            key = rng.randrange(HOT)
            if rng.random() < 0.3:
                new = 1000 + rng.randrange(60)
                say("begin", op, "insert", new, 0)
                counts = writer.insert([{"k": new, "v": 0, "by": op}], on_conflict="skip")
                say("end", op, counts.inserted)
                continue
            now = writer.get([key])["v"][0].as_py()
            say("begin", op, "raise", key, now + 1)
            row = {"k": key, "v": now + 1, "by": op}
            counts = writer.put([row], when=f"current.v = {now}")
            say("end", op, counts.updated)

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
