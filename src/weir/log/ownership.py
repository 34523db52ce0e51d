"""Ownership goes stale: the second lock of G-7.

An entry that put-if-absent accepted proves nothing if collection removed the fence it should have
met. So an acknowledgement also needs a proof that our epoch is current, begun less than `fence_ttl`
before the entry was written. In steady state that is one small read per `fence_ttl`.

Which clock tells (F-18)? This machine's may stand still: one that was suspended, or restored from a
snapshot, goes on as if nothing had happened. So every clock there is must agree that little time
has passed, and any that does not, or that runs backwards, costs a new proof and nothing else:

  the store's  the time it gave to our entry, against the one it gave to the entry before the proof.
               Files tell it with every put. obstore does not pass it on, so on object stores a put
               that had to be repeated (connections do not survive a restore) counts as late.
  boot time    runs while the machine sleeps, but not while it is a snapshot.
  wall clock   is set right some time after a restore. S3 and Azure refuse a signed request whose
               date is more than 15 minutes off: the wall clock of a put they took is one that the
               store itself has checked.
"""

from __future__ import annotations

import logging
from typing import NamedTuple, Protocol

from weir.durations import Duration, seconds
from weir.env import Clock
from weir.errors import InvalidInput, StoreError
from weir.log.manifests import Manifests
from weir.log.site import ShardSite
from weir.types import Epoch

log = logging.getLogger("weir.log")


def proof_lifetime(site: ShardSite, wanted: Duration | None = None) -> float:
    """How long a writer of the shard trusts a proof, in seconds; None: as long as the table says.

    The one place that decides: collection keeps fences for as long as the table's own value
    demands, so no writer may trust its ownership longer (G-7b).
    """
    if wanted is None:
        return site.fence_ttl
    chosen = seconds(wanted, name="fence_ttl")
    if chosen > site.fence_ttl:
        raise InvalidInput(
            f"{site}: fence_ttl={chosen:g} s is more than the {site.fence_ttl:g} s this table was"
            " made with; use a smaller one, or none"
        )
    return chosen


class Moment(NamedTuple):
    """When a proof began, by every clock there is; later is not known of it."""

    boot: float
    wall: float
    stored: float | None = None
    """What the store of the log said of the last entry of ours before it; None: it was not told."""

    @staticmethod
    def now(clock: Clock, stored: float | None = None) -> Moment:
        """This moment; `stored` is the time of an entry that is there already."""
        return Moment(clock.boottime(), clock.wall(), stored)

    def is_within(self, lifetime: float, now: Moment) -> bool:
        """True when every clock says that less than `lifetime` has passed until `now`."""
        if now.boot - self.boot >= lifetime or abs(now.wall - self.wall) >= lifetime:
            return False
        if now.stored is None:
            return True
        return self.stored is not None and 0 <= now.stored - self.stored < lifetime


LONG_AGO = Moment(float("-inf"), float("-inf"))
"""A proof that nobody trusts."""


class Claimed(Protocol):
    """What a claim says of its proof: `weir.log.fence.Claim` has it."""

    @property
    def epoch(self) -> Epoch:
        """The epoch that is ours."""

    @property
    def proof(self) -> Moment:
        """When the read that proved it began."""

    @property
    def fence_ttl(self) -> float:
        """How long that is trusted."""


class Ownership:
    """Remembers when the last proof began. Used by one thread at a time (the one that appends)."""

    def __init__(self, manifests: Manifests, claim: Claimed) -> None:
        self._manifests = manifests
        self._clock = manifests.site.env.clock
        self._epoch = claim.epoch
        self._ttl = claim.fence_ttl
        self._proof = claim.proof
        self._stored = claim.proof.stored

    def require(self, stored: float | None = None) -> None:
        """Return if the proof is young enough, else prove again; `FencedError` if the shard was
        taken over.

        Called after the put, which the store dated `stored`, and before the acknowledgement: a
        proof from before the put would not cover the time the put was on its way.
        """
        self._stored = stored
        if not self._proof.is_within(self._ttl, Moment.now(self._clock, stored)):
            self.prove()

    def prove(self) -> None:
        """Read the manifest now. The proof counts from before the read: later is not known."""
        began = self.moment()
        self._manifests.require_owner(self._manifests.require(), self._epoch)
        self._proof = began

    def moment(self) -> Moment:
        """Now, for whoever is about to commit in our epoch and reports it by `proven`."""
        return Moment.now(self._clock, self._stored)

    def proven(self, began: Moment) -> None:
        """A commit in our epoch that began then has succeeded, which proves as much."""
        if began.boot > self._proof.boot:
            self._proof = began

    def leave(self) -> None:
        """L-6: nothing of our epoch follows. Called by who closes, after its last entry is durable.

        A store that fails is no error: the log is folded later then. One put.
        """
        try:
            self._manifests.floors.raise_to("left", self._epoch)
        except StoreError as error:
            shard = self._manifests.site.shard
            log.info("wal.leave.skipped shard=%s reason=%s", shard, error)
