"""Named consumers of the change feed: a record of what they have not read, with a lifetime (P-3).

Garbage collection keeps log entries from a living consumer's positions on. A consumer that does not
move for its lifetime expires and holds nothing; when it comes back, it learns what it missed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from weir.errors import CommitConflict
from weir.format import paths
from weir.records.chain import RecordChain, RecordCodec
from weir.records.lifetime import dump_end, load_lifetime
from weir.store.api import ObjectExists, Store

TTL: Final = "7d"
_CAS_ATTEMPTS: Final = 16
_KEEP: Final = 32
_PRUNE_EVERY: Final = 64

Positions = Mapping[UUID, int]


@dataclass(frozen=True)
class _Standing:
    """The positions of a consumer, and when its hold on the log expires."""

    positions: Positions
    expires: float
    begins: bool = False
    """Registered but never moved: collection may have passed its positions before that."""


def _encode(record: _Standing | None) -> dict[str, Any]:
    if record is None:
        return dump_end("asked to")
    positions = {str(shard): int(p) for shard, p in record.positions.items()}
    begins = {"begins": True} if record.begins else {}
    return {"positions": positions, "expires": record.expires, **begins}


def _decode(raw: Mapping[str, Any], _path: str) -> _Standing | None:
    lifetime = load_lifetime(raw)
    if lifetime.deleted:
        return None
    if lifetime.expires is None:
        raise ValueError("it has no expiry time")
    positions = {UUID(s): int(p) for s, p in raw["positions"].items()}
    return _Standing(positions, lifetime.expires, raw.get("begins") is True)


_RECORD: Final = RecordCodec("consumer record", _encode, _decode)


@dataclass(frozen=True)
class Consumer:
    """One consumer, by name."""

    store: Store
    name: str
    ttl: float
    """Seconds from its last record until it expires."""

    def positions(self) -> dict[UUID, int] | None:
        """Its positions, or None when nothing is held for it. One list, one get."""
        return self._state()[1]

    @property
    def is_beginning(self) -> bool:
        """True from its registration until its first move. One list, one get."""
        found = self._chain.latest()
        return found is not None and found.value is not None and found.value.begins

    def register(self, positions: Positions) -> dict[UUID, int]:
        """Begin at `positions` unless it already has some; returns its positions.

        The caller then checks the floors and moves the consumer once (P-3).
        """
        for _ in range(_CAS_ATTEMPTS):
            seq, known = self._state()
            if known is not None:
                return known
            if self._append(seq, positions, begins=True):
                return dict(positions)
        raise self._busy()

    def move(self, positions: Positions) -> None:
        """Release the entries below `positions`; never moves back. Renews the lifetime."""
        for _ in range(_CAS_ATTEMPTS):
            seq, known = self._state()
            merged = dict(positions)
            for shard, position in (known or {}).items():
                merged[shard] = max(position, merged.get(shard, 0))
            if self._append(seq, merged):
                return
        raise self._busy()

    def forget(self) -> None:
        """End the consumer; it then holds nothing."""
        for _ in range(_CAS_ATTEMPTS):
            seq, known = self._state()
            if known is None:
                return
            try:
                self._chain.append(None, seq)
            except ObjectExists:
                continue
            return
        raise self._busy()

    @property
    def _chain(self) -> RecordChain[_Standing | None]:
        return RecordChain(self.store, paths.consumer_chain(self.name), _RECORD)

    def _state(self) -> tuple[int, dict[UUID, int] | None]:
        found = self._chain.latest()
        if found is None:
            return 0, None
        return found.seq, None if found.value is None else dict(found.value.positions)

    def _append(self, seq: int, positions: Positions, *, begins: bool = False) -> bool:
        expires = self.store.now() + self.ttl
        try:
            made = self._chain.append(_Standing(positions, expires, begins), seq)
        except ObjectExists:
            return False
        if made % _PRUNE_EVERY == 0:
            self._chain.prune(_KEEP)
        return True

    def _busy(self) -> CommitConflict:
        return CommitConflict(
            f"{self.store.uri}: several queries move consumer {self.name!r} at once; give each"
            " query its own consumer name"
        )
