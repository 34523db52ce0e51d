"""Named consumers of the change feed: a record of what they have not read, with a lifetime (P-3).

Garbage collection keeps log entries from a living consumer's positions on. A consumer that is not
heard of for its lifetime holds nothing any more; when it comes back, it learns what it missed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from weir.errors import CommitConflict, CorruptEntry
from weir.format import paths
from weir.records import codec
from weir.records.chain import Chain
from weir.store.api import ObjectExists, Store

TTL: Final = "7d"
_RACES: Final = 16
_KEEP: Final = 32
_PRUNE_EVERY: Final = 64

Positions = Mapping[UUID, int]


@dataclass(frozen=True)
class Consumer:
    """One consumer, by name."""

    store: Store
    name: str
    ttl: float
    """Seconds it is remembered after its last word."""

    def positions(self) -> dict[UUID, int] | None:
        """Where it stands, or None when nothing is held for it. One list, one get."""
        found = self._latest()
        return None if found is None else found[1]

    def register(self, positions: Positions) -> dict[UUID, int]:
        """Begin at `positions`, unless it stands somewhere already; where it stands."""
        for _ in range(_RACES):
            seq, known = self._state()
            if known is not None:
                return known
            if self._append(seq, positions):
                return dict(positions)
        raise self._busy()

    def move(self, positions: Positions) -> None:
        """Let go of what lies below `positions`; never moves back. Renews the lifetime."""
        for _ in range(_RACES):
            seq, known = self._state()
            merged = dict(positions)
            for shard, position in (known or {}).items():
                merged[shard] = max(position, merged.get(shard, 0))
            if self._append(seq, merged):
                return
        raise self._busy()

    def forget(self) -> None:
        """Hold nothing any more."""
        for _ in range(_RACES):
            seq, known = self._state()
            if known is None:
                return
            try:
                self._chain.append(codec.dumps({"deleted": True, "reason": "asked to"}), seq)
            except ObjectExists:
                continue
            return
        raise self._busy()

    @property
    def _chain(self) -> Chain:
        return Chain(self.store, paths.consumer_chain(self.name))

    def _latest(self) -> tuple[int, dict[UUID, int]] | None:
        seq, known = self._state()
        return None if known is None else (seq, known)

    def _state(self) -> tuple[int, dict[UUID, int] | None]:
        found = self._chain.latest()
        if found is None:
            return 0, None
        path = paths.chain_path(paths.consumer_chain(self.name), found.seq)
        raw = codec.loads(found.data, path)
        if raw.get("deleted"):
            return found.seq, None
        try:
            return found.seq, {UUID(s): int(p) for s, p in raw["positions"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptEntry(f"{path} is not a consumer's record: {error!r}") from error

    def _append(self, seq: int, positions: Positions) -> bool:
        record = {
            "positions": {str(shard): int(p) for shard, p in positions.items()},
            "expires": self.store.now() + self.ttl,
        }
        try:
            made = self._chain.append(codec.dumps(record), seq)
        except ObjectExists:
            return False
        if made % _PRUNE_EVERY == 0:
            self._chain.prune(_KEEP)
        return True

    def _busy(self) -> CommitConflict:
        return CommitConflict(
            f"{self.store.uri}: consumer {self.name!r} is moved by several queries at once; give"
            " each its own name"
        )
