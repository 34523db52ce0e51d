"""The judge: what every history must satisfy, seen from outside the code.

    D  an acknowledged batch is never lost
    O  each batch takes effect once
    A  a batch is whole or not there
    S  no success, no manifest move by an old epoch
    L  positions contiguous, epochs do not fall
    R  a view is a prefix of the log, not older than the acks before it
    C  nothing reachable is deleted; floor before delete
    P  when faults stop, open + append succeed in bounded calls
    T  the error tells the truth
    K, I: checkpoint contents; damaged bytes are errors

The judge watches every applied write. The log as it was first written, position by position, is the
truth: folding it up to position P gives the only table a reader may see at P. Rows carry (session,
batch, index, size), so that every row found anywhere identifies its put.
"""

from __future__ import annotations

from collections import Counter
from typing import Any
from uuid import UUID

from simulator.deletions import check_delete, split_uri
from simulator.effects import BaseTruth
from simulator.scheduler import Actor, Scheduler
from simulator.truth import (
    BatchId,
    Entry,
    Put,
    Rollback,
    Row,
    ShardTruth,
    State,
    Violation,
    fold_rows,
    index_rows,
    read_entry,
)
from simulator.world import Shelf
from weir.errors import (
    Backpressure,
    CommitConflict,
    CorruptEntry,
    FencedError,
    InvalidInput,
    MissingEntry,
    UnknownOutcome,
    WeirError,
)
from weir.format import paths
from weir.format.manifest import ShardManifest, Status, decode_manifest
from weir.log.rules import RuleBroken
from weir.records import codec
from weir.records.places import LogPlace
from weir.records.table import TableRecord


class Judge:
    """Watches one run."""

    def __init__(
        self, scheduler: Scheduler, shelf: Shelf, log_store: str | None = None, *, keyed: bool
    ) -> None:
        self.scheduler = scheduler
        self.shelf = shelf
        self.log_store = log_store or shelf.uri
        self.keyed = keyed
        self.shards: dict[UUID, ShardTruth] = {}
        self.puts: dict[BatchId, Put] = {}
        self.seen: dict[BatchId, int] = {}
        self.where: dict[BatchId, UUID] = {}
        """The shard whose log holds the batch."""
        self.claims: dict[tuple[str, UUID], int] = {}
        """The epoch each actor claimed last."""
        self.pins: dict[UUID, tuple[UUID, int, int]] = {}
        """Checkpoints the harness holds: id -> (shard, manifest version, T)."""
        self.makers: dict[UUID, str] = {}
        """The process that made each checkpoint."""
        self.counts: Counter[str] = Counter()
        self.fault_free = True
        self.marks: dict[UUID, int] = {}
        self.routings: list[TableRecord] = []
        """Every routing there was, oldest first."""
        self.rollback: dict[str, Rollback] = {}
        """Restores under way, by the process that runs them."""
        self.is_mixed = False
        """Between the two halves of a restore: a view may mix the states before and after it."""
        self.mixtures = 0
        self.base: BaseTruth | None = None
        """Set where the base is changed bypassing the log."""
        shelf.world.on_write.append(self.on_write)
        shelf.world.before_replace.append(self.on_replace)
        shelf.world.before_delete.append(lambda actor, uri: check_delete(self, actor, uri))

    def truth(self, shard: UUID) -> ShardTruth:
        """The truth about one shard."""
        found = self.shards.get(shard)
        if found is None:
            found = self.shards[shard] = ShardTruth(shard, places=[(0, self.log_store)])
        return found

    def mix(self) -> None:
        """A restore begins to change the table."""
        self.is_mixed = True
        self.mixtures += 1

    def unmix(self) -> None:
        """A restore is complete."""
        self.is_mixed = False
        self.mixtures += 1

    # -- the store's side ------------------------------------------------------------------------

    def on_write(self, actor: Actor, op: str, uri: str, data: Any) -> None:
        """An applied write: judge what it means."""
        root, path = split_uri(uri)
        parts = path.split("/")
        is_table = root == self.shelf.uri
        if len(parts) == 4 and parts[0] == paths.SHARDS:
            if parts[2] == "wal":
                position = paths.parse_wal_name(parts[3])
                if position is not None:
                    self._on_entry(actor, UUID(parts[1]), position, data, root)
            elif parts[2] == "manifest" and is_table:
                version = paths.parse_manifest_name(parts[3])
                if version is not None:
                    self._on_manifest(actor, UUID(parts[1]), version, data, path)
        elif is_table and path.startswith(paths.table_chain() + "/"):
            self._on_record(codec.loads(data, TableRecord, path))
        elif is_table and path.startswith(paths.CHECKPOINTS + "/"):
            self.makers.setdefault(UUID(parts[2]), actor.name)
        elif is_table and parts[0] == "_versions" and self.base is not None:
            self.base.on_version(data, self.scheduler.step)

    def on_replace(self, actor: Actor, uri: str, old: bytes, new: bytes) -> None:
        """F-17: files of an SSTable or a fold are created, never put over another's."""
        _, path = split_uri(uri)
        if ("_gen_" in path or path.startswith("data/")) and old != new:
            raise Violation("C", f"{actor.name} overwrites {uri} with other bytes (F-17)")

    def _on_record(self, record: TableRecord) -> None:
        if not self.routings or record.routing_version > self.routings[-1].routing_version:
            self.routings.append(record)

    def _on_move(self, truth: ShardTruth, manifest: ShardManifest) -> None:
        """A manifest names another place of the log."""
        path = paths.chain_path(paths.places_chain(truth.shard), manifest.log_place)
        record = codec.loads(self.shelf.blobs[path].data, LogPlace, path)
        target, after = self._root_of(record), record.after
        left = [p for p, entry in truth.log.items() if p > after and entry.rows]
        if left or manifest.replay_after < truth.acked:
            raise Violation("D", f"the log moves after {after}, and rows are left behind (S-3)")
        self.counts["moves of the log"] += 1
        self.scheduler.note("judge", f"the log is in {target} after {after}")
        # Only fences may be left in a store that was lost (S-2); the log continues without them.
        for position in [p for p in truth.log if p > after]:
            del truth.log[position]
        del truth.folded[after:]
        truth.tip = after
        truth.place = manifest.log_place
        truth.places.append((after, target))

    def _root_of(self, record: LogPlace) -> str:
        """The folder of a place, whatever the URI of its disk on each machine."""
        if record.folder is None:
            return self.shelf.uri
        for uri, shelf in self.shelf.world.shelves.items():
            if f"{record.folder}/{paths.LOG_OWNER}" in shelf.blobs:
                return f"{uri}/{record.folder}"
        raise Violation("S", f"the log moves to {record.root}, which is nowhere (S-1)")

    def _on_entry(self, actor: Actor, shard: UUID, position: int, data: bytes, root: str) -> None:
        truth = self.truth(shard)
        if root != truth.places[-1][1]:
            if any(store == root for _, store in truth.places):
                self.counts["entry of a zombie in a store the log has left"] += 1
                self.scheduler.note("judge", f"{position} in {root}, which the log has left")
            return  # or the entry is a clone's
        if position in truth.log:
            # Collected, then written again by a zombie: it does not count, and is no success.
            self.counts["position written again after collection"] += 1
            truth.again.append(position)
            self.scheduler.note("judge", f"position {position} was written again by {actor.name}")
            return
        entry = read_entry(data, position, actor.name)
        before = truth.log.get(position - 1)
        if position > 1 and before is None and truth.log:
            raise Violation("L", f"position {position} leaves a hole: the tip was {truth.tip}")
        if before is not None and entry.epoch < before.epoch:
            raise Violation(
                "L", f"position {position} has epoch {entry.epoch} after {before.epoch} (F-7)"
            )
        if truth.sealed:
            raise Violation("S", f"a sealed shard took an entry at {position} (C-11)")
        if entry.rows and entry.generation is not None:
            if entry.generation < truth.tag:
                raise Violation(
                    "L", f"position {position} has tag {entry.generation} after {truth.tag} (F-14)"
                )
            truth.tag = entry.generation
        self._check_batches(entry, shard)
        entry.step = self.scheduler.step
        truth.log[position] = entry
        truth.tip = max(truth.tip, position)
        last = truth.folded[-1] if truth.folded else {}
        truth.folded.append(fold_rows(last, entry.rows, keyed=self.keyed))

    def _check_batches(self, entry: Entry, shard: UUID) -> None:
        index = 0
        while index < len(entry.rows):
            row = entry.rows[index]
            batch = (row[1], row[2])
            put = self.puts.get(batch)
            if put is None:
                raise Violation("O", f"batch {batch} was never put, but is in the log")
            if entry.rows[index : index + len(put.rows)] != put.rows:
                raise Violation("A", f"batch {batch} is not whole at position {entry.position}")
            if batch in self.seen:
                raise Violation(
                    "O",
                    f"batch {batch} is at positions {self.seen[batch]} and {entry.position}",
                )
            if put.refused:
                raise Violation("A", f"batch {batch} was refused, and is in the log all the same")
            self.seen[batch] = entry.position
            self.where[batch] = shard
            index += len(put.rows)

    def _on_manifest(self, actor: Actor, shard: UUID, version: int, data: bytes, path: str) -> None:
        truth = self.truth(shard)
        manifest = decode_manifest(data, path=path)
        if version in truth.manifests:
            self.counts["manifest written again after collection"] += 1
            return
        before = truth.manifests.get(version - 1)
        truth.manifests[version] = manifest
        truth.sealed = truth.sealed or manifest.status is Status.SEALED
        truth.last_version = max(truth.last_version, version)
        if before is None:
            if version != 1:
                raise Violation("L", f"manifest {version} without the one before it")
            self.claims[actor.name, shard] = manifest.writer_epoch
            return
        if manifest.writer_epoch < before.writer_epoch:
            raise Violation("S", f"manifest {version} lowers the epoch to {manifest.writer_epoch}")
        held = self.rollback.get(actor.name)
        if manifest.writer_epoch > before.writer_epoch:
            self.claims[actor.name, shard] = manifest.writer_epoch
            if held is not None and held.is_running and not held.done:
                held.epoch = manifest.writer_epoch
        elif held is not None and held.epoch == manifest.writer_epoch and not held.done:
            # A restore sets R to its own fence. A fold that it first finishes for another process
            # ends below that; a checkpoint that closes the gap after a failed restore leaves the
            # SSTables as they are.
            last = truth.log.get(manifest.replay_after)
            restores = held.is_running or manifest.sstables != before.sstables
            if last is not None and last.epoch == held.epoch and restores:
                self._on_rollback(held, truth, manifest)
        if 0 < manifest.log_place < before.log_place:
            raise Violation("S", f"manifest {version} names an earlier place of the log (S-3)")
        if manifest.log_place not in {0, truth.place}:
            self._on_move(truth, manifest)
        self._check_move(actor, truth, manifest, before)

    def _on_rollback(self, held: Rollback, truth: ShardTruth, manifest: ShardManifest) -> None:
        """The one manifest of a restore: from its R on, the log starts from the checkpoint."""
        held.done = True
        truth.tag = manifest.current_generation  # the tags of discarded entries bind no writer
        truth.undone[manifest.replay_after] = truth.state(manifest.replay_after)
        del truth.folded[manifest.replay_after - 1 :]
        truth.folded.append(held.state)
        self.scheduler.note("judge", f"rolled back at {manifest.replay_after}")

    def forget_claims(self, actor: Actor) -> None:
        """The actor changes its role: from now on it publishes in epochs it did not claim."""
        self.claims = {at: epoch for at, epoch in self.claims.items() if at[0] != actor.name}

    def _check_move(
        self, actor: Actor, truth: ShardTruth, manifest: ShardManifest, before: ShardManifest
    ) -> None:
        if manifest.replay_after < before.replay_after:
            raise Violation("L", f"R falls to {manifest.replay_after} (F-3)")
        added = {s.path for s in manifest.sstables} - {s.path for s in before.sstables}
        # A process that never claimed (a compactor of logs) writes in the epoch it found; a
        # resharder seals first, then compacts.
        claimed = self.claims.get((actor.name, truth.shard), manifest.writer_epoch)
        compacts = actor.name.startswith("resharder")
        if added and not compacts and claimed < manifest.writer_epoch:
            raise Violation(
                "S",
                f"{actor.name} of epoch {claimed} publishes {sorted(added)} in epoch "
                f"{manifest.writer_epoch}",
            )
        if manifest.replay_after > truth.tip:
            raise Violation("L", f"R={manifest.replay_after} is above the tip {truth.tip} (W-1)")
        for table in manifest.sstables:
            if table.path in added:
                folder = paths.sstable_dir(truth.shard, table.path)
                if f"{folder}/data.arrow" not in self.shelf.blobs:
                    raise Violation("C", f"{table.path} is published, and not there (M-4)")

    # -- the clients' side -----------------------------------------------------------------------

    def putting(self, batch: BatchId, rows: list[Row]) -> Put:
        """A client is about to put; a batch that is retried stays the same batch."""
        return self.puts.setdefault(batch, Put(batch, rows))

    def opened(self, shard: UUID, epoch: int) -> None:
        """An `open` returned."""
        truth = self.truth(shard)
        truth.opened_epoch = max(truth.opened_epoch, epoch)

    def acked(self, shard: UUID, put: Put, position: int | None) -> None:
        """A client was told that its batch is durable at `position`."""
        self.counts["acks"] += 1
        truth = self.truth(shard)
        entry = truth.log.get(position or 0)
        if entry is None or self.seen.get(put.id) != position:
            raise Violation("D", f"batch {put.id} was acknowledged at {position}, and is not there")
        put.acked_at = position
        truth.acked = max(truth.acked, position or 0)

    def is_taken_back(self, error: BaseException) -> bool:
        """True when weir refuses a base that a Lance user restored to before a fold (L-8)."""
        restored = self.counts["restores by strangers"] > 0
        return restored and isinstance(error, CorruptEntry) and "restored an older" in str(error)

    def failed(self, shard: UUID, error: BaseException, put: Put | None, epoch: int) -> None:
        """A client was told that a call failed."""
        self.counts[type(error).__name__] += 1
        if isinstance(error, TimeoutError):
            return
        if not isinstance(error, WeirError):
            raise Violation("T", f"{type(error).__name__}: {error} is no error of weir") from error
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, RuleBroken | CorruptEntry | MissingEntry) or (
                isinstance(cause, WeirError) and cause.kind == "internal"
            ):
                if self.shelf.world.confused and isinstance(cause, MissingEntry):
                    return  # S-7: this process does not see the log
                if self.is_taken_back(cause):
                    return
                raise Violation(
                    "T", f"{type(cause).__name__} on a healthy table: {cause}"
                ) from error
            told = put is not None and not isinstance(error, UnknownOutcome)
            if (
                put is not None
                and told
                and isinstance(cause, CommitConflict)
                and put.id in self.seen
            ):
                raise Violation("T", f"a conflict was told for {put.id}, which is in") from error
            cause = cause.__cause__
        truth = self.truth(shard)
        newest = max((m.writer_epoch for m in truth.manifests.values()), default=0)
        if isinstance(error, FencedError) and epoch and newest <= epoch:
            raise Violation("T", f"fenced at epoch {epoch}, and nobody newer ({newest})") from error
        if put is not None and isinstance(error, Backpressure | InvalidInput):
            put.refused = True
            if put.id in self.seen:
                raise Violation("A", f"batch {put.id} was refused, and is in the log all the same")
        if put is not None and put.acked_at is not None:
            raise Violation("T", f"batch {put.id} was acknowledged, and then taken back: {error}")

    @property
    def base_version(self) -> int:
        """The latest version of the base, where it is watched."""
        return 0 if self.base is None else self.base.latest

    def viewed(
        self,
        shard: UUID,
        rows: list[Row],
        *,
        low: int,
        high: int,
        base: tuple[int, int] | None = None,
    ) -> tuple[int, int]:
        """A read that began when `low` was acknowledged and ended when the tip was `high`.

        `base`: the first and the last version of the base it may show; None: the latest.
        Returns the lowest and the highest position the view may stand for; raises when there is
        none.
        """
        self.counts["views"] += 1
        truth = self.truth(shard)
        found = index_rows(rows, keyed=self.keyed)
        versions = base or (self.base_version, self.base_version)
        fits = [p for p in range(low, high + 1) if self._fits(truth, p, found, versions)]
        if not fits:
            raise Violation("R", self._explain(truth, found, low, high))
        return fits[0], fits[-1]

    def _fits(
        self, truth: ShardTruth, position: int, found: State, versions: tuple[int, int]
    ) -> bool:
        if self.base is None or not self.base.effects:
            return truth.state(position) == found
        return self.base.fits(truth, position, found, *versions)

    def _explain(self, truth: ShardTruth, found: State, low: int, high: int) -> str:
        want = truth.state(low)
        lines = [f"no prefix of the log in [{low}, {high}] gives this view; compared with {low}:"]
        lines += [
            f"  key {key}: log {want.get(key)}, view {found.get(key)}"
            for key in sorted(want.keys() | found.keys())
            if want.get(key) != found.get(key)
        ]
        return "\n".join(lines[:8])

    def finish(self) -> None:
        """At the end: every acknowledged batch is where it was acknowledged."""
        for put in self.puts.values():
            if put.acked_at is not None and self.seen.get(put.id) != put.acked_at:
                raise Violation("D", f"batch {put.id} is not at {put.acked_at} any more")
