"""Ownership goes stale: the second lock of G-7.

An entry that put-if-absent accepted proves nothing if collection removed the fence it should have
met. So an acknowledgement also needs a proof that our epoch is current, younger than `fence_ttl` on
a clock that runs while the machine sleeps. In steady state that is one small read per `fence_ttl`.
"""

from __future__ import annotations

from weir.log.manifests import Manifests
from weir.types import Epoch


class Ownership:
    """Remembers when the last proof began. Used by one thread at a time (the one that appends)."""

    def __init__(
        self, manifests: Manifests, epoch: Epoch, *, proof_began: float, fence_ttl: float
    ) -> None:
        self._manifests = manifests
        self._clock = manifests.site.env.clock
        self._epoch = epoch
        self._began = proof_began
        self._ttl = fence_ttl

    def require(self) -> None:
        """Return if the proof is young enough, else prove again; `FencedError` if the shard was
        taken over.

        Called after the put and before the acknowledgement: a proof from before the put would not
        cover the time the put was on its way.
        """
        if self._clock.boottime() - self._began >= self._ttl:
            self.prove()

    def prove(self) -> None:
        """Read the manifest now. The proof counts from before the read: later is not known."""
        began = self._clock.boottime()
        self._manifests.require_owner(self._manifests.require(), self._epoch)
        self._began = began

    def proven(self, began: float) -> None:
        """A commit in our epoch that began then has succeeded, which proves as much."""
        self._began = max(self._began, began)
