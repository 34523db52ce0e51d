"""Named consumers of the change feed: a record of what they have not read, with a lifetime (P-3).

Garbage collection keeps log entries from a living consumer's positions on. A consumer that does not
move for its lifetime expires and holds nothing; when it comes back, it learns what it missed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final
from uuid import UUID

from weir.env import SYSTEM, Env
from weir.format import paths
from weir.format.manifest import Count
from weir.records.chain import RecordChain
from weir.records.codec import Record
from weir.store.api import Store

TTL: Final = "7d"
ON_REQUEST: Final = "asked to"
"""Why a consumer has ended that was dropped by name. Stored; never change it."""
_KEEP: Final = 32
_PRUNE_EVERY: Final = 64

Positions = Mapping[UUID, int]


class Standing(Record, frozen=True):
    """The positions of a consumer, and when its hold on the log expires."""

    KIND: ClassVar[str] = "consumer record"
    positions: Mapping[UUID, Count] = {}
    """The last entry of each shard that was read whole; of other shards nothing was read."""
    within: Mapping[UUID, Count] = {}
    """Parts of the entry after it that were read, for shards that it is in the midst of."""
    expired_through: float | None = None
    """The time through which expired rows were reported, for a feed that reports them."""
    snapshot: UUID | None = None
    """The checkpoint whose rows it reads first; None: it has them."""
    expires: float = 0.0
    """When unread entries stop being kept, in seconds since 1970 by the store's clock."""
    load: Count | None = None
    """The number of the last load of the table before its positions; None: not known."""
    begins: bool = False
    """Registered but never moved: collection may have passed its positions before that."""
    deleted: bool = False
    """The consumer has ended."""
    reason: str | None = None
    """Why it has ended."""

    @property
    def held(self) -> dict[UUID, int] | None:
        """Its positions; None when nothing is held for it."""
        return None if self.deleted else dict(self.positions)

    def behind(self, tips: Positions) -> int:
        """How many entries it has not read, of logs that end there."""
        return sum(max(0, tip - self.positions.get(shard, 0)) for shard, tip in tips.items())


@dataclass(frozen=True)
class Consumer:
    """One consumer, by name."""

    store: Store
    name: str
    ttl: float
    """Seconds from its last record until it expires."""
    env: Env = SYSTEM

    def standing(self) -> Standing | None:
        """Its latest record; None: there is none, or no longer. One list, one get."""
        return self._chain.latest()

    def positions(self) -> dict[UUID, int] | None:
        """Its positions, or None when nothing is held for it. One list, one get."""
        found = self._chain.latest()
        return None if found is None else found.held

    def register(
        self, positions: Positions, snapshot: UUID | None = None, load: int | None = None
    ) -> Standing:
        """Begin at `positions`, after `load`, unless it already has some; its latest record.

        The caller then checks the floors and saves its place once.
        """

        def begin(found: Standing | None) -> Standing | None:
            if found is not None and not found.deleted:
                return None
            return Standing(
                positions=positions,
                snapshot=snapshot,
                expires=self._expires(),
                load=load,
                begins=True,
            )

        return self._update(begin)

    def save(
        self,
        positions: Positions,
        *,
        within: Positions | None = None,
        expired_through: float | None = None,
        snapshot: UUID | None = None,
        load: int | None = None,
        begins: bool = False,
    ) -> Standing:
        """Release the entries below `positions`, and renew the lifetime; never moves back.

        A consumer that has ended stays ended. Returns its latest record. `load`, if known, is the
        last load before `positions`.
        """

        def save(found: Standing | None) -> Standing | None:
            if found is None or found.deleted:
                return None
            further = _further(found, positions)
            return Standing(
                positions=further,
                within={s: n for s, n in (within or {}).items() if further[s] == positions.get(s)},
                expired_through=expired_through,
                snapshot=snapshot,
                expires=self._expires(),
                load=found.load if load is None else load,
                begins=begins,
            )

        return self._update(save)

    def forget(self) -> bool:
        """End the consumer; it then holds nothing. False when there was none, or it was ended
        on request before."""
        ended = Standing(deleted=True, reason=ON_REQUEST)
        ours = False

        def end(found: Standing | None) -> Standing | None:
            nonlocal ours
            ours = found is not None and not (found.deleted and found.reason == ON_REQUEST)
            return ended if ours else None

        self._update(end)
        return ours

    @property
    def _chain(self) -> RecordChain[Standing]:
        return RecordChain(self.store, paths.consumer_chain(self.name), Standing)

    def _expires(self) -> float:
        return self.store.now() + self.ttl

    def _update(self, change: Callable[[Standing | None], Standing | None]) -> Standing:
        busy = (
            f"several readers move consumer {self.name!r} at once; give each its own consumer name"
        )
        latest = self._chain.update(change, self.env, busy)
        if latest is None:
            return Standing(deleted=True)
        if latest.seq % _PRUNE_EVERY == 0:
            self._chain.prune(_KEEP)
        return latest


def _further(found: Standing | None, positions: Positions) -> dict[UUID, int]:
    merged = dict(positions)
    for shard, position in ((found.held if found else None) or {}).items():
        merged[shard] = max(position, merged.get(shard, 0))
    return merged
