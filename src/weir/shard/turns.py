"""What the writers of one table share: the lock over their state, threads, and turns on a quick
store.

The same threads put to all shards of a table. On a quick store the commit threads of its shards
take turns, one entry at a time, and each waits until the putters that it woke have run: they are
about to put again, and their rows belong in the next entries. They come in order: a shard that has
waited for three others has the puts of many. Several commit threads at once would
only take the interpreter from each other and from the putters. On a slow store entries of different
shards are in flight together. `Pace` chooses between the two by the latest entries. A turn that
takes too long is not waited for: no shard waits for the store of another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from weir.env import Lock, Threads
from weir.shard.aging import AgeWatch

QUICK_SECONDS: Final = 0.001
"""A store is quick if an entry takes at most this long: less than what several commit threads lose
by taking the interpreter from each other."""
NEARLY_QUICK_SECONDS: Final = 3 * QUICK_SECONDS
"""The bound for the quickest entry of such a store while several commit threads contend."""
PACE_ENTRIES: Final = 32
"""Entries whose quickest decides; a single entry may have waited for a processor."""
SLOW_ENTRIES: Final = 4
"""Entries that suffice to recognize a store that is not even nearly quick."""
REST_ENTRIES: Final = 1024
"""Entries after which a nearly quick store is tried with turns again."""
GATHER_SECONDS: Final = 0.05
"""How long others wait for the putters that a commit thread woke. They wake each other, so a thread
that was interrupted may have woken nobody: then all are woken at once."""
PATIENCE_SECONDS: Final = 0.25
"""How long a commit thread waits for the turn of another shard before it gives up turns."""
IDLE_SECONDS: Final = 5.0
"""How long a thread of a writer waits for work before it ends."""
THREADS_KEPT: Final = 64
"""Threads that wait for work; more end at once, so that a table of a thousand shards does not have
a thousand of them."""
LIGHT_BYTES: Final = 1 << 18
"""Most bytes of rows in an entry that takes a turn: a larger one would hold up other shards."""


class Pace:
    """Whether the store is quick, judged by the quickest of the latest entries: with turns, other
    commit threads did not slow them down. The store is assumed quick until measured."""

    def __init__(self) -> None:
        self._begin(is_quick=True)

    def _begin(self, *, is_quick: bool) -> None:
        self.is_quick = is_quick
        self._quickest = float("inf")
        self._entries = 0

    def forget(self) -> None:
        """Treat the store as slow, whatever it was; after a short rest it is judged again."""
        self._begin(is_quick=False)
        self._entries = REST_ENTRIES - PACE_ENTRIES

    def record_latency(self, seconds: float) -> None:
        """Record how long an entry took to write."""
        self._entries += 1
        self._quickest = quickest = min(self._quickest, seconds)
        if self._entries == (PACE_ENTRIES if self.is_quick else REST_ENTRIES):
            bound = QUICK_SECONDS if self.is_quick else NEARLY_QUICK_SECONDS
            self._begin(is_quick=quickest <= bound)
        elif self.is_quick and self._entries == SLOW_ENTRIES and quickest > NEARLY_QUICK_SECONDS:
            self._begin(is_quick=False)


class WaiterGroup:
    """The threads that wait for the writers of one table, or for a standalone writer."""

    def __init__(self, threads: Threads) -> None:
        self.lock: Lock = threads.lock()
        """Guards the state of its writers (`WriterState`), and the fields here."""
        self.threads = threads
        self.writers = 0
        self.unsettled = 0
        """Puts to any of the writers that are accepted and not yet durable."""
        self.gathering = 0
        """Commit threads that wait until the putters they woke have run."""
        self._after: list[Lock] = []
        """The gates of those who wait for that, too."""
        self.pace = Pace()
        self.ages = AgeWatch(self.lock)
        """Flushes MemTables of the writers when they are too old."""
        self._running: set[object] = set()
        """Threads of the writers: those that commit, and those that flush."""
        self._is_taken = False
        """A commit thread has its turn."""
        self._next: deque[Lock] = deque()
        """The gates of the commit threads that wait for a turn, in order."""

    @property
    def is_idle(self) -> bool:
        """True when nothing is on its way: a thread that puts now may commit by itself."""
        return not self.unsettled and not self.gathering

    def await_gathered(self) -> None:
        """Return when the putters that commit threads have woken have run, or those threads have
        lost patience."""
        if not self.gathering:
            return
        gate = self.threads.lock()
        gate.acquire()
        with self.lock:
            if not self.gathering:
                return
            self._after.append(gate)
        gate.acquire(True, GATHER_SECONDS)

    def end_gathering(self) -> None:
        """A commit thread goes on; lock held."""
        self.gathering -= 1
        if not self.gathering:
            for gate in self._after:
                gate.release()
            self._after.clear()

    def run_counted(self, run: Callable[[], None]) -> None:
        """Run the work of a thread, which no signal interrupts."""
        one = object()
        self._running.add(one)
        try:
            run()
        finally:
            self._running.discard(one)  # no lock: whoever joins ended threads waits for nothing

    @property
    def idle_seconds(self) -> float:
        """How long a thread that has no work waits for it."""
        if len(self._running) > THREADS_KEPT:  # guard: M-6 test_waiters
            return 0.0
        return IDLE_SECONDS

    def begin_turn(self, nbytes: int, *, is_urgent: bool) -> bool:
        """Wait for a turn to write an entry of that size; True if there is one to end.

        Called by commit threads only, which no signal interrupts. Entries of puts with a timeout
        are urgent: they wait for no other shard.
        """
        if self.writers == 1 or not self.pace.is_quick or nbytes > LIGHT_BYTES:
            return False
        with self.lock:
            if not self._is_taken:
                self._is_taken = True
                return True
            if is_urgent:
                return False
            gate = self.threads.lock()
            gate.acquire()
            self._next.append(gate)
        if gate.acquire(True, PATIENCE_SECONDS):
            return True
        with self.lock:
            if gate not in self._next:
                return True  # handed over in this moment
            self._next.remove(gate)
        self.pace.forget()
        return False

    def end_turn(self) -> None:
        """Hand a turn that was begun to the commit thread that waits longest."""
        with self.lock:
            self._is_taken = bool(self._next)
            if self._next:
                self._next.popleft().release()
