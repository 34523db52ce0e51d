"""Ownership goes stale: the second lock of G-7.

An entry that put-if-absent accepted proves nothing if collection removed the fence it should have
met. So an acknowledgement also needs a proof that our epoch is current, begun less than `fence_ttl`
before the entry was written. In steady state that is three small reads per `fence_ttl`.

Which clock measures that (F-18)? This machine's may stop: a machine that was suspended, or restored
from a snapshot, continues as if no time had passed. So every available clock must agree that little
time has passed. A clock that disagrees, or runs backwards, costs a new proof and nothing else:

  the store's  the time it gave our entry, compared with that of the last entry before the proof.
               Files report it with every put. obstore does not, so on object stores a put that had
               to be repeated (connections do not survive a restore) counts as late.
  boot time    runs while the machine sleeps, but not while it is a snapshot.
  wall clock   is corrected some time after a restore. S3 and Azure refuse a signed request whose
               date is more than 15 minutes off, so the store itself has checked the wall clock of
               every put that it took.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from weir.durations import Duration, seconds
from weir.env import Clock
from weir.errors import InvalidInput
from weir.format.manifest import ShardManifest
from weir.log.manifests import Manifests
from weir.log.site import ShardSite
from weir.types import Epoch, Position


def proof_lifetime(site: ShardSite, wanted: Duration | None = None) -> float:
    """Seconds for which a writer of the shard trusts a proof; None: the table's value.

    The only place that decides it: collection keeps fences for as long as the table's own value
    demands, so no writer may trust its ownership longer (G-7b).
    """
    if wanted is None:
        return site.fence_ttl
    chosen = seconds(wanted, name="fence_ttl")
    if chosen > site.fence_ttl:  # guard: G-7b
        raise InvalidInput(
            f"{site}: fence_ttl={chosen:g} s is more than the {site.fence_ttl:g} s this table was"
            " created with; use a smaller value, or leave it out"
        )
    return chosen


class ClockReading(NamedTuple):
    """When a proof began, by every available clock; it proves nothing about later times."""

    boot: float
    wall: float
    stored: float | None = None
    """The log store's time of our last entry before the proof; None: the store gave none."""

    @staticmethod
    def now(clock: Clock, stored: float | None = None) -> ClockReading:
        """The current moment; `stored` is the store's time of an entry already written."""
        return ClockReading(clock.boottime(), clock.wall(), stored)

    def is_within(self, lifetime: float, now: ClockReading) -> bool:
        """True when every clock says that less than `lifetime` passed from this moment to `now`."""
        if now.boot - self.boot >= lifetime or abs(now.wall - self.wall) >= lifetime:
            return False
        if now.stored is None:
            return True
        # guard: F-18 always
        return self.stored is not None and 0 <= now.stored - self.stored < lifetime


LONG_AGO = ClockReading(float("-inf"), float("-inf"))
"""A proof too old to be trusted."""


@dataclass(frozen=True)
class Claim:
    """A shard that is ours: what to replay, and where the next entry goes."""

    manifest: ShardManifest
    fence: Position
    proof: ClockReading = LONG_AGO
    """When the manifest read that proved our epoch began (G-7b)."""
    fence_ttl: float = 0.0
    """Seconds for which that proof is trusted."""
    statement: int = 0
    """The shard's mark of statements, read after the fence (P-8)."""

    @property
    def epoch(self) -> Epoch:
        """The epoch this claim holds."""
        return Epoch(self.manifest.writer_epoch)


class Ownership:
    """Remembers when the last proof began. Used by one thread at a time (the one that appends)."""

    def __init__(self, manifests: Manifests, claim: Claim) -> None:
        self._manifests = manifests
        self._clock = manifests.site.env.clock
        self._epoch = claim.epoch
        self._ttl = claim.fence_ttl
        self._proof = claim.proof
        self._stored = claim.proof.stored

    def require(self, stored: float | None = None) -> None:
        """Return if the proof is young enough, else prove again; `FencedError` after a takeover.

        Called after the put, which the store dated `stored`, and before the acknowledgement: a
        proof from before the put would not cover the time the put was in flight.
        """
        self._stored = stored
        if not self._proof.is_within(self._ttl, ClockReading.now(self._clock, stored)):
            self.prove()  # guard: G-7b simulator:collection

    def prove(self) -> None:
        """Read the manifest now. The proof dates from before the read, not from its end."""
        began = self.clock_reading()
        current = self._manifests.require_there(self._epoch)
        self._manifests.require_owner(current, self._epoch)
        self._proof = began

    def clock_reading(self) -> ClockReading:
        """The current moment, for a caller that commits in our epoch and then calls `proven`."""
        return ClockReading.now(self._clock, self._stored)

    def proven(self, began: ClockReading) -> None:
        """Count a commit in our epoch, begun at `began`, as a proof."""
        if began.boot > self._proof.boot:
            self._proof = began
