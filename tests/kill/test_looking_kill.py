"""O-2 to O-4 under real signals: successive owners decide on few hot keys, and keep journals.

Every owner is killed or paused while its threads or tasks decide, and the next takes over; a
paused owner wakes up after its successor. The journals record each call's begin and its answer.
"""

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

CLIENT = Path(__file__).parent.parent / "support" / "looking_client.py"
SCHEMA = pa.schema([pa.field("k", pa.int64()), ("v", pa.int64()), ("by", pa.string())])
HOT = 3
OWNERS = int(os.environ.get("WEIR_KILL_ROUNDS", "5"))
HOW = ("threads", "tasks", "tasks")
"""Owners with threads and with tasks are both killed and both paused."""
PATIENCE = 60.0

pytestmark = [pytest.mark.kill, pytest.mark.slow]


class Op:
    """One operation of a journal; one that was never answered has no end."""

    def __init__(self, begun: int, name: str, kind: str, key: int, value: int) -> None:
        self.begun, self.name, self.kind, self.key, self.value = begun, name, kind, key, value
        self.ended: int | None = None
        self.wrote = False


def read(journals: list[Path]) -> list[Op]:
    ops: dict[str, Op] = {}
    for journal in journals:
        for line in journal.read_text().splitlines():
            at, word, *rest = line.split()
            if word == "begin":
                name, kind, key, value = rest
                ops[name] = Op(int(at), name, kind, int(key), int(value))
            elif word == "end":
                ops[rest[0]].ended, ops[rest[0]].wrote = int(at), rest[1] == "1"
    return list(ops.values())


def wait_for(journal: Path, words: int) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if journal.exists() and journal.read_text().count(" end ") >= words:
            return
        time.sleep(0.005)
    raise AssertionError(f"{journal} has too few answers after {PATIENCE} s")


def test_o4_decisions_of_successive_owners_are_as_if_made_one_after_the_other(
    tmp_path: Path,
) -> None:
    uri = str(tmp_path / "t")
    table = weir.create(uri, SCHEMA, primary_key="k")
    with table.writer() as writer:
        writer.put([{"k": key, "v": 0, "by": "start"} for key in range(HOT)])
    rng = random.Random(21)
    journals: list[Path] = []
    paused: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(OWNERS):
            journals.append(tmp_path / f"{number}.log")
            client = subprocess.Popen(
                [sys.executable, str(CLIENT), uri, str(journals[-1]), str(number), HOW[number % 3]],
                stderr=subprocess.DEVNULL,
            )
            paused.append(client)
            wait_for(journals[-1], rng.randrange(20, 60))
            pauses = number % 2 == 0 and number < OWNERS - 1
            os.kill(client.pid, signal.SIGSTOP if pauses else signal.SIGKILL)
    finally:
        for client in paused:
            for stopped in (signal.SIGCONT, signal.SIGKILL):
                if client.poll() is None:
                    os.kill(client.pid, stopped)
                    time.sleep(0.3 if stopped is signal.SIGCONT else 0)
            client.wait()
    rows = {row["k"]: row for row in table.scan().to_table().to_pylist()}
    check(read(journals), rows)


def check(ops: list[Op], rows: dict[int, dict[str, object]]) -> None:
    raised = [op for op in ops if op.kind == "raise"]
    assert sum(op.wrote for op in raised) >= 20
    for key in range(HOT):
        of_key = [op for op in raised if op.key == key]
        told = [op for op in of_key if op.wrote]
        last = rows[key]["v"]
        # Each value was reached once, and no value that was acknowledged is lost.
        assert len({op.value for op in told}) == len(told)
        assert max((op.value for op in told), default=0) <= last
        unknown = {op.value for op in of_key if op.ended is None}
        for value in range(1, last + 1):
            assert value in unknown or any(op.value == value for op in told), (key, value)
        # An operation that began after another was answered comes after it.
        for earlier in told:
            for later in told:
                if later.begun > earlier.ended:
                    assert later.value > earlier.value, (earlier.name, later.name)
        by = next((op for op in of_key if op.name == rows[key]["by"]), None)
        assert by is None or by.value == last
    inserts = [op for op in ops if op.kind == "insert"]
    for key in {op.key for op in inserts}:
        of_key = [op for op in inserts if op.key == key]
        wrote = [op for op in of_key if op.wrote]
        assert len(wrote) <= 1, f"{key} was new twice"
        skipped = [op for op in of_key if op.ended is not None and not op.wrote]
        if wrote or skipped:
            assert key in rows
        for op in skipped:  # an insert by another caller may have preceded it
            assert any(o.begun < op.ended and (o.wrote or o.ended is None) for o in of_key)
        if wrote:
            assert rows[key]["by"] == wrote[0].name
