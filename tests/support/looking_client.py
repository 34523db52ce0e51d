"""A process of conditional writes to a few hot keys, by threads or tasks; tests kill it.

It journals each operation before and after, each line in one write call that survives the kill.
"""

import asyncio
import os
import random
import sys
import threading
import time

import weir
from weir import aio

WORKERS = 4
TASKS = 12
HOT = 3


class Journal:
    """The journal of one process."""

    def __init__(self, path: str) -> None:
        self._out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def say(self, *words: object) -> None:
        os.write(self._out, (" ".join(map(str, (time.monotonic_ns(), *words))) + "\n").encode())


def by_threads(uri: str, journal: Journal, number: int) -> None:
    writer = weir.open(uri).shard(0).writer()
    journal.say("open", number)

    def work(thread: int) -> None:
        rng = random.Random(number * 100 + thread)
        for turn in range(100_000):
            op = f"{number}.{thread}.{turn}"
            key = rng.randrange(HOT)
            if rng.random() < 0.3:
                new = 1000 + rng.randrange(60)
                journal.say("begin", op, "insert", new, 0)
                counts = writer.insert([{"k": new, "v": 0, "by": op}], on_conflict="skip")
                journal.say("end", op, counts.inserted)
                continue
            now = writer.get([key])["v"][0].as_py()
            journal.say("begin", op, "raise", key, now + 1)
            row = {"k": key, "v": now + 1, "by": op}
            counts = writer.put([row], when=f"current.v = {now}")
            journal.say("end", op, counts.updated)

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def by_tasks(uri: str, journal: Journal, number: int) -> None:
    table = await aio.open(uri)
    async with table.writer() as writer:
        journal.say("open", number)

        async def work(task: int) -> None:
            rng = random.Random(number * 100 + task)
            for turn in range(100_000):
                op = f"{number}.{task}.{turn}"
                key = rng.randrange(HOT)
                if rng.random() < 0.3:
                    new = 1000 + rng.randrange(60)
                    journal.say("begin", op, "insert", new, 0)
                    row = {"k": new, "v": 0, "by": op}
                    counts = await writer.insert([row], on_conflict="skip")
                    journal.say("end", op, counts.inserted)
                    continue
                now = (await table.get([key]))["v"][0].as_py()
                journal.say("begin", op, "raise", key, now + 1)
                row = {"k": key, "v": now + 1, "by": op}
                counts = await writer.put([row], when=f"current.v = {now}")
                journal.say("end", op, counts.updated)

        await asyncio.gather(*(work(n) for n in range(TASKS)))


def main(uri: str, journal: str, number: int, how: str) -> None:
    if how == "tasks":
        asyncio.run(by_tasks(uri, Journal(journal), number))
    else:
        by_threads(uri, Journal(journal), number)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
