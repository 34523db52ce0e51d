"""Keepers as processes: killed, frozen and woken beside live writers; no acknowledged row is lost.

What decides is the number of rows put, never the time that passes.
"""

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import weir
from tests.support.moments import SCHEMA, rows

TABLES, PUTS = 4, 60
POLICY = """
every = "50ms"
find = "200ms"
jobs = 2

[defaults]
gc = "300ms"
min_age = "0s"
fence_retention = "2s"
compact = { generations = 2 }

[[defaults.checkpoints]]
name = "often"
every = "500ms"
keep = "1s"
"""


class Process:
    """`weir keep` on a folder, in a process of its own."""

    def __init__(self, lake: Path, policy: Path) -> None:
        command = [sys.executable, "-m", "weir", "keep", str(lake), "--policy", str(policy)]
        self.running = subprocess.Popen(
            [*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.reports: list[dict[str, Any]] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.running.stdout is not None
        for line in self.running.stdout:
            with self._news:
                if line.endswith("\n"):  # not the half of one that a killed process wrote
                    self.reports.append(json.loads(line))
                self._news.notify_all()

    def works_on(self) -> None:
        """Wait until it has done a few jobs more."""
        with self._news:
            wanted = len(self.reports) + 6
            assert self._news.wait_for(lambda: len(self.reports) >= wanted, 60)

    def send(self, number: int) -> None:
        os.kill(self.running.pid, number)

    def end(self, number: int) -> int:
        """Send the signal and wait for the end."""
        self.send(number)
        self.running.wait(60)
        self._reader.join(10)
        assert self.running.stdout is not None
        assert self.running.stderr is not None
        complaints = self.running.stderr.read()
        self.running.stdout.close()
        self.running.stderr.close()
        assert "Traceback" not in complaints, complaints
        return self.running.returncode


class Writers:
    """A thread for each table that puts one row at a time through a writer it keeps open."""

    def __init__(self, lake: Path) -> None:
        config = weir.WriterConfig(max_memtable_rows=10, fence_ttl=1, max_memtable_age="200ms")
        self.tables = [
            weir.create(lake / f"t{n}", SCHEMA, primary_key="id", writer_defaults=config)
            for n in range(TABLES)
        ]
        self.acknowledged: list[dict[int, str]] = [{} for _ in self.tables]
        self.errors: list[BaseException] = []
        self._allowed = [threading.Semaphore(0) for _ in self.tables]
        self._is_over = False
        self._threads = [
            threading.Thread(target=self._put, args=(n,), daemon=True) for n in range(TABLES)
        ]
        for thread in self._threads:
            thread.start()

    def _put(self, number: int) -> None:
        try:
            with self.tables[number].writer() as writer:
                for n in itertools.count():
                    self._allowed[number].acquire()
                    if self._is_over:
                        return
                    key, text = n % 70, f"{number}-{n}"
                    writer.put([{"id": key, "v": text}])
                    self.acknowledged[number][key] = text
        except BaseException as error:
            self.errors.append(error)

    def put_more(self) -> None:
        """Let each put a few rows more, in the background."""
        for each in self._allowed:
            each.release(PUTS)

    def close(self) -> None:
        self._is_over = True
        for thread, each in zip(self._threads, self._allowed, strict=True):
            each.release()
            thread.join(120)
            assert not thread.is_alive()
        assert self.errors == []


def test_every_acknowledged_row_outlives_keepers_that_are_killed_and_frozen(
    tmp_path: Path,
) -> None:
    lake, policy = tmp_path / "lake", tmp_path / "keep.toml"
    lake.mkdir()
    policy.write_text(POLICY)
    writers = Writers(lake)
    first, second = Process(lake, policy), Process(lake, policy)
    keepers = [first, second]
    try:
        writers.put_more()
        first.works_on()
        second.works_on()
        second.send(signal.SIGSTOP)  # at any point of a job
        writers.put_more()
        first.works_on()
        writers.put_more()
        assert first.end(signal.SIGKILL) == -signal.SIGKILL
        third = Process(lake, policy)
        keepers.append(third)
        third.works_on()
        second.send(signal.SIGCONT)  # with plans from long ago
        writers.put_more()
        second.works_on()
        second.send(signal.SIGHUP)
        second.works_on()
        writers.close()
        assert second.end(signal.SIGTERM) == 0
        assert third.end(signal.SIGTERM) == 0
    finally:
        for process in keepers:
            if process.running.poll() is None:
                process.running.kill()
    reports = [report for process in keepers for report in process.reports]
    assert not [r for r in reports if r["result"] in ("failed", "damaged")]
    assert {r["job"] for r in reports} >= {"compact", "gc", "checkpoint often"}
    for table, acknowledged in zip(writers.tables, writers.acknowledged, strict=True):
        other = weir.open(table.uri)
        assert rows(other) == acknowledged
        other.compact(lease=0)  # the killed keeper may have left its claim
        other.gc(min_age=0, fence_retention=2)
        assert rows(other, freshness="base") == acknowledged
        assert other.stats().generations == 0
