"""Separate processes, real signals: no acknowledged row is lost, no refused row is shown, and no
row appears twice."""

import collections
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

import weir

WRITER = Path(__file__).parent.parent / "support" / "kill_writer.py"
SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("batch", pa.int64()), ("size", pa.int64())])
ASKED = os.environ.get("WEIR_KILL_ROUNDS")
ROUNDS = {"local": int(ASKED or 10), "s3": int(ASKED or 6), "az": int(ASKED or 3)}
PATIENCE = 60.0
TIDY_EVERY = 5
"""Rounds between compactions: a client left running in the meantime leaves thousands of tiny
generations, and reading or replaying all of them is not the point of this test."""

pytestmark = [pytest.mark.kill, pytest.mark.slow]


class Client:
    """One writer process and the log it keeps."""

    def __init__(self, uri, options, folder, number, mode):
        self.log = folder / f"client-{number}.log"
        self.process = subprocess.Popen(
            [
                sys.executable,
                str(WRITER),
                uri,
                json.dumps(options),
                str(self.log),
                str(number),
                mode,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def go(self):
        assert self.process.stdout.readline() == "ready\n"
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def lines(self):
        text = self.log.read_text() if self.log.exists() else ""
        return [line.split() for line in text.splitlines()]

    def wait_for(self, word, count=1):
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            found = [line for line in self.lines() if line[0] == word]
            if len(found) >= count or self.process.poll() is not None:
                return
            time.sleep(0.005)
        raise AssertionError(f"client never logged {word}: {self.lines()[-3:]}")

    def send(self, number):
        if self.process.poll() is None:
            os.kill(self.process.pid, number)

    def end(self):
        self.send(signal.SIGCONT)
        self.send(signal.SIGKILL)
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def told(clients):
    """What the clients tried (sizes by batch), and the batches acknowledged and refused."""
    tried, acked, refused = {}, set(), set()
    for client in clients:
        for line in client.lines():
            if line[0] == "try" and len(line) == 3:
                tried[int(line[1])] = int(line[2])
            elif line[0] == "ack" and len(line) == 2:
                acked.add(int(line[1]))
            elif line[0] == "refused" and len(line) == 2:
                refused.add(int(line[1]))
    return tried, acked, refused


def check(table, clients):
    """Compare what a reader sees with the answers that clients had before the read began."""
    _, acked, _ = told(clients)
    rows = table.scan(freshness="durable").to_table()
    tried, _, refused = told(clients)
    seen = collections.Counter(rows["batch"].to_pylist())
    assert len(set(rows["id"].to_pylist())) == rows.num_rows, "a row is there twice"
    lost = acked - seen.keys()
    assert not lost, f"acknowledged and lost: {sorted(lost)[:5]}"
    assert not seen.keys() & refused, "a refused row is shown"
    assert seen.keys() <= tried.keys(), "rows nobody put"
    torn = {b: n for b, n in seen.items() if n != tried[b]}
    assert not torn, f"batches that are not whole: {torn}"
    return len(acked)


@pytest.mark.parametrize(
    ("store_kind", "keyed"),
    [("local", False), ("s3", True), ("azurite", True)],
    ids=["local-append-only", "s3-keyed", "azurite-keyed"],
    indirect=["store_kind"],
)
def test_killed_and_frozen_writers_lose_and_invent_nothing(store_kind, table_uri, keyed, tmp_path):
    options = dict(store_kind.storage_options)
    table = weir.create(
        table_uri, SCHEMA, primary_key="id" if keyed else None, storage_options=options
    )
    rng = random.Random(f"kill/{keyed}")
    rounds = ROUNDS[table_uri.partition("://")[0] if options else "local"]
    modes = ("durable", "wal-only", "tiny")
    clients = []
    waiting = [Client(table_uri, options, tmp_path, n, modes[n % 3]) for n in range(2)]
    frozen = []
    try:
        for number in range(rounds):
            client = waiting.pop(0)
            waiting.append(Client(table_uri, options, tmp_path, number + 2, modes[number % 3]))
            clients.append(client)
            client.go()
            client.wait_for("ack", rng.randint(1, 30))
            if rng.random() < 0.5:
                client.send(signal.SIGKILL)
            else:  # sleeps through the takeover and continues afterwards as if nothing had happened
                client.send(signal.SIGSTOP)
                frozen.append(client)
            if frozen and rng.random() < 0.5:
                frozen.pop(rng.randrange(len(frozen))).send(signal.SIGCONT)
            check(table, clients)
            if number % TIDY_EVERY == TIDY_EVERY - 1:
                table.compact()
        for client in frozen:
            client.send(signal.SIGCONT)
        for client in frozen:  # the newest may still own the shard and continue; all others stop
            if client is not clients[-1]:
                client.wait_for("end")
        acked = check(table, clients)
        assert acked >= rounds
    finally:
        for client in [*clients, *waiting]:
            client.end()
    with table.shard(None).writer() as writer:
        writer.put([{"id": -1, "batch": -1, "size": 1}])
    rows = table.scan(freshness="durable").to_table()
    assert -1 in rows["batch"].to_pylist()
