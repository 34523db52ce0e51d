"""What stays where a table was dropped, so that none of its writers is ever acknowledged (C-16).

A writer that is still open puts its next entry right after its last one, and no proof of ownership
is due for up to `fence_ttl`. So every fence stays, that of the drop at the very position. With them
stay the sealed manifest, whose epoch is newer than any writer's, and the floors, which make every
walk find that manifest (G-7d, G-8). The next table at that place goes on from these numbers: no
position, epoch or version is used twice.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final
from uuid import UUID

from weir.env import Env
from weir.errors import (
    CommitConflict,
    FencedError,
    InvalidInput,
    SealedShard,
    WalStoreMismatch,
)
from weir.format import paths
from weir.format.manifest import ShardManifest, Status
from weir.log.fence import claim_shard, mark_place
from weir.log.headers import fences_among
from weir.log.manifests import Manifests
from weir.log.rules import Evidence
from weir.log.site import ShardSite
from weir.records.places import BESIDE_THE_DATA, append_place
from weir.routing.core import Core
from weir.store.api import Meta, RootMissing, Store
from weir.types import Epoch, Position

logger = logging.getLogger("weir.upkeep.drop")

BATCH: Final = 1000
"""Objects per delete request."""


def seal(core: Core, shard: UUID, ask: Callable[[], object]) -> ShardManifest | None:
    """Make the last claim: it fences the current writer, and later claims are refused.

    Returns the manifest that stays; None for a folder without one. Whoever claims the shard
    meanwhile, a writer or another drop, is met by the next attempt. `ask` raises when the drop is
    over. It is asked after a manifest was read, and what is then committed on top of that very one
    counts or is lost: nothing is sealed of the next table (C-16).
    """
    manifests = core.log(shard).manifests
    for _ in core.env.attempts():
        manifest = manifests.latest()
        if manifest is None:
            return None
        try:
            return _bury(manifests, *_last_claim(core, manifests, manifest, ask), ask)
        except (CommitConflict, FencedError, SealedShard) as lost:
            logger.info("table.drop.again uri=%s reason=%s", core.uri, lost)
    raise CommitConflict(
        f"{core.log(shard)}: other writers claimed it again and again while it was being dropped;"
        " stop them, then drop the table again"
    )


def _last_claim(
    core: Core, manifests: Manifests, manifest: ShardManifest, ask: Callable[[], object]
) -> tuple[Epoch, Position]:
    """The epoch that nobody comes after, and the position of its fence."""
    if manifest.status is Status.SEALED:
        return manifest.writer_epoch, manifest.last_seen
    try:
        claim = claim_shard(core.log(manifest.shard_id).current_site(), ask=ask)
    except (WalStoreMismatch, RootMissing) as lost:
        # Without its store the log cannot be fenced. A writer that still reaches it is refused by
        # its next proof of ownership, within `fence_ttl`.
        logger.warning("table.drop.skipped uri=%s reason=%s", core.uri, lost)
        ask()
        return manifests.claim(manifest).writer_epoch, manifest.last_seen
    return claim.epoch, claim.fence


def bury_unfinished(store: Store, env: Env) -> list[ShardManifest]:
    """The shards of an unfinished clone, where a table was dropped before; nobody wrote to them."""
    folders, _ = store.list_folder(paths.SHARDS)
    graves = []
    for name in folders:
        with contextlib.suppress(InvalidInput):  # not a shard's folder
            shard = paths.parse_shard_id(name.rstrip("/").rpartition("/")[2])
            manifests = Manifests(ShardSite(store, store, shard, env))
            found = manifests.latest()
            if found is not None:
                graves.append(_bury(manifests, found.writer_epoch, found.last_seen, lambda: None))
    return graves


def _bury(
    manifests: Manifests, epoch: Epoch, fence: Position, ask: Callable[[], object]
) -> ShardManifest:
    site = manifests.site

    def change(latest: ShardManifest) -> tuple[ShardManifest, Evidence] | None:
        if latest.dropped:
            return None
        ask()  # guard: C-16 test_drop
        last = Position(max(fence, latest.last_seen))
        place = BESIDE_THE_DATA
        if latest.log_place:  # guard: C-16 test_drop
            # The number of the place only rises, as a mover that sleeps may still mark an old one.
            place = append_place(site.store, site.shard, place, site.env)
        following = replace(
            latest,
            sstables=(),
            replay_after=last,
            last_seen=last,
            field_entries=(),  # a value of rows
            log_place=place.seq,
            status=Status.SEALED,  # guard: C-16
            dropped=True,
        )
        return following, Evidence(covered=last, restoring=True)

    sealed = manifests.update(change, epoch=epoch)
    # Before anything is deleted (G-6, G-7c, F-2).
    manifests.floors.raise_to("used", sealed.last_seen)
    # The last fence too: it stays where this log is, which the next table's log may not be.
    manifests.floors.raise_to("wal", sealed.last_seen)
    manifests.floors.raise_to("manifest", sealed.version - 1)
    mark_place(manifests, sealed, manifests.floors.load())
    return sealed


def clear_logs(core: Core, graves: Sequence[ShardManifest]) -> None:
    """Delete the shards' entries in other stores, where their logs are and were; fences stay."""
    cleared: list[Store] = []
    for grave in graves:
        sites, notes = core.wal_stores.former(grave.shard_id, BESIDE_THE_DATA)
        for note in notes:  # guard: S-5
            logger.warning("table.drop.skipped uri=%s reason=%s", core.uri, note)
        for site in sites:
            listed = list(site.wal.list(paths.shard_dir(grave.shard_id)))
            found = {meta.path for meta in listed}
            delete(site.wal, found - fences_among(site.wal, listed))
            cleared.append(site.wal)
    for wal in set(cleared):  # last: without it a folder is not found again
        wal.delete([paths.LOG_OWNER])


def remains(store: Store, listed: Sequence[Meta], graves: Sequence[ShardManifest]) -> set[str]:
    """Which of the listed objects in the table's own store stay.

    Every fence of a writer does: one that was fenced just before the drop meets the one that fenced
    it. What an unfinished clone copied lies above, and nobody wrote after that: it goes, or the
    next table would find a hole between two copied fences.
    """
    last_seen = {paths.wal_dir(grave.shard_id): grave.last_seen for grave in graves}
    stay = fences_among(store, [meta for meta in listed if _is_within(meta, last_seen)])
    floors: list[str] = []
    for grave in graves:
        stay.add(paths.manifest_path(grave.shard_id, grave.version))
        stay.add(paths.chain_path(paths.places_chain(grave.shard_id), grave.log_place))
        floors.append(f"{paths.floors_dir(grave.shard_id)}/")
    # Its last record ends the chain (`Jobs.bury`); earlier ones hold plans.
    jobs = (meta.path for meta in listed if meta.path.startswith(paths.compaction_chain() + "/"))
    stay.update(sorted(jobs)[-1:])
    # P-8: the marks of statements are numbers of their chain, so it goes on as well.
    kept = (paths.table_chain() + "/", paths.statement_chain() + "/", *floors)
    return stay | {meta.path for meta in listed if meta.path.startswith(kept)}


def _is_within(entry: Meta, last_seen: Mapping[str, int]) -> bool:
    """True when the object is an entry at or below the last one of its log."""
    folder, _, name = entry.path.rpartition("/")
    position = paths.parse_wal_name(name)
    return position is not None and position <= last_seen.get(folder, -1)


def delete(store: Store, found: Iterable[str]) -> None:
    """Delete those objects, a thousand with a request."""
    listed = list(found)
    for start in range(0, len(listed), BATCH):
        store.delete(listed[start : start + BATCH])
