"""Replay of the log between R and our fence into MemTables.

Keeps
  F-6  replay ends at the fence of this open; a missing entry before it is damage, unless we are
       fenced
  F-7  an entry of a newer epoch means that we are fenced
  F-8  rows keep the generation they were tagged with, so each MemTable covers exactly its own
       entries
  F-14 nothing above R is left out because of its tag alone
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from weir.errors import CommitConflict, CorruptEntry, MissingEntry, SnapshotExpired
from weir.format.wal_entry import WalEntry
from weir.log.manifests import Manifests
from weir.log.ownership import Claim
from weir.log.site import ShardSite
from weir.log.tags import is_live, require_own
from weir.log.tailer import WalTailer
from weir.types import Generation

logger = logging.getLogger("weir.shard")

PROGRESS_ENTRIES = 1000
Progress = Callable[[int, int], None]


class Overtaken(CommitConflict):
    """A compaction of logs passed the entries that were being replayed (L-6); open again."""


class Replay(Iterator[tuple[Generation, WalEntry]]):
    """Every live entry, in order, with the generation it rejoins; generations rise one by one.

    That is the entry's own tag, except where the log breaks the rule of tags (`weir.log.tags`): an
    entry without a tag, or with one below its predecessor's or the current generation, joins the
    generation of its predecessor.
    """

    def __init__(
        self,
        site: ShardSite,
        manifests: Manifests,
        claim: Claim,
        *,
        keyed: bool = True,
    ) -> None:
        self.keeps_the_rule = True
        """False once an entry broke the rule: flush everything before a new entry (F-14)."""
        self._site = site
        self._claim = claim
        self._keyed = keyed
        self._entries = self._run(_read(site, manifests, claim))
        self._first: tuple[Generation, WalEntry] | None = None

    def __next__(self) -> tuple[Generation, WalEntry]:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        return next(self._entries)

    def begins(self) -> Generation | None:
        """The tag of the first live entry, when it is above the current generation."""
        self._first = self._first or next(self._entries, None)
        if self._first is None or self._first[0] == self._claim.manifest.current_generation:
            return None
        return self._first[0]

    def _run(self, entries: Iterator[WalEntry]) -> Iterator[tuple[Generation, WalEntry]]:
        manifest = self._claim.manifest
        running = current = Generation(manifest.current_generation)
        total = self._claim.fence - manifest.replay_after
        is_first = True
        for done, entry in enumerate(entries, start=1):
            if done % PROGRESS_ENTRIES == 0:
                logger.info("shard.replay %s entries=%d of=%d", self._site.label, done, total)
            require_own(self._site, entry, self._claim)
            if not is_live(entry, current, keyed=self._keyed):
                continue
            tag = entry.generation
            if tag is None or tag < running:
                self.keeps_the_rule = False
            elif tag <= running + 1 or is_first:
                running = tag  # guard: F-8 simulator
            else:
                raise CorruptEntry(
                    f"{self._site}: the entry at position {entry.position} has generation {tag},"
                    f" but the log was at generation {running}; generations must rise by one"
                )
            is_first = False
            yield running, entry


def _read(site: ShardSite, manifests: Manifests, claim: Claim) -> Iterator[WalEntry]:
    last = claim.fence - 1  # the fence itself is ours, and holds no rows
    if last <= claim.manifest.replay_after:
        return
    try:
        yield from WalTailer(site).read_range(claim.manifest.replay_after, last)
    except (MissingEntry, SnapshotExpired) as missing:
        latest = manifests.require()
        manifests.require_owner(latest, claim.epoch)  # guard: F-6
        if latest.replay_after > claim.manifest.replay_after:
            raise Overtaken(
                f"{site}: a compaction folded its log up to position {latest.replay_after} during"
                " the replay, and gc deleted the entries; nothing is lost, open the shard again"
            ) from missing
        if isinstance(missing, SnapshotExpired):
            raise MissingEntry(
                f"{site}: entries after position {claim.manifest.replay_after} were deleted by gc,"
                f" but no SSTable holds their rows: {missing}"
            ) from missing
        raise
