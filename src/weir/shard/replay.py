"""The log between R and our fence, back into MemTables.

Keeps
  F-6  replay ends at the fence of this open; a missing entry before it is damage, unless we are
       fenced
  F-7  an entry of a newer epoch means fenced
  F-8  rows keep the generation they were tagged with, so each MemTable covers exactly its own
       entries
Entries tagged below the manifest's current generation are in an SSTable already: native writers let
R lag.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from weir.errors import CommitConflict, CorruptEntry, FencedError, MissingEntry, SnapshotExpired
from weir.format.wal_entry import WalEntry
from weir.log.fence import Claim
from weir.log.manifests import Manifests
from weir.log.site import ShardSite
from weir.log.tailer import WalTailer
from weir.types import Generation

log = logging.getLogger("weir.shard")

PROGRESS_ENTRIES = 1000
Progress = Callable[[int, int], None]


class Overtaken(CommitConflict):
    """A compaction of logs passed the entries that were being replayed (L-6); open again."""


def replay_entries(
    site: ShardSite, manifests: Manifests, claim: Claim, progress: Progress | None = None
) -> Iterator[tuple[Generation, WalEntry]]:
    """Every entry with rows that is not yet in an SSTable, each with the generation it rejoins.

    Generations come out consecutive from the manifest's current one, ascending.
    """
    manifest = claim.manifest
    current = Generation(manifest.current_generation)
    running: Generation | None = None
    offset = 0
    total = claim.fence - manifest.replay_after
    for done, entry in enumerate(_read(site, manifests, claim), start=1):
        _report(site, done, total, progress)
        require_own(site, entry, claim)
        if entry.is_fence or not entry.batches:
            continue
        tagged = entry.generation if entry.generation is not None else running
        if tagged is not None and running is None and tagged < current:
            continue
        if running is None:
            # Only the first live entry may be tagged above the current generation; it starts there.
            running = current
            offset = (tagged or current) - current
        elif tagged is not None:
            step = tagged - offset - running
            if step not in (0, 1):
                raise CorruptEntry(
                    f"{site}: the entry at position {entry.position} has generation {tagged} after "
                    f"{running + offset}; generations rise one by one"
                )
            running = Generation(running + step)
        yield running, entry


def require_own(site: ShardSite, entry: WalEntry, claim: Claim) -> None:
    """`FencedError` for an entry of a newer epoch than the claim's (F-7)."""
    if entry.epoch > claim.epoch:
        raise FencedError(
            f"{site}: met an entry of epoch {entry.epoch} at position {entry.position} while"
            f" opening in epoch {claim.epoch}; a newer writer owns the shard",
            epoch=claim.epoch,
            fenced_by=entry.epoch,
        )


def _read(site: ShardSite, manifests: Manifests, claim: Claim) -> Iterator[WalEntry]:
    tailer = WalTailer(site)
    try:
        yield from tailer.read_range(claim.manifest.replay_after, claim.fence)
    except (MissingEntry, SnapshotExpired) as missing:
        latest = manifests.require()
        manifests.require_owner(latest, claim.epoch)
        if latest.replay_after > claim.manifest.replay_after:
            raise Overtaken(
                f"{site}: a compaction folded its log through {latest.replay_after} while it was"
                " replayed, and collection took the entries; nothing is lost, open the shard again"
            ) from missing
        if isinstance(missing, SnapshotExpired):
            raise MissingEntry(
                f"{site}: entries after R={claim.manifest.replay_after} were collected although no "
                "SSTable "
                f"covers them: {missing}"
            ) from missing
        raise


def _report(site: ShardSite, done: int, total: int, progress: Progress | None) -> None:
    if progress is not None:
        progress(done, total)
    if done % PROGRESS_ENTRIES == 0:
        log.info("shard.replay shard=%s entries=%d of=%d", site.shard, done, total)
