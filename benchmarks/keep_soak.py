"""Do keepers that are killed and frozen at random keep many tables small, and lose nothing?

    python -m benchmarks.keep_soak --minutes 10

Processes put rows into 50 tables; two `weir keep` look after all of them. Every few seconds one of
these processes is killed and started again, or frozen for a while; a frozen writer may be replaced
meanwhile, and a keeper is left alone until it has done a job: one that never begins keeps nothing.
In the end the writers close, and each table is compacted and collected at zero age.

Prints a line of JSON, and fails unless no process ended by itself with an error, every acknowledged
row is there (or a later one of its key), what the keepers left waiting is bounded (docs/howto/
upkeep.md: the policy's bound, and what the table's writers make while nobody may fold it), nothing
waits after the last compaction, and the objects of all tables together take at most 1.3 times what
Lance alone writes for the same rows. What rules keep for a while is counted apart: the first
entries of epochs (G-7a), the newest manifests, and weir's records.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import lance
import pyarrow as pa

import weir
from weir import durations
from weir.upkeep.defaults import LEASE

STORAGE_MAX = 1.3
DUE = 4
"""SSTables of a table from which on its compaction is due."""
DEATHS = 3
"""Keepers that are killed in a row while they fold the same table: each is killed once in 13
seconds, and folds for about one, so that more is rarer than one run in a hundred. The table waits
for the lease of each."""
UNSEEN_MAX = 120.0
"""Seconds in which no keeper did a job of a table; one is due every ten. Longer, and the keepers
hardly ran: the machine is too slow for this, or they leave tables out."""
KEYS = 2_000
ROWS = 20
"""In each put."""
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("v", pa.int64()),
        pa.field("payload", pa.binary()),
    ]
)
POLICY = """
every = "1s"
find = "10s"
jobs = 2

[defaults]
gc = "10s"
min_age = "2s"
fence_retention = "2s"
silent_after = "2m"
take_over = "5s"
compact = { generations = DUE, age = "20s" }

[[defaults.checkpoints]]
name = "often"
every = "15s"
keep = "20s"
"""


def write(lake: Path, first: int, last: int, told: Path) -> None:
    """Put into those tables until a signal; one line for each put, before it and after it."""
    rng, is_over = random.Random(time.time_ns()), []
    signal.signal(signal.SIGTERM, lambda *_: is_over.append(True))
    tables = [weir.open(lake / f"t{n}") for n in range(first, last)]
    writers = [table.writer() for table in tables]
    with told.open("a") as out:
        try:
            while not is_over:
                for n, writer in enumerate(writers, first):
                    value = time.time_ns()
                    keys = rng.sample(range(KEYS), ROWS)
                    rows = [{"id": key, "v": value, "payload": rng.randbytes(100)} for key in keys]
                    out.write(json.dumps({"table": n, "v": value, "keys": keys}) + "\n")
                    out.flush()
                    writer.put(rows)
                    out.write(json.dumps({"table": n, "v": value}) + "\n")
                    out.flush()
                time.sleep(0.02)
            for writer in writers:
                writer.close()
        except (weir.FencedError, weir.UnknownOutcome):
            return  # it was frozen, and replaced


class Looks:
    """When keepers did jobs, as they say themselves."""

    def __init__(self, uris: list[str]) -> None:
        self._last = dict.fromkeys(uris, time.monotonic())
        self._lock = threading.Lock()
        self.longest = 0.0
        """Seconds in which one table saw none."""
        self.begun: set[int] = set()
        """Keepers that have done one, by the ids of their processes."""

    def listen(self, keeper: subprocess.Popen[bytes]) -> None:
        """Note what it says until it ends."""
        assert keeper.stdout is not None
        for line in keeper.stdout:
            with self._lock, contextlib.suppress(json.JSONDecodeError):  # killed in mid-line
                self._see(json.loads(line)["uri"])
                self.begun.add(keeper.pid)

    def end(self) -> None:
        """The time since the last one counts, too."""
        with self._lock:
            for uri in self._last:
                self._see(uri)

    def _see(self, uri: str) -> None:
        now = time.monotonic()
        self.longest = max(self.longest, now - self._last.get(uri, now))
        self._last[uri] = now


class Processes:
    """The writers and the keepers, and what is done to them."""

    def __init__(self, lake: Path, tables: int, writers: int, seed: int) -> None:
        self._lake, self._rng = lake, random.Random(seed)
        self._policy = lake.parent / "keep.toml"
        self._policy.write_text(POLICY.replace("DUE", str(DUE)))
        share = -(-tables // writers)
        self._parts = [(n, min(n + share, tables)) for n in range(0, tables, share)]
        self.logs = lake.parent / "told"
        self.logs.mkdir()
        self._frozen: list[tuple[float, subprocess.Popen[bytes]]] = []
        self._all: list[subprocess.Popen[bytes]] = []
        self.counts = {"killed": 0, "frozen": 0, "replaced": 0}
        self.looks = Looks([str(lake / f"t{n}") for n in range(tables)])
        self.writers = {part: self._writer(part) for part in self._parts}
        self.keepers = [self._keeper() for _ in range(2)]

    def _writer(self, part: tuple[int, int]) -> subprocess.Popen[bytes]:
        told = self.logs / f"{len(self._all)}.jsonl"
        own = [sys.executable, "-m", "benchmarks.keep_soak"]
        return self._start([*own, "--write", str(self._lake), *map(str, part), str(told)], None)

    def _keeper(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-u", "-m", "weir", "keep", str(self._lake)]
        command += ["--policy", str(self._policy), "--json"]
        keeper = self._start(command, subprocess.PIPE)
        threading.Thread(target=self.looks.listen, args=(keeper,), daemon=True).start()
        return keeper

    def _start(self, command: list[str], stdout: int | None) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(command, stdout=stdout or subprocess.DEVNULL)
        self._all.append(process)
        return process

    def disturb(self) -> None:
        """Kill or freeze one of them, and wake those that were frozen for long enough."""
        now, rng = time.monotonic(), self._rng
        for until, process in list(self._frozen):
            if now >= until:
                process.send_signal(signal.SIGCONT)
                self._frozen.remove((until, process))
        part, number = rng.choice(self._parts), rng.randrange(2)
        is_keeper = rng.random() < 0.6
        victim = self.keepers[number] if is_keeper else self.writers[part]
        frozen = {process for _, process in self._frozen}
        if is_keeper and victim.poll() is None and victim.pid not in self.looks.begun:
            return
        if victim.poll() is None and victim not in frozen and rng.random() < 0.5:
            victim.send_signal(signal.SIGSTOP)
            self._frozen.append((now + rng.uniform(1, 20), victim))
            self.counts["frozen"] += 1
            if is_keeper or rng.random() < 0.5:
                return
            self.counts["replaced"] += 1  # the frozen one is fenced, and learns it when it wakes
        elif victim not in frozen:
            victim.kill()
            victim.wait()
            self.counts["killed"] += 1
        if is_keeper and victim.poll() is not None:
            self.keepers[number] = self._keeper()
        elif not is_keeper:
            self.writers[part] = self._writer(part)

    def stop(self) -> int:
        """Wake and end all of them; the writers close. Returns how many ended with an error."""
        for process in self._all:
            if process.poll() is None:
                process.terminate()
                process.send_signal(signal.SIGCONT)
        failed = 0
        for process in self._all:
            status = process.wait(120)
            # One that was started a moment ago may have had no handler for the signal yet.
            if status not in (0, -signal.SIGKILL, -signal.SIGTERM):
                failed += 1
                print("ended with status", status, process.args, file=sys.stderr)
        return failed


def acknowledged(logs: Path) -> tuple[dict[tuple[int, int], int], set[tuple[int, int]]]:
    """The newest acknowledged value of each key of each table, and all values that were tried."""
    newest: dict[tuple[int, int], int] = {}
    tried: dict[tuple[int, int], list[int]] = {}
    for line in _lines(logs):
        put = (line["table"], line["v"])
        if "keys" in line:
            tried[put] = line["keys"]
        else:
            for key in tried[put]:
                newest[put[0], key] = max(put[1], newest.get((put[0], key), 0))
    return newest, set(tried)


def _lines(logs: Path) -> Iterator[dict]:  # type: ignore[type-arg]
    for log in sorted(logs.iterdir(), key=lambda path: int(path.stem)):
        for line in log.read_text().splitlines():
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                break  # the half of a line that a killed writer wrote


def bound(table: weir.Table, seconds: float, unseen: float) -> float:
    """How many SSTables may wait, by the rate at which the writers made them."""
    made = sum(shard.manifest().current_generation - 1 for shard in table.shards())
    return DUE + made / seconds * (unseen + DEATHS * (durations.seconds(LEASE) + unseen))


def measure(lake: Path, tables: int, logs: Path, seconds: float, unseen: float) -> dict[str, float]:
    """Compact and collect every table, and compare it with what was acknowledged."""
    newest, tried = acknowledged(logs)
    lost = alien = waiting = stored = kept = ideal = 0
    debts, excess = [], 0
    for n in range(tables):
        table = weir.open(lake / f"t{n}")
        debts.append(weir.due(table).debt)
        excess += debts[-1].generations > bound(table, seconds, unseen)
        for made in table.checkpoints():
            table.delete_checkpoint(made)
        for _ in range(2):
            table.compact(lease=0)
            table.gc(min_age=0, fence_retention=2)
        found = table.scan().to_table()
        values = dict(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))
        mine = {key: value for (t, key), value in newest.items() if t == n}
        lost += sum(values.get(key, 0) < value for key, value in mine.items())
        alien += sum((n, value) not in tried for value in values.values())
        waiting += table.stats().generations
        for file in (lake / f"t{n}").rglob("*"):
            if file.is_file():
                size = file.stat().st_size
                if file.parts[len(lake.parts) + 1] in ("data", "_deletions", "_indices"):
                    stored += size
                else:
                    kept += size
        plain = lake.parent / f"plain{n}"
        lance.write_dataset(found, plain)
        ideal += sum(f.stat().st_size for f in (plain / "data").rglob("*") if f.is_file())
    return {
        "rows_acknowledged": len(newest),
        "puts": len(tried),
        "lost": lost,
        "alien": alien,
        "entries_most": max(debt.entries for debt in debts),
        "generations_most": max(debt.generations for debt in debts),
        "tables_beyond_bound": excess,
        "seconds_unseen_most": round(unseen, 1),
        "generations_left": waiting,
        "stored_bytes": stored,
        "ideal_bytes": ideal,
        "ratio": round(stored / ideal, 3) if ideal else 0.0,
        "kept_by_rules_bytes": kept,
    }


def soak(lake: Path, *, tables: int, writers: int, seconds: float, seed: int) -> dict[str, float]:
    """Run everything for `seconds`; the counts and sizes."""
    config = weir.WriterConfig(max_memtable_rows=2_000, fence_ttl=1, max_memtable_age="3s")
    for n in range(tables):
        weir.create(lake / f"t{n}", SCHEMA, primary_key="id", writer_defaults=config)
    processes = Processes(lake, tables, writers, seed)
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            time.sleep(2)
            processes.disturb()
        processes.looks.end()
    finally:
        failed = processes.stop()
    found = {**processes.counts, "failed": failed}
    return found | measure(lake, tables, processes.logs, seconds, processes.looks.longest)


def main(argv: list[str] | None = None) -> int:
    """Run the soak, print the figures, and fail if rows are lost or storage is not bounded."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.keep_soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--tables", type=int, default=50)
    parser.add_argument("--writers", type=int, default=4, help="processes that put")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", nargs=4, help=argparse.SUPPRESS)
    asked = parser.parse_args(argv)
    if asked.write:
        lake, first, last, told = asked.write
        write(Path(lake), int(first), int(last), Path(told))
        return 0
    with tempfile.TemporaryDirectory() as place:
        lake = Path(place) / "lake"
        lake.mkdir()
        found = soak(
            lake,
            tables=asked.tables,
            writers=asked.writers,
            seconds=asked.minutes * 60,
            seed=asked.seed,
        )
    print(json.dumps(found))
    none = ("failed", "lost", "alien", "generations_left", "tables_beyond_bound")
    is_whole = not any(found[name] for name in none)
    is_kept = found["ratio"] <= STORAGE_MAX and found["seconds_unseen_most"] <= UNSEEN_MAX
    return 0 if is_whole and is_kept else 1


if __name__ == "__main__":
    raise SystemExit(main())
