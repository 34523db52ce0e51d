"""Reads that are interrupted, each on a handle that has read before; and what it reads afterwards.

After the interrupt every kind of read gives exactly the rows of the table, also after one more put:
what a handle keeps between reads is whole or as it was (F-16).
"""

import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, Self

import pyarrow as pa

import weir
from tests.interrupts.points import Points, strikes_generator
from tests.interrupts.signals import interrupt_weir

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("t", pa.string()),
        ("e", pa.list_(pa.float32(), 2)),
    ]
)
PUT = 4
MOST = 10_000
"""More rows than any table here has."""
LONGEST_PAUSE = 0.01

Reader = Callable[[weir.Table, int], list[int]]
"""Reads a table with so many rows, and returns the ids found."""


def _ids(rows: pa.Table) -> list[int]:
    return list(rows["id"].to_pylist())


def _count(table: weir.Table, _: int) -> list[int]:
    return list(range(table.scan().count()))


def _text(table: weir.Table, rows: int) -> list[int]:
    """Every row has a word in common, and one of its own: postings that moved find other rows."""
    for key in (0, rows // 2, rows - 1):
        found = _ids(table.search("t", f"w{key}", k=MOST))
        if found != [key]:
            return found
    return _ids(table.search("t", "word", k=MOST))


def _changes(table: weir.Table, _: int) -> list[int]:
    return [key for change in table.changes() for key in change.batch.column("id").to_pylist()]


READS: dict[str, Reader] = {
    "read_scan": lambda t, _: _ids(t.scan().to_table()),
    "read_get": lambda t, rows: _ids(t.get(list(range(rows)))),
    "read_count": _count,
    "read_text": _text,
    "read_near": lambda t, _: _ids(t.search("e", [0.0, 0.0], k=MOST)),
    "read_changes": _changes,
}
LAYOUTS = ("log", "shards", "flushed", "unkeyed")


def reads_of(layout: str) -> list[str]:
    """The reads that such a table has."""
    return [name for name in READS if layout != "unkeyed" or name != "read_get"]


@dataclass(frozen=True)
class ReadCase:
    """One kind of read of rows in one log, in the logs of several shards, or also in SSTables;
    "unkeyed": in several logs, without a key, where a row that is held twice is seen twice."""

    verb: str
    layout: str

    @property
    def name(self) -> str:
        return f"{self.verb}-{self.layout}"

    def trial(self, place: str, points: Points) -> tuple[str, str]:
        """Interrupt the read at the point; the outcome and its details."""
        with Reading(self, place) as reading:
            return reading.struck(points)

    def storm(self, place: str, seconds: float, seed: int) -> tuple[str, str]:
        """Interrupt the read with real signals for so many seconds."""
        end = time.monotonic() + seconds
        chance = random.Random(f"{self.name} {seed}")
        before = signal.signal(signal.SIGALRM, interrupt_weir)
        try:
            for number in count(1):
                with Reading(self, f"{place}/{number}") as reading:
                    outcome, detail = reading.stormed(chance)
                if outcome != "ok" or time.monotonic() > end:
                    return outcome, detail
        finally:
            signal.signal(signal.SIGALRM, before)
        raise AssertionError("unreachable")


class Reading:
    """A table, its writer, and a handle that has read it."""

    def __init__(self, case: ReadCase, place: str) -> None:
        self._read = READS[case.verb]
        self._reads = {name: READS[name] for name in reads_of(case.layout)}
        sharding = weir.Bucket("id", 3) if case.layout in ("shards", "unkeyed") else None
        key = None if case.layout == "unkeyed" else "id"
        table = weir.create(place, SCHEMA, primary_key=key, sharding=sharding)
        self._writer = table.writer()
        self._rows = 0
        self._put()
        if case.layout == "flushed":
            self._writer.flush()
        self._put()
        self._handle = weir.open(place)
        for read in self._reads.values():
            read(self._handle, self._rows)
        self._put()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def _put(self) -> None:
        keys = range(self._rows, self._rows + PUT)
        self._writer.put([{"id": i, "t": f"word w{i}", "e": [float(i), 0.0]} for i in keys])
        self._rows += PUT

    def struck(self, points: Points) -> tuple[str, str]:
        """Read within the points, then see what the handle reads."""
        found: list[int] | None = None
        try:
            with points:
                found = self._read(self._handle, self._rows)
        except KeyboardInterrupt:
            pass
        except Exception as error:
            return "error", f"the interrupted read raised {error!r}"
        if found is not None and points.raised and not strikes_generator(points):
            return "swallowed", "the read returned as if there had been no interrupt"
        return self._judged()

    def stormed(self, chance: random.Random) -> tuple[str, str]:
        """Some reads under a timer, each after a put, then see what the handle reads."""
        for _ in range(8):
            self._put()
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, LONGEST_PAUSE))
            try:
                self._read(self._handle, self._rows)
            except KeyboardInterrupt:
                pass
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        return self._judged()

    def _judged(self) -> tuple[str, str]:
        for _ in range(2):
            for name, read in self._reads.items():
                try:
                    outcome, detail = self._compared(read(self._handle, self._rows))
                except Exception as error:
                    return "error", f"{name} raised {error!r}"
                if outcome != "ok":
                    return outcome, f"{name}: {detail}"
            self._put()
        return "ok", ""

    def _compared(self, found: list[int]) -> tuple[str, str]:
        met: Counter[Any] = Counter(found)
        if lost := [i for i in range(self._rows) if not met[i]]:
            return "lost", f"{lost} of {self._rows} rows"
        if len(found) > self._rows:
            return "doubled", f"{len(found)} rows of {self._rows}"
        return "ok", ""


def read_cases(verb: str = "") -> Iterator[ReadCase]:
    """Every case, or those of some verbs, with commas; a case's own name chooses that one."""
    chosen = set(verb.split(","))
    for layout in LAYOUTS:
        for name in reads_of(layout):
            case = ReadCase(name, layout)
            if not verb or chosen & {name, case.name}:
                yield case
