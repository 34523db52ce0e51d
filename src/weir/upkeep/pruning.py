"""Takes SSTables whose rows the base holds out of a shard's manifest.

Keeps
  L-2  the epoch stays: a live writer builds on the shorter list at its next flush
  P-2  exactly-once tokens that count only by these SSTables are recorded first
  X-4  collection does so when the rows have been in the base for `min_age`
  X-10  a load does so at once: native readers take every listed SSTable for newer than the base
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace

from weir.errors import CommitConflict, FencedError
from weir.format.manifest import ShardManifest
from weir.log.manifests import Manifests
from weir.log.rules import Evidence
from weir.log.site import ShardSite
from weir.read.survey import ShardSurvey, survey
from weir.routing.core import CONCURRENCY, Core
from weir.shard.tokens import Tokens

logger = logging.getLogger("weir.upkeep")


def prunable(manifest: ShardManifest, named: Collection[str]) -> ShardManifest | None:
    """The manifest without the SSTables `named`; None when it names none of them."""
    left = tuple(table for table in manifest.sstables if table.path not in named)
    return None if len(left) == len(manifest.sstables) else replace(manifest, sstables=left)


def folded_tables(manifest: ShardManifest, through: int) -> set[str]:
    """The listed SSTables up to that generation."""
    return {table.path for table in manifest.sstables if table.generation <= through}


def prune(site: ShardSite, current: ShardManifest, named: Collection[str]) -> ShardManifest:
    """Take `named` out of the manifest, in the epoch of `current`; returns the manifest after it.

    `FencedError` or `CommitConflict` when another process changed the shard.
    """

    def change(latest: ShardManifest) -> tuple[ShardManifest, Evidence] | None:
        pruned = prunable(latest, named)
        if pruned is None:
            return None
        Tokens(site).settle(latest)
        return pruned, Evidence()

    return Manifests(site, current).update(change, epoch=current.writer_epoch)


def prune_folded(core: Core) -> None:
    """Take everything that the base holds out of all manifests. Two requests a shard at least.

    A shard that another process claims meanwhile is left to collection.
    """
    # The base after the manifests: a restore claims a shard before it names them again.
    seen = survey(core, logs=False)

    def one(shard: ShardSurvey) -> None:
        named = folded_tables(shard.manifest, seen.base.compacted.get(shard.id, 0))
        if not named:  # guard: X-10 always
            return
        try:
            prune(core.table_site(shard.id), shard.manifest, named)
        except (FencedError, CommitConflict) as lost:
            logger.info("load.not_pruned table=%s shard=%s reason=%s", core.uri, shard.id, lost)

    listing = [shard for shard in seen if shard.manifest.sstables]
    core.env.threads.map(one, listing, workers=CONCURRENCY)
