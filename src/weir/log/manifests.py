"""The shard's manifest: find the latest, commit the next. The one place that writes manifests.

Keeps
  F-1  an update is made only in the epoch its author owns
  F-3  `rules.check` runs on every write
  F-9  each version carries a random commit id, so a lost answer can be settled by comparing bytes
  G-6  committing a version at or below the floor is not a success
  G-7d a hint or a walk that ends at or below the floor is not trusted; the folder is listed instead
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from weir.errors import (
    CommitConflict,
    CorruptEntry,
    FencedError,
    SealedShard,
    StoreError,
    UnknownOutcome,
)
from weir.format import paths
from weir.format.manifest import (
    ShardManifest,
    SsTable,
    Status,
    decode_hint,
    decode_manifest,
    encode_hint,
    encode_manifest,
)
from weir.log import rules
from weir.log.floors import Floors, FloorValues, load_all
from weir.log.rules import NO_EVIDENCE, Evidence
from weir.log.site import ShardSite
from weir.store.api import LostAnswer, ObjectExists, ObjectMissing
from weir.types import Epoch, Generation, Position, Version

logger = logging.getLogger("weir.log")


ON_PURPOSE: Final = (
    "Take the shard back (with a new writer) only on purpose: writers that do so on this error"
    " fence each other for ever."
)
DROPPED: Final = (
    "its table was dropped. If a new table was made there, open it again with weir.open."
)


_GENERATIONS_APART: Final = 1 << 20
"""Far more SSTables than a writer of a dropped table can have under way."""
_TOGETHER: Final = 16
"""Shards that are read one by one at the same time."""

_PROBE_BATCHES = (2, 4, 8, 16, 32, 64)

State = tuple[ShardManifest | None, FloorValues]
"""The latest manifest of a shard, and the floors read right after it."""


class Manifests:
    """Reads and writes the manifest versions of one shard. Safe to share between threads."""

    def __init__(self, site: ShardSite, known: ShardManifest | None = None) -> None:
        """`known`: a version that the caller has read; the search for the latest begins there."""
        self.site = site
        self.floors = Floors(site)
        self._known = known

    @property
    def known(self) -> ShardManifest | None:
        """The latest version this object has seen; there may be newer ones. No request."""
        return self._known

    def load(self, version: Version) -> ShardManifest | None:
        """That version, or None when there is no such file. One request."""
        path = paths.manifest_path(self.site.shard, version)
        try:
            data = self.site.store.get(path).data
        except ObjectMissing:
            return None
        return decode_manifest(data, path=f"{self.site.store.uri}/{path}")

    def latest(self) -> ShardManifest | None:
        """The newest version, or None for a shard that has none.

        Two requests when nothing changed since the last call of this object (one probe, one listing
        of the floors), three or four the first time.
        """
        return self.latest_with_floors()[0]

    def latest_with_floors(self) -> State:
        """The newest version and the floors as they were right after it was found."""
        found = self._walk(self._known or self._hinted())
        floors = self.floors.load()
        if found is not None and floors.place > found.log_place:
            # S-3: the log was moved since. The manifest that says so is there before the mark; if
            # there is none, a program that does not know the field has written since.
            found = self._walk(found)
        # guard: G-7d last simulator:collection
        if found is None or found.version <= floors.manifest:
            # G-7d: versions along the walk were collected, and perhaps recreated by a zombie.
            found, floors = self._listed(floors)
        if found is not None:
            self._known = found
        return found, floors

    def require(self) -> ShardManifest:
        """The newest version of a shard that must exist."""
        found = self.latest()
        if found is None:
            raise CommitConflict(
                f"{self.site} has no manifest: it was never created, or was removed"
            )
        return found

    def require_there(self, epoch: Epoch) -> ShardManifest:
        """`require`, and proof that the version exists: what was seen must not be missing (G-8).

        `latest` walks up from the version it knows, and would never notice that all of them are
        gone. Raises `FencedError` then: the table was removed.
        """
        for _ in self.site.env.attempts(first_delay=0):
            found = self.require()
            if self.site.store.head(paths.manifest_path(self.site.shard, found.version)):
                return found
            if found.version > self.floors.load().manifest:
                raise FencedError(
                    f"{self.site}: manifest {found.version} was there and is gone, without a newer"
                    " one: the table was removed. This handle is finished",
                    epoch=epoch,
                    fenced_by=found.writer_epoch,
                )
        raise CommitConflict(f"{self.site}: its manifests keep changing; try again")

    def advance_replay_point(self, through: Position, epoch: Epoch) -> ShardManifest:
        """Move R to `through` in that epoch, over nothing but fences. Fences nobody (W-3).

        Raises `FencedError` when another writer has claimed the shard.
        """

        def change(current: ShardManifest) -> tuple[ShardManifest, Evidence] | None:
            if current.replay_after >= through:
                return None
            last = Position(max(current.last_seen, through))
            covered = replace(current, replay_after=through, last_seen=last)
            return covered, Evidence(covered=through)

        return self.update(change, epoch=epoch)

    def create(self, first: ShardManifest) -> ShardManifest:
        """Write version 1 unless it exists; return the stored one. For creators that agree.

        Where a table was dropped, its shard's versions, epochs and positions go on (C-16): then
        `first` counts from there. One put, one listing.
        """
        rules.check(first, None)
        try:
            self.site.store.put_if_absent(
                paths.manifest_path(self.site.shard, first.version), self._encode(first)
            )
        except ObjectExists:
            found = self.require()
            return self._after_drop(first, found) if found.dropped else found
        except LostAnswer as lost:
            raise self._unknown(first.version) from lost
        if self.floors.load().manifest:
            # G-6: it does not count, because a table was here before.
            found = self.require()
            return self._after_drop(first, found) if found.dropped else found
        self._known = first
        return first

    def _after_drop(self, first: ShardManifest, grave: ShardManifest) -> ShardManifest:
        epoch = Epoch(max(first.writer_epoch, grave.writer_epoch))
        generation = first.current_generation
        if first.replay_after == first.last_seen:
            # C-16: then an SSTable that a writer of the dropped table still puts there has a number
            # below, and is collected (G-4). Entries that a clone has copied keep theirs (F-14).
            above = Generation(grave.current_generation + _GENERATIONS_APART)
            generation = max(generation, above)  # guard: C-16 test_drop
        following = replace(
            first,
            version=Version(grave.version + 1),
            writer_epoch=epoch,
            closed_epoch=epoch,
            log_place=first.log_place or grave.log_place,
            current_generation=generation,
            replay_after=Position(first.replay_after + grave.last_seen),
            last_seen=Position(first.last_seen + grave.last_seen),
        )
        try:
            return self.commit(following, grave, NO_EVIDENCE)
        except CommitConflict:
            return self.require()

    def commit(
        self, following: ShardManifest, current: ShardManifest | None, evidence: Evidence
    ) -> ShardManifest:
        """Write `following` after `current`, or raise `CommitConflict`. Put, floor check, hint."""
        following = replace(following, commit_id=self.site.env.new_id().bytes)
        rules.check(following, current, evidence)
        path = paths.manifest_path(self.site.shard, following.version)
        try:
            self.site.store.put_if_absent(path, self._encode(following))
        except ObjectExists:
            raise CommitConflict(
                f"{self.site}: another process committed manifest {following.version} first; read"
                " the latest manifest and retry"
            ) from None
        except LostAnswer as lost:
            raise self._unknown(following.version) from lost
        # Read the floor after the put: collection may have passed this version during the put.
        if following.version <= self.floors.load().manifest:  # guard: G-6 test_gc
            raise CommitConflict(
                f"{self.site}: manifest {following.version} does not count, because versions up to"
                " it were already collected; read the latest manifest and retry"
            )
        self._known = following
        self._write_hint(following.version)
        return following

    def _encode(self, manifest: ShardManifest) -> bytes:
        """Encode and read it back: a version that readers refuse ends the shard (F-15, G-13)."""
        path = f"{self.site.store.uri}/{paths.manifest_path(self.site.shard, manifest.version)}"
        try:
            data = encode_manifest(manifest)
        except (ValueError, TypeError) as error:
            raise CorruptEntry(f"{path} cannot be written: {error}") from error
        decode_manifest(data, path=path)
        return data

    def update(
        self,
        change: Callable[[ShardManifest], tuple[ShardManifest, Evidence] | None],
        *,
        epoch: Epoch,
    ) -> ShardManifest:
        """Commit `change(latest)` in `epoch`, rebasing on versions others wrote in that epoch.

        `change` sees the latest manifest and returns the next one with its evidence (the version
        number is filled in), or None for 'nothing to do'. Raises `FencedError` when a newer epoch
        owns the shard.
        """
        for _ in self.site.env.attempts():
            current = self.require()
            self.require_owner(current, epoch)  # guard: F-1 simulator
            changed = change(current)
            if changed is None:
                return current
            following, evidence = changed
            following = replace(following, version=Version(current.version + 1), writer_epoch=epoch)
            try:
                return self.commit(following, current, evidence)
            except CommitConflict as conflict:
                logger.info("manifest.rebase %s reason=%s", self.site.label, conflict)
        raise CommitConflict(
            f"{self.site}: others changed its manifest first, again and again; try again later"
        )

    def claim(self, current: ShardManifest | None, *, wal_only: bool = False) -> ShardManifest:
        """Take the next epoch on top of `current`; `CommitConflict` when somebody was faster.

        `wal_only`: the new owner keeps no rows in memory.
        """
        if current is None:
            first = ShardManifest(
                version=Version(1),
                writer_epoch=Epoch(1),
                replay_after=Position(0),
                last_seen=Position(0),
                current_generation=Generation(1),
                sstables=(),
                shard_spec_id=0,
                shard_id=self.site.shard,
                field_entries=(),
                status=Status.ACTIVE,
                wal_only=wal_only,
            )
            return self.commit(first, None, Evidence())
        self._require_active(current)
        claimed = replace(
            current,
            version=Version(current.version + 1),
            writer_epoch=Epoch(current.writer_epoch + 1),
            wal_only=wal_only,
        )
        return self.commit(claimed, current, Evidence())

    def replace_log(self, current: ShardManifest, place: int, through: Position) -> ShardManifest:
        """Give up a log that is lost: the next epoch's log begins at `place`, after `through`.

        One commit on top of the manifest by which the caller decided (S-2). It says that its owner
        has left, so if this process dies, the next one finds the same. `CommitConflict` when
        somebody was faster.
        """
        self._require_active(current)
        epoch = Epoch(current.writer_epoch + 1)
        following = replace(
            current,
            version=Version(current.version + 1),
            writer_epoch=epoch,
            closed_epoch=epoch,
            replay_after=through,
            last_seen=through,
            log_place=place,
        )
        return self.commit(following, current, Evidence(covered=through))

    def _require_active(self, current: ShardManifest) -> None:
        if current.dropped:
            raise SealedShard(f"{self.site}: {DROPPED}")
        if current.status is Status.SEALED:
            raise SealedShard(
                f"{self.site} is sealed and takes no more writes; open the table again to find the"
                " shards that took over"
            )

    def leave(self, epoch: Epoch, last: Position) -> None:
        """Say that no entry of `epoch` will follow the one at `last`, the log's last with rows."""

        def change(current: ShardManifest) -> tuple[ShardManifest, Evidence] | None:
            if current.is_left:
                return None
            seen = Position(max(current.last_seen, last))
            return replace(current, closed_epoch=epoch, last_seen=seen), Evidence()

        self.update(change, epoch=epoch)

    def published(self, table: SsTable, current: ShardManifest, tried: Sequence[Version]) -> bool:
        """Whether the latest version names that SSTable, or one of `tried` did before a compaction.

        For the owner of the epoch of `current`, after a commit that got no answer and may have
        been applied.
        """
        if any(known.path == table.path for known in current.sstables):
            return True
        if not tried:  # guard: W-5 always
            return False
        if current.current_generation > table.generation:  # guard: W-5 test_flush_collected_asleep
            # Only the owner ends a generation: its version counted, and was collected before the
            # owner saw that. A fold that ends one has taken every entry of those before it (L-6).
            return True
        found = [self.load(version) for version in tried]
        # Read the floor last: a version of ours in a collected place proves nothing (G-6).
        floor = self.floors.load().manifest
        return any(
            known.path == table.path
            for manifest in found
            if manifest is not None and manifest.version > floor
            for known in manifest.sstables
        )

    def require_owner(
        self, manifest: ShardManifest, epoch: Epoch, position: Position | None = None
    ) -> None:
        """Raise `FencedError` when the manifest shows a newer epoch than `epoch`; `position` is
        where the owner of `epoch` tried to write."""
        if manifest.writer_epoch > epoch:
            newer = (
                f"epoch {epoch} was fenced by epoch {manifest.writer_epoch}, a newer writer owns"
                f" the shard. This handle is finished; hand its rows to that writer. {ON_PURPOSE}"
            )
            fenced = FencedError(
                f"{self.site}: {DROPPED if manifest.dropped else newer}",
                epoch=epoch,
                fenced_by=manifest.writer_epoch,
            )
            raise fenced if position is None else fenced.at(position)

    def _hinted(self) -> ShardManifest | None:
        try:
            hint = decode_hint(self.site.store.get(paths.manifest_hint_path(self.site.shard)).data)
        except ObjectMissing:
            hint = None
        found = self.load(hint) if hint else None
        return found or self.load(Version(1))

    def start_at(self, data: bytes | None, version: Version) -> None:
        """Begin the next search at that version, which the caller read; None: at the hint."""
        if data is not None and self._known is None:
            path = paths.manifest_path(self.site.shard, version)
            self._known = decode_manifest(data, path=f"{self.site.store.uri}/{path}")

    def _walk(self, start: ShardManifest | None) -> ShardManifest | None:
        """Follow versions upwards from `start` until a whole batch of probes finds nothing."""
        if start is None:
            return None
        newest = start
        sizes = itertools.chain((1, *_PROBE_BATCHES), itertools.repeat(_PROBE_BATCHES[-1], 10_000))
        for size in sizes:
            after = newest.version
            wanted = [
                paths.manifest_path(self.site.shard, Version(after + i)) for i in range(1, size + 1)
            ]
            hits = [
                (path, data)
                for path, data in zip(wanted, self.site.store.get_many(wanted), strict=True)
                if data is not None
            ]
            if not hits:
                return newest
            path, data = hits[-1]
            newest = decode_manifest(data, path=f"{self.site.store.uri}/{path}")
        raise StoreError(
            f"{self.site}: still finding newer manifests at version {newest.version}; check whether"
            " a process commits in a loop"
        )

    def _listed(self, floors: FloorValues) -> tuple[ShardManifest | None, FloorValues]:
        """The highest version in the folder; versions at or below the floor do not count (G-6).

        Others commit and collect concurrently: a listed version may be gone when it is read, which
        does not mean that the shard has no manifest.
        """
        for _ in self.site.env.attempts(first_delay=0):
            versions: list[Version] = []
            for meta in self.site.store.list(paths.manifest_dir(self.site.shard)):
                version = paths.parse_manifest_name(meta.path.rpartition("/")[2])
                if version is not None and version > floors.manifest:
                    versions.append(version)
            if not versions and not floors.manifest:
                return None, floors
            found = self._walk(self.load(max(versions))) if versions else None
            floors = self.floors.load()
            if found is not None and found.version > floors.manifest:
                return found, floors
        raise StoreError(
            f"{self.site}: found no manifest above the floor {floors.manifest} in several"
            " looks; each was collected before it was read, or none exists. Try again"
        )

    def _write_hint(self, version: Version) -> None:
        try:
            self.site.store.put(paths.manifest_hint_path(self.site.shard), encode_hint(version))
        except StoreError as error:
            logger.info("manifest.hint.skipped %s reason=%s", self.site.label, error)

    def _unknown(self, version: Version) -> UnknownOutcome:
        return UnknownOutcome(
            f"{self.site}: the store never answered whether manifest {version} was written; "
            "nothing was deleted, open the shard again and its replay decides"
        )


def latest_of(shards: Sequence[Manifests]) -> list[tuple[ShardManifest | None, FloorValues]]:
    """`latest_with_floors` of many shards of one table, in two rounds of requests.

    Two rounds more for shards not seen before; a shard that changed since is read on its own.
    """
    if not shards:
        return []
    _start(shards)
    store = shards[0].site.store
    starts = [manifests.known for manifests in shards]
    newer = [
        paths.manifest_path(start.shard_id, Version(start.version + 1)) for start in starts if start
    ]
    is_newer = dict(zip(newer, store.get_many(newer), strict=True))
    floors = load_all(store, [paths.floors_dir(manifests.site.shard) for manifests in shards])

    def settle(index: int) -> tuple[ShardManifest | None, FloorValues]:
        start, after = starts[index], floors[index]
        if start is not None and start.version > after.manifest:
            path = paths.manifest_path(start.shard_id, Version(start.version + 1))
            if is_newer[path] is None and after.place <= start.log_place:
                return start, after
        return shards[index].latest_with_floors()

    threads = shards[0].site.env.threads
    return threads.map(settle, list(range(len(shards))), workers=_TOGETHER)


def _start(shards: Sequence[Manifests]) -> None:
    """Read the versions that the hints of unknown shards name."""
    unknown = [manifests for manifests in shards if manifests.known is None]
    if not unknown:
        return
    store = unknown[0].site.store
    hints = store.get_many([paths.manifest_hint_path(m.site.shard) for m in unknown])
    versions = [(decode_hint(hint) if hint else None) or Version(1) for hint in hints]
    wanted = [
        paths.manifest_path(m.site.shard, version)
        for m, version in zip(unknown, versions, strict=True)
    ]
    found = store.get_many(wanted)
    for manifests, data, version in zip(unknown, found, versions, strict=True):
        manifests.start_at(data, version)
