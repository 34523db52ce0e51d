"""Streams beside MERGE beside reshards beside upkeep, while drivers and workers are killed.

A minute and a half for each round, so only where WEIR_BESIDE_ROUNDS asks for some (`make soak`).
"""

import contextlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

import weir
from tests.support.beside_job import FIRST_STREAMED, after, lines, make, opened
from tests.support.spark import built_jar
from weir.spark import jar

ROUNDS = int(os.environ.get("WEIR_BESIDE_ROUNDS", "0"))
EACH = 3
"""Files that a round adds, and statements that it asks for."""
FILE_ROWS = 20
PATIENCE = 600.0

pytestmark = [
    pytest.mark.spark,
    pytest.mark.kill,
    pytest.mark.slow,
    pytest.mark.timeout(600 * (ROUNDS + 1)),
    pytest.mark.skipif(not ROUNDS, reason="WEIR_BESIDE_ROUNDS asks for no round"),
    pytest.mark.skipif(jar.compiler() is None and not jar.path().is_file(), reason="no JDK"),
]


class Job:
    """The driver, its JVM and its workers: processes that this test may kill."""

    def __init__(self, root: Path, statements: int) -> None:
        self._root = root
        self._seen: set[psutil.Process] = set()
        self._log = (root / "driver.log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.beside_job", str(root), str(statements)],
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONWARNINGS": "ignore"},
        )

    def _tree(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.Error):
            self._seen.update(psutil.Process(self.process.pid).children(recursive=True))
        return [one for one in self._seen if one.is_running()]

    def wait_for(self, done: int) -> None:
        """Until so many statements are acknowledged, or the driver has ended."""
        until = time.monotonic() + PATIENCE
        while len(lines(self._root, "done")) < done and self.process.poll() is None:
            assert time.monotonic() < until, self.told()
            time.sleep(0.01)

    def kill(self, victim: str, chance: random.Random) -> None:
        """The driver, whose workers go on for a while; the whole container; or one worker."""
        tree = self._tree()
        if victim == "worker":
            names = {one.pid: one for one in tree}
            workers = [one for one in tree if _is_worker(one, names)]
            tree = [chance.choice(workers)] if workers else []
        elif victim == "driver":
            tree = [one for one in tree if _named(one) == "java"]
        for one in tree:
            with contextlib.suppress(psutil.Error):
                one.kill()
        if victim != "worker":
            self.process.kill()

    def end(self) -> int:
        """Its exit code, when it has ended; nothing of it is left running."""
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the driver hangs: {self.told()}") from None
        finally:
            self.kill("container", random.Random(0))
            self.process.wait()
            self._log.close()

    def told(self) -> str:
        return (self._root / "driver.log").read_text()[-3000:]


def _named(one: psutil.Process) -> str:
    try:
        return one.name()
    except psutil.Error:
        return ""


def _is_worker(one: psutil.Process, tree: dict[int, psutil.Process]) -> bool:
    """A fork of Spark's daemon, whose parent is another Python process of the JVM."""
    try:
        parent = tree.get(one.ppid())
        return parent is not None and _named(parent).startswith("python")
    except psutil.Error:
        return False


def check(root: Path) -> None:
    """Every statement is whole or absent, the acknowledged ones are there, no row comes twice."""
    least = len(lines(root, "done"))
    try:
        found = opened(root, "both").scan(filter=f"id < {FIRST_STREAMED}").to_table().to_pylist()
        once = Counter(opened(root, "log").scan(columns=["id"]).to_table()["id"].to_pylist())
    except weir.SnapshotExpired:
        return  # gc has no patience here
    most = len(lines(root, "done")) + 1
    rows = {row["id"]: row["n"] for row in found}
    assert len(rows) == len(found)
    assert any(rows == after(count) for count in range(least, most + 1)), (least, most, rows)
    assert not once or max(once.values()) == 1


def upkeep(root: Path) -> Iterator[Callable[[], object]]:
    """One verb after the other, for ever; between two reshards a statement finds time to end."""
    reached = -1
    while True:
        for buckets in (3, 4):
            for name in ("both", "log"):
                table = opened(root, name)
                yield table.compact
                done = len(lines(root, "done"))
                if name == "log" or done > reached:
                    reached = max(done, reached)
                    yield partial(table.reshard, weir.Bucket("id", buckets))
                    yield partial(table.gc, min_age=0)


@contextlib.contextmanager
def beside(work: Callable[[], object]) -> Iterator[None]:
    """`work`, over and over, in a thread of its own; what it raises is raised at the end."""
    over = threading.Event()
    failed: list[BaseException] = []

    def run() -> None:
        while not over.is_set():
            try:
                work()
            except BaseException as error:
                failed.append(error)
                return

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if failed:
        raise failed[0]


def test_p2_p8_nothing_is_lost_doubled_or_halved_beside_everything_else(tmp_path: Path) -> None:
    built_jar()
    make(tmp_path)
    chance = random.Random(7)
    verbs = upkeep(tmp_path)
    victims = ("driver", "worker", "container")
    with beside(lambda: (next(verbs)(), check(tmp_path))):
        for number in range(ROUNDS + 1):
            for file in range(number * EACH, (number + 1) * EACH):
                write_file(tmp_path, file)
            job = Job(tmp_path, (number + 1) * EACH)
            if number < ROUNDS:
                job.wait_for(number * EACH + chance.randrange(1, EACH - 1))
                time.sleep(chance.uniform(0, 1.5))
                job.kill(victims[number % 3], chance)
            code = job.end()
            is_whole = number == ROUNDS or victims[number % 3] == "worker"
            assert code == 0 or not is_whole, job.told()
    count = EACH * (ROUNDS + 1)
    assert len(lines(tmp_path, "done")) == count
    streamed = {FIRST_STREAMED + id_: id_ // FILE_ROWS for id_ in range(count * FILE_ROWS)}
    held = {row["id"]: row["n"] for row in opened(tmp_path, "both").scan().to_table().to_pylist()}
    assert held == after(count) | streamed
    for name in ("log", "copy"):
        rows = opened(tmp_path, name).scan().to_table().to_pylist()
        assert Counter((row["id"], row["n"]) for row in rows) == Counter(streamed.items()), name
    assert not [line for line in lines(tmp_path, "failed") if not is_expected(line)]


def write_file(root: Path, number: int) -> None:
    ids = range(number * FILE_ROWS, (number + 1) * FILE_ROWS)
    rows = [json.dumps({"id": FIRST_STREAMED + id_, "n": number}) for id_ in ids]
    written = root / f"{number}.part"
    written.write_text("\n".join(rows))
    written.rename(root / "in" / f"{number:06d}.json")


def is_expected(line: str) -> bool:
    """A statement may lose a race; a worker that was killed, or was not started in time on a busy
    machine, ends what it did."""
    words = ["Python worker", "EOFException", "Connection reset", "Broken pipe"]
    if line.startswith("statement"):
        words += ["CommitConflict", "SnapshotExpired"]
    return any(word in line for word in words)
