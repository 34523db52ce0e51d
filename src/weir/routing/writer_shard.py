"""The shard of one writer, in a table where each has its own (`weir.PerWriter`).

Keeps
  C-18 a writer takes a shard only if its owner has left, so that no writer fences another; the
       claim proves it (`weir.log.fence`), and this only chooses
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from uuid import UUID

from weir.errors import FencedError, SealedShard, WeirError
from weir.format.manifest import ShardManifest, Status
from weir.format.sharding import Value, is_of_writer, value_of_writer
from weir.log.fence import NotLeft
from weir.log.manifests import latest_of
from weir.routing.core import Core

LOST_RACES: Final = 2
"""Shards that others took first, before a writer makes one of its own."""


class WriterShard:
    """Where one `TableWriter` appends at the moment. Safe to share."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._lock = core.env.threads.lock()
        self._at: tuple[UUID, Value] | None = None
        self._lost_races = 0
        self._given_up: set[UUID] = set()

    @property
    def shard(self) -> UUID | None:
        """The shard; None before the first row, and after one was lost. No request."""
        at = self._at
        return None if at is None else at[0]

    def at(self) -> tuple[UUID, Value]:
        """The shard and what it stands for, chosen if there is none; it may not exist yet.

        When it has to be chosen: one listing, and two rounds of requests for all shards.
        """
        with self._lock:
            if self._at is None:
                left = [] if self._lost_races >= LOST_RACES else list(self._left_ones())
                # Any of them: writers that start together rarely want the same.
                self._at = self._core.env.random.choice(left) if left else self._new()
            return self._at

    def opened(self) -> None:
        """The shard is ours."""
        self._lost_races = 0

    def give_up(self, shard: UUID, error: WeirError) -> None:
        """Write nothing more to that shard, which failed so."""
        with self._lock:
            self._given_up.add(shard)
            if self._at is not None and self._at[0] == shard:
                self._at = None
                self._lost_races += isinstance(error, NotLeft)

    def has_lost(self, shard: UUID, error: WeirError) -> bool:
        """True when that shard, of this writer, is another's now: its rows go on elsewhere."""
        is_own = shard == self.shard or shard in self._given_up
        return is_own and isinstance(error, FencedError | NotLeft | SealedShard)

    def is_given_up(self, shard: UUID) -> bool:
        """True for a shard that this writer had."""
        return shard in self._given_up

    def _left_ones(self) -> Iterator[tuple[UUID, Value]]:
        core = self._core
        shards = [shard for shard in core.shard_ids() if shard not in self._given_up]
        for manifest, _ in latest_of([core.log(shard).manifests for shard in shards]):
            if manifest is None or manifest.status is not Status.ACTIVE or not manifest.is_left:
                continue
            value = core.value_of(manifest.shard_id, manifest)
            if is_of_writer(core.record.sharding, value):
                yield manifest.shard_id, value

    def _new(self) -> tuple[UUID, Value]:
        value = value_of_writer(self._core.env.new_id())
        return self._core.shard_of(value, self._core.record), value


def has_own_writer(core: Core, manifest: ShardManifest) -> bool:
    """True for the shard of one writer that has not left; it is sealed once that falls silent. The
    shard of an application is its next writer's, and a native program's is its own."""
    value = None if manifest.is_left else core.value_of(manifest.shard_id, manifest)
    return is_of_writer(core.record.sharding, value)
