"""`Owner`: upkeep in the place of a shard's writer, for a moment. Nothing else in upkeep opens one.

A claim fences the shard's writer, wherever it is; its acknowledged rows are safe, and it can be
opened again. The writer that is opened here is not the handle's: checkpoints still flush through
the user's own (K-3), and none of the handle's is opened while this one flushes.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from uuid import UUID

from weir.errors import CommitConflict, FencedError, SealedShard, WalStoreMismatch
from weir.format.manifest import ShardManifest, Status
from weir.log.fence import claim_shard
from weir.log.ownership import Claim
from weir.log.rules import Evidence
from weir.log.wal_store import WalMoved
from weir.routing.core import Core
from weir.routing.shards import Shard, unregistered_writer
from weir.shard.tokens import Tokens
from weir.shard.writer import ShardWriter
from weir.store.api import RootMissing

logger = logging.getLogger("weir.upkeep")


class Owner:
    """The claim of one shard, taken by each call and given back at its end."""

    def __init__(self, core: Core, shard: UUID) -> None:
        self._core = core
        self._shard = shard

    def _writer(self) -> ShardWriter:
        # The table's own settings: a larger `fence_ttl` would be refused (G-7b).
        config = replace(self._core.record.writer_defaults, enable_memtable=True, index_configs=())
        shard = Shard(self._core, self._shard, None, is_routed=False)
        return unregistered_writer(self._core, shard, config)

    def claim(self) -> Claim:
        """Take the next epoch and write its fence.

        A lost log that held nothing is replaced, as a writer would do (S-7).
        """
        log = self._core.log(self._shard)
        for _ in self._core.env.attempts():
            try:
                return claim_shard(log.current_site())
            except WalMoved:
                continue
            except (WalStoreMismatch, RootMissing):
                self._writer().close()
        raise CommitConflict(
            f"{log}: it was moved again and again while it was being claimed; try again"
        )

    def flush(self) -> ShardManifest:
        """Bring the whole log into SSTables; returns the manifest with R at its end.

        `FencedError` when another writer claims the shard meanwhile, `SealedShard` when it is
        sealed.
        """
        with self._core.opening(self._shard):
            return self._flush()

    def flush_unowned(self) -> ShardManifest | None:
        """`flush`; None when a writer of this handle has the shard, and flushes itself (K-3)."""
        with self._core.opening(self._shard):
            own = self._core.live_writer(self._shard)
            latest = self._core.log(self._shard).manifests.require()
            # guard: K-3 test_checkpoint_beside_opening
            if own is not None and own.epoch == latest.writer_epoch:  # else fenced unnoticed (K-9)
                return None
            return self._flush()

    def _flush(self) -> ShardManifest:
        with self._writer() as writer:
            return writer.flush()

    def seal(self) -> None:
        """End the shard: from then on every row of its log is in an SSTable, for good (C-11)."""
        manifests = self._core.log(self._shard).manifests
        for _ in self._core.env.attempts():
            manifest = manifests.latest()
            if manifest is None or manifest.status is Status.SEALED:
                return
            try:
                with self._writer() as writer:
                    flushed = writer.flush()
                    # P-6: heirs read the tokens that a sealed shard has recorded, not its log.
                    tokens = Tokens(writer.site)
                    # guard: P-6
                    tokens.recover(None, epoch=writer.epoch, through=flushed.replay_after)
                    manifests.update(_sealed, epoch=writer.epoch)
                return
            except (FencedError, SealedShard) as lost:
                logger.info("seal.again %s reason=%s", manifests.site.label, lost)
        raise CommitConflict(
            f"{self._core.log(self._shard)}: other writers claimed it again and again while it was"
            " being sealed; stop them, then run this again"
        )


def _sealed(current: ShardManifest) -> tuple[ShardManifest, Evidence] | None:
    assert current.replay_after == current.last_seen, "C-11: sealed with rows in the log"
    return replace(current, status=Status.SEALED), Evidence()
