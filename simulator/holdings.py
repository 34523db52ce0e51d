"""How many bytes of a log each process holds (L-10), counted when handed out and when freed."""

from __future__ import annotations

import gc
from collections import Counter

from simulator.scheduler import Actor
from simulator.truth import Violation

ENTRIES_HELD = 8
"""Entries held although each is larger than a read may hold: one in each place below."""
READS_HELD = 14
"""Caches of entries and of tails, four reads each; a round of gets, three; a piece of a tail, one
or two."""


class Held(bytes):
    """Bytes of a log that report when they are freed."""

    ledger: Ledger
    owner: str

    def __del__(self) -> None:
        self.ledger.held[self.owner] -= len(self)


class Ledger:
    """How many bytes each watched process holds."""

    def __init__(self, read_bytes: int) -> None:
        self.held: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.largest = 0
        """Bytes of the largest entry there is."""
        self.generations: Counter[int] = Counter()
        """Bytes of each generation in the log; generations become SSTables one by one."""
        self._read_bytes = read_bytes
        self._watched: set[str] = set()

    def watch(self, actor: Actor) -> None:
        """From now on this process must stay within its bound."""
        self._watched.add(actor.name)

    @property
    def allowed(self) -> int:
        """The bytes of the log that a process may hold at once, however long the log is."""
        generation = max(self.generations.values(), default=0)
        return READS_HELD * self._read_bytes + ENTRIES_HELD * self.largest + generation

    def hand(self, actor: Actor, path: str, data: bytes) -> bytes:
        """Bytes for a process that reads them; see `World.hand`."""
        name = actor.name
        if name not in self._watched or "/wal/" not in path:
            return data
        given = Held(data)
        given.ledger, given.owner = self, name
        self.held[name] += len(given)
        if self.held[name] > self.allowed:
            gc.collect()  # bytes that only cycles refer to are not held
        self.most[name] = max(self.most[name], self.held[name])
        if self.held[name] > self.allowed:
            raise Violation(
                "M", f"{name} holds {self.held[name]} bytes of the log; {self.allowed} may be"
            )
        return given
