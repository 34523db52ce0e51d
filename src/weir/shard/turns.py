"""Who waits for an entry, who was woken, and who writes the next one.

A thread whose put is durable is woken, but runs only when it gets the interpreter. Until everyone
whose put is durable has run, nobody new takes the lead: they are about to return and put again, and
their rows belong in the next entry, not in the one after it. Without this rule one thread on a fast
store keeps the interpreter for its whole switch interval (5 ms) and writes entry after entry alone,
while 15 others wait for it: 1.4 puts an entry with 16 threads, 15.7 with it.

They are woken one by one, each by the one before it. All at once, every one of them would start on
some processor only to wait for the interpreter there, and would be woken for nothing whenever a
putter lets go of it for a moment: 3.6 switches a put and 13,800 puts/s with 16 threads, 1.8 and
16,100 this way (local disk, two processors). No timer is involved; a thread that waits alone is
never held up.

The writers of one table share a `Crowd`, because the same threads put to all of them. On a store
that answers at once the rule then holds over all shards, and they take turns: one entry at a time,
each of the shard that has waited longest, led by a thread that waits for it. With 16 threads and
four shards that is 6.8 puts an entry; a leader for each shard would write 2.2, and they would fight
for the interpreter. On a store that takes its time each shard has a leader of its own, so that
entries of different shards are under way at once. Which it is, the latest entries tell (`Pace`),
and turns that somebody has waited for too long are given up: no shard waits for the store of
another.

Every call is made with the lock of the crowd held, which is that of its writers.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

from weir.env import Lock, Threads
from weir.shard.ack import Ack

QUICK_SECONDS: Final = 0.001
"""A store that may take no longer for an entry answers at once: less than what it costs several
leaders to take the interpreter from each other."""
NEARLY_QUICK_SECONDS: Final = 3 * QUICK_SECONDS
"""So long the quickest entry of such a store may take when they do."""
PACE_ENTRIES: Final = 32
"""Entries of which the quickest tells; one by itself may have waited for a processor."""
SLOW_ENTRIES: Final = 4
"""As many are enough to know a store that is not even nearly quick."""
REST_ENTRIES: Final = 1024
"""After so many it is tried again whether one that is nearly quick is quick in turns."""
PATIENCE_SECONDS: Final = 0.25
"""How long a thread waits before it no longer relies on the turns of others."""
LIGHT_BYTES: Final = 1 << 18
"""Rows of which an entry takes a turn: a larger one would hold up the other shards."""


class Led(Protocol):
    """What `WriterState` tells of the queue of one shard."""

    leading: bool
    leader: Wait | None
    queued_bytes: int

    @property
    def waiting(self) -> int:
        """Puts that wait for the log."""

    def call_pump(self) -> None:
        """Let the pump look at the queue."""

    def give_up_lead(self) -> None:
        """Nobody leads now; somebody else may."""


class Wait:
    """One thread that waits for a put."""

    __slots__ = ("leads",)

    def __init__(self) -> None:
        self.leads: Led | None = None
        """The shard whose entry it writes, or has just written."""

    def take_lead(self, of: Led) -> None:
        """From here on this thread, and no other, writes that shard's entries (F-10)."""
        self.leads = of
        of.leading, of.leader = True, self


class Pace:
    """Whether the store answers at once: by the quickest of the latest entries, which in turns
    were not held up by other leaders. Taken for quick until it is known."""

    def __init__(self) -> None:
        self._begin(is_quick=True)

    def _begin(self, *, is_quick: bool) -> None:
        self.is_quick = is_quick
        self._quickest = float("inf")
        self._entries = 0

    def forget(self) -> None:
        """It is not, whatever it was; after a short rest that is tried again."""
        self._begin(is_quick=False)
        self._entries = REST_ENTRIES - PACE_ENTRIES

    def took(self, seconds: float) -> None:
        """An entry was written in that time."""
        self._entries += 1
        self._quickest = quickest = min(self._quickest, seconds)
        if self._entries == (PACE_ENTRIES if self.is_quick else REST_ENTRIES):
            bound = QUICK_SECONDS if self.is_quick else NEARLY_QUICK_SECONDS
            self._begin(is_quick=quickest <= bound)
        elif self.is_quick and self._entries == SLOW_ENTRIES and quickest > NEARLY_QUICK_SECONDS:
            self._begin(is_quick=False)


class Crowd:
    """The threads that wait for the writers of one table, or for a writer of its own."""

    def __init__(self, threads: Threads) -> None:
        self.lock: Lock = threads.lock()
        """Guards what its writers hold (`WriterState`)."""
        self.calm_wake = threads.condition(self.lock)
        """For those who wait until everybody who was woken has run."""
        self._awaiting_calm = 0
        self.threads = threads
        self.shards = 0
        self.pace = Pace()
        self.leader: Wait | None = None
        """Whose turn it is to write an entry, while the shards take turns."""
        self.waking = 0
        self._due: deque[Ack] = deque()
        """Whose waiters are to be woken, after the one that is waking."""
        self._asking: dict[Turns, None] = {}
        """Shards that have puts waiting, perhaps, and nobody who leads; the next one first."""

    @property
    def takes_turns(self) -> bool:
        """True while the entries of all shards are written one after the other."""
        return self.shards > 1 and self.pace.is_quick

    @property
    def patience(self) -> float | None:
        """How long one may wait for others at most, before looking again."""
        return PATIENCE_SECONDS if self.shards > 1 else None

    def ask(self, turns: Turns) -> None:
        """Have that shard led, once everybody who was woken has run."""
        if not turns.led.waiting and not self.takes_turns:
            self._asking.pop(turns, None)  # nothing to write: whoever puts next leads
            if turns.is_settled:
                self._tell_calm()
            return
        self._asking[turns] = None
        self.promote(turns)

    def note(self, turns: Turns) -> None:
        """Have it led in its turn: its putter cannot lead now."""
        self._asking[turns] = None

    def promote(self, turns: Turns) -> None:
        """A thread of that shard has run, or it asks: somebody who waits leads, if it is time.

        Until then it goes on asking: the last of those who were woken promotes, or whoever leads.
        """
        if not turns.is_settled:
            return
        self._tell_calm()
        if not self.takes_turns:
            self._have_led(turns)
        elif self.leader is None:
            for asking in list(self._asking):
                if self._have_led(asking):
                    break  # the others in their turn

    def wait_for_calm(self) -> None:
        """Return when somebody has run, or a writer has ended."""
        self._awaiting_calm += 1
        try:
            self.calm_wake.wait()
        finally:
            self._awaiting_calm -= 1

    def _tell_calm(self) -> None:
        if self._awaiting_calm:
            self.calm_wake.notify_all()

    def _have_led(self, turns: Turns) -> bool:
        """Have the first who waits lead that shard, or the pump; True when somebody was woken."""
        led = turns.led
        if turns not in self._asking or not turns.is_settled:
            return False
        del self._asking[turns]  # whoever leads asks again
        if not led.leading and led.waiting and turns.wake_next():
            self._asking[turns] = None  # behind the others, if it is not led after all
            return True
        if not led.leading and led.waiting:
            led.call_pump()
        return False

    def took(self, seconds: float) -> None:
        """An entry was written in that time."""
        was_quick = self.pace.is_quick
        self.pace.took(seconds)
        if was_quick and not self.pace.is_quick and self.shards > 1:
            self._part()

    def break_up(self) -> None:
        """Somebody waited too long, or the store failed: no shard waits for another's entry any
        more, for a while."""
        if self.takes_turns:
            self.pace.forget()
            self._part()

    def _part(self) -> None:
        """From here on each shard has a leader of its own."""
        self.leader = None
        for asking in list(self._asking):
            self._have_led(asking)

    def end_turn(self, wait: Wait) -> None:
        """It is through with its entry, or gives up; it may not have been its turn."""
        if self.leader is wait:
            self.leader = None

    def wake(self, ack: Ack) -> None:
        """Open its gate, in its turn."""
        self.waking += 1
        self._due.append(ack)
        if self.waking == 1:
            self._open_next()

    def arrived(self) -> None:
        """One that was woken runs."""
        self.waking -= 1
        self._open_next()

    def _open_next(self) -> None:
        """Open the gate of the next whose turn it is, and of those before it whom nobody waits for:
        somebody else came for the same put, and took their turn."""
        while self._due:
            ack = self._due.popleft()
            gate, ack.gate = ack.gate, None
            if gate is None:
                continue  # gave up meanwhile
            gate.release()
            if ack.woken:
                return


class Turns:
    """The waiting threads of one group commit."""

    def __init__(self, crowd: Crowd, led: Led) -> None:
        self.crowd = crowd
        self.led = led
        self._gated: dict[Ack, None] = {}
        self._waking = 0
        crowd.shards += 1

    def ask(self) -> None:
        """Have the shard led, if anybody waits."""
        self.crowd.ask(self)

    @property
    def is_light(self) -> bool:
        """True when its next entry is small."""
        return self.led.queued_bytes <= LIGHT_BYTES

    @property
    def is_settled(self) -> bool:
        """True when no thread that was, or is about to be, woken has yet to run."""
        crowd = self.crowd
        # Of all shards none: then of this one none either, whichever counts.
        return crowd.waking == 0 or (self._waking == 0 and not crowd.takes_turns)

    def lead(self, wait: Wait, *, chosen: bool) -> bool:
        """True when that thread is to lead now."""
        crowd, led = self.crowd, self.led
        if led.leading or not (chosen or self.is_settled):
            return False
        in_turn = crowd.takes_turns and self.is_light
        if in_turn and crowd.leader is not None:
            return False
        wait.take_lead(led)
        if in_turn:
            crowd.leader = wait  # last: whoever gives up the lead of its shard ends its turn (F-16)
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
        """Somebody waits at that gate, closed already, and will come for `ack` when it opens."""
        ack.gate = gate
        self._gated[ack] = None
        if not self.led.leading:
            self.crowd.note(self)

    def wake(self, ack: Ack) -> bool:
        """Let whoever waits for `ack` go on, in its turn; False when nobody does."""
        if ack.gate is None:
            return False
        self._gated.pop(ack, None)
        if not ack.woken:
            ack.woken = True
            self._waking += 1
            self.crowd.wake(ack)
        return True

    def arrived(self, ack: Ack) -> bool:
        """A thread that waits for `ack` runs; True if it was woken for it, and is the first."""
        if not ack.woken:
            return False
        ack.woken = False
        self._waking -= 1
        self.crowd.arrived()
        return True

    def leave(self, ack: Ack) -> None:
        """A thread stops waiting for `ack`. Others may wait at the same gate: they look again, and
        are not waited for, because there may be none."""
        self.arrived(ack)
        self._gated.pop(ack, None)
        gate, ack.gate = ack.gate, None
        if gate is not None:
            gate.release()

    def wake_next(self) -> bool:
        """Wake the first that waits, to lead; False when nobody waits."""
        for ack in self._gated:
            return self.wake(ack)
        return False
