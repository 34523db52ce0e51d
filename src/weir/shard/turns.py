"""Which threads wait for an entry, which were woken, and which one writes the next entry.

A thread whose put is durable is woken, but runs only when it gets the interpreter. Until all such
threads have run, no new thread takes the lead: they are about to return and put again, and their
rows belong in the next entry, not in the one after it. Without this rule one thread on a fast store
keeps the interpreter for its whole switch interval (5 ms) and writes entry after entry alone while
15 others wait. With 16 threads an entry then holds 1.4 puts; with the rule it holds 15.7.

Threads are woken one by one, each by the one before it. Woken all at once, each would start on a
processor only to block on the interpreter lock, and would wake again in vain whenever a putter
released it for a moment. That costs 3.6 context switches a put and gives 13,800 puts/s with 16
threads; one by one it is 1.8 switches and 16,100 puts/s (local disk, two processors). No timer is
involved; a thread that waits alone is never held up.

The writers of one table share a `WaiterGroup`, because the same threads put to all of them. On a
quick store the rule then holds across all shards, and the shards take turns: one entry is in flight
at any moment, for the shard that has waited longest, led by a thread that waits for that shard.
With 16 threads and four shards that is 6.8 puts an entry; one leader per shard would write 2.2, and
the leaders would contend for the interpreter. On a slow store each shard has its own leader, and
entries of different shards are in flight together. `Pace` chooses between the two by the latest
entries. Turns are given up when a thread has waited too long for one: no shard waits for the store
of another.

Every call is made with the group's lock held, which is also the lock of its writers.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

from weir.env import Lock, Threads
from weir.shard.ack import Ack

QUICK_SECONDS: Final = 0.001
"""A store is quick if an entry takes at most this long: less than what several leaders lose by
taking the interpreter from each other."""
NEARLY_QUICK_SECONDS: Final = 3 * QUICK_SECONDS
"""The bound for the quickest entry of such a store while several leaders contend."""
PACE_ENTRIES: Final = 32
"""Entries whose quickest decides; a single entry may have waited for a processor."""
SLOW_ENTRIES: Final = 4
"""Entries that suffice to recognize a store that is not even nearly quick."""
REST_ENTRIES: Final = 1024
"""Entries after which a nearly quick store is tried with turns again."""
PATIENCE_SECONDS: Final = 0.25
"""How long a thread waits for the turns of other shards before it gives up turns."""
LIGHT_BYTES: Final = 1 << 18
"""Most bytes of rows in an entry that takes a turn: a larger one would hold up other shards."""


class ShardQueue(Protocol):
    """The queue of one shard, as `WriterState` exposes it."""

    leading: bool
    leader: Waiter | None
    queued_bytes: int

    @property
    def waiting(self) -> int:
        """Puts that wait for the log."""

    def call_pump(self) -> None:
        """Wake the pump to check the queue."""

    def give_up_lead(self) -> None:
        """Release the lead; another thread may take it."""


class Waiter:
    """One thread that waits for a put."""

    __slots__ = ("leads",)

    def __init__(self) -> None:
        self.leads: ShardQueue | None = None
        """The shard whose entry this thread writes, or has just written."""

    def take_lead(self, of: ShardQueue) -> None:
        """From here on this thread, and no other, writes that shard's entries (F-10)."""
        self.leads = of
        of.leading, of.leader = True, self


class Pace:
    """Whether the store is quick, judged by the quickest of the latest entries: with turns, other
    leaders did not slow them down. The store is assumed quick until measured."""

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
        """Guards the state of its writers (`WriterState`)."""
        self.wakeups_done = threads.condition(self.lock)
        """For threads that wait until every woken thread has run."""
        self._wakeup_waiters = 0
        self.threads = threads
        self.shards = 0
        self.pace = Pace()
        self.leader: Waiter | None = None
        """The thread whose turn it is to write an entry, while the shards take turns."""
        self.waking = 0
        self._due: deque[Ack] = deque()
        """Acks whose waiters are woken next, after the one that is waking."""
        self._asking: dict[Turns, None] = {}
        """Shards without a leader that may have waiting puts; the next to be led comes first."""

    @property
    def takes_turns(self) -> bool:
        """True while the entries of all shards are written one after the other."""
        return self.shards > 1 and self.pace.is_quick

    @property
    def patience(self) -> float | None:
        """The longest a thread waits for other shards before it checks again."""
        return PATIENCE_SECONDS if self.shards > 1 else None

    def ask(self, turns: Turns) -> None:
        """Request a leader for that shard, once every woken thread has run."""
        if not turns.led.waiting and not self.takes_turns:
            self._asking.pop(turns, None)  # nothing to write: the next putter leads
            if turns.has_no_wakeups:
                self._notify_wakeups_done()
            return
        self._asking[turns] = None
        self.promote(turns)

    def note(self, turns: Turns) -> None:
        """Queue that shard for a leader: its putter cannot lead now."""
        self._asking[turns] = None

    def promote(self, turns: Turns) -> None:
        """Let a waiting thread lead, if it is time: a thread of that shard ran, or the shard asked.

        Otherwise the shard stays in `_asking`: the last woken thread, or the leader, promotes it.
        """
        if not turns.has_no_wakeups:
            return
        self._notify_wakeups_done()
        if not self.takes_turns:
            self._assign_leader(turns)
        elif self.leader is None:
            for asking in list(self._asking):
                if self._assign_leader(asking):
                    break  # one leader per turn

    def wait_for_wakeups(self) -> None:
        """Return when the woken threads have run, or a writer has ended."""
        self._wakeup_waiters += 1
        try:
            self.wakeups_done.wait()
        finally:
            self._wakeup_waiters -= 1

    def _notify_wakeups_done(self) -> None:
        if self._wakeup_waiters:
            self.wakeups_done.notify_all()

    def _assign_leader(self, turns: Turns) -> bool:
        """Let the first waiting thread lead that shard, or the pump; True if a thread was woken."""
        led = turns.led
        if turns not in self._asking or not turns.has_no_wakeups:
            return False
        del self._asking[turns]  # the next leader asks again
        if not led.leading and led.waiting and turns.wake_next():
            self._asking[turns] = None  # last in line, in case the woken thread does not lead
            return True
        if not led.leading and led.waiting:
            led.call_pump()
        return False

    def record_latency(self, seconds: float) -> None:
        """Record how long an entry took to write; a slow store ends the turns."""
        was_quick = self.pace.is_quick
        self.pace.record_latency(seconds)
        if was_quick and not self.pace.is_quick and self.shards > 1:
            self._part()

    def suspend_turns(self) -> None:
        """Give up turns for a while, because a thread waited too long or the store failed: no shard
        waits for another's entry."""
        if self.takes_turns:
            self.pace.forget()
            self._part()

    def _part(self) -> None:
        """Let each shard have its own leader from here on."""
        self.leader = None
        for asking in list(self._asking):
            self._assign_leader(asking)

    def end_turn(self, wait: Waiter) -> None:
        """End the turn, if it had one, of a thread that wrote its entry or gave up."""
        if self.leader is wait:
            self.leader = None

    def wake(self, ack: Ack) -> None:
        """Open the gate of `ack`, after those woken before it."""
        self.waking += 1
        self._due.append(ack)
        if self.waking == 1:
            self._open_next()

    def arrived(self) -> None:
        """A woken thread runs; wake the next."""
        self.waking -= 1
        self._open_next()

    def _open_next(self) -> None:
        """Open gates in order, up to the first whose waiter still has to run. Those before it have
        no such waiter: another thread came for the same put, and ran in its place."""
        while self._due:
            ack = self._due.popleft()
            gate, ack.gate = ack.gate, None
            if gate is None:
                continue  # its waiter gave up
            gate.release()
            if ack.woken:
                return


class Turns:
    """The waiting threads of one group commit."""

    def __init__(self, crowd: WaiterGroup, led: ShardQueue) -> None:
        self.crowd = crowd
        self.led = led
        self._gated: dict[Ack, None] = {}
        self._waking = 0
        crowd.shards += 1

    def ask(self) -> None:
        """Request a leader for the shard, if any put waits."""
        self.crowd.ask(self)

    @property
    def is_light(self) -> bool:
        """True when its next entry is small."""
        return self.led.queued_bytes <= LIGHT_BYTES

    @property
    def has_no_wakeups(self) -> bool:
        """True when no thread is due to be woken and every woken thread has run."""
        crowd = self.crowd
        # None in the whole crowd implies none of this shard, so the first test serves both cases.
        return crowd.waking == 0 or (self._waking == 0 and not crowd.takes_turns)

    def lead(self, wait: Waiter, *, chosen: bool) -> bool:
        """Give that thread the lead, if it may lead now; True when it does."""
        crowd, led = self.crowd, self.led
        if led.leading or not (chosen or self.has_no_wakeups):
            return False
        in_turn = crowd.takes_turns and self.is_light
        if in_turn and crowd.leader is not None:
            return False
        wait.take_lead(led)
        if in_turn:
            crowd.leader = wait  # last: giving up the lead of the shard ends the turn (F-16)
        return True

    def gate_for(self, ack: Ack) -> Lock:
        """A lock that is released when `ack` is done or its waiter should lead."""
        if ack.gate is None:
            gate = self.crowd.threads.lock()
            gate.acquire()
            self.adopt(ack, gate)
        assert ack.gate is not None, "made, or there"
        return ack.gate

    def adopt(self, ack: Ack, gate: Lock) -> None:
        """Make `gate` that of `ack`: a thread waits at it already, and then comes for `ack`."""
        ack.gate = gate
        self._gated[ack] = None
        if not self.led.leading:
            self.crowd.note(self)

    def wake(self, ack: Ack) -> bool:
        """Wake the thread that waits for `ack`, in order; False when none does."""
        if ack.gate is None:
            return False
        self._gated.pop(ack, None)
        if not ack.woken:
            ack.woken = True
            self._waking += 1
            self.crowd.wake(ack)
        return True

    def arrived(self, ack: Ack) -> bool:
        """A thread that waits for `ack` runs; True if it is the first since `ack` was woken."""
        if not ack.woken:
            return False
        ack.woken = False
        self._waking -= 1
        self.crowd.arrived()
        return True

    def leave(self, ack: Ack) -> None:
        """Stop waiting for `ack`. Other threads at the same gate check again, but nothing waits for
        them to run, because there may be none."""
        self.arrived(ack)
        self._gated.pop(ack, None)
        gate, ack.gate = ack.gate, None
        if gate is not None:
            gate.release()

    def wake_next(self) -> bool:
        """Wake the first waiting thread to lead; False when none waits."""
        for ack in self._gated:
            return self.wake(ack)
        return False
