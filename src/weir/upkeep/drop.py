"""Delete a table such that no put to it is acknowledged afterwards.

    1  refuse while a clone shares its files (C-15)
    2  seal every shard: its writer is fenced, and nobody can claim it again
    3  release the pins in tables whose files this one shares (C-14)
    4  delete the logs in stores of their own, then the table's folders, and its record last

Keeps
  C-16 nothing is deleted before every shard is sealed; an interrupted drop is finished by the next
       one, because the record is deleted last
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Final
from uuid import UUID

from weir.errors import InvalidInput
from weir.format import paths
from weir.format.manifest import ShardManifest, Status
from weir.log.fence import claim_shard
from weir.log.rules import Evidence
from weir.log.stamp import unname_table
from weir.records.lineage import read_lineage
from weir.routing.core import CONCURRENCY, Core
from weir.store.api import Store
from weir.types import Position
from weir.upkeep import checkpoint as checkpoints
from weir.upkeep.parents import release_parent

logger = logging.getLogger(__name__)
_BATCH: Final = 1000
"""Objects per delete request."""


def drop(core: Core) -> None:
    """Delete the table of `core`; see `weir.drop`."""
    owners = sorted({str(c.owner) for c in checkpoints.checkpoints(core) if c.owner is not None})
    if owners:
        raise InvalidInput(
            f"{core.uri} shares files with its clone {owners[0]}; drop the clone first, or make it"
            " independent (compact, then gc). For a clone that is gone: table.release_clone(uri)"
        )
    shards = core.shard_ids()
    core.env.threads.map(lambda shard: _seal(core, shard), shards, workers=CONCURRENCY)
    core.env.failpoint("drop.sealed")
    lineage = read_lineage(core.store)
    for pin in () if lineage is None else lineage.pins:
        release_parent(pin, core.uri, core.storage_options, core.env)
    for shard in shards:
        _delete_logs(core, shard)
    core.env.failpoint("drop.logs")
    record = f"{paths.table_chain()}/"
    found = [meta.path for folder in paths.TABLE_FOLDERS for meta in core.store.list(folder)]
    _delete(core.store, [path for path in found if not path.startswith(record)])
    core.env.failpoint("drop.rows")
    _delete(core.store, [path for path in found if path.startswith(record)])
    logger.info("table.dropped uri=%s objects=%d", core.uri, len(found))


def _seal(core: Core, shard: UUID) -> None:
    """Make the last claim: it fences the current writer, and later claims are refused."""
    manifests = core.log(shard).manifests
    manifest = manifests.latest()
    if manifest is None or manifest.status is Status.SEALED:
        return
    claim = claim_shard(core.site(shard))

    def change(latest: ShardManifest) -> tuple[ShardManifest, Evidence]:
        last = Position(max(claim.fence, latest.last_seen))
        following = replace(
            latest, sstables=(), replay_after=last, last_seen=last, status=Status.SEALED
        )
        return following, Evidence(covered=last, restoring=True)

    manifests.update(change, epoch=claim.epoch)


def _delete_logs(core: Core, shard: UUID) -> None:
    """Delete the shard's objects in other stores: where its log is, and where it was."""
    former, notes = core.wal_stores.former(shard)
    for note in notes:
        logger.warning("table.drop.skipped uri=%s reason=%s", core.uri, note)
    for site in (core.site(shard), *former):
        if site.wal.uri != core.store.uri:
            unname_table(site.wal, core.uri)
            _delete(site.wal, [meta.path for meta in site.wal.list(paths.shard_dir(shard))])


def _delete(store: Store, found: Sequence[str]) -> None:
    for start in range(0, len(found), _BATCH):
        store.delete(found[start : start + _BATCH])
