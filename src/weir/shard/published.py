"""Whether an SSTable was published, asked by a flush whose commit failed after it was applied."""

from __future__ import annotations

from collections.abc import Sequence

from weir.format.manifest import ShardManifest, SsTable
from weir.log.manifests import Manifests
from weir.types import Version


def is_published(
    manifests: Manifests, entry: SsTable, current: ShardManifest, tried: Sequence[Version]
) -> bool:
    """True when a version names it: the latest, or one of ours that was compacted since."""
    if any(s.path == entry.path for s in current.sstables):
        return True
    if not tried:
        return False
    found = [manifests.load(version) for version in tried]
    # After the reads: a version of ours that landed in a collected place names what it likes (G-6).
    floor = manifests.floors.load().manifest
    return any(
        s.path == entry.path
        for m in found
        if m is not None and m.version > floor
        for s in m.sstables
    )
