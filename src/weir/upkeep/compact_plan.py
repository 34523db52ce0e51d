"""What a compaction folds, and how the work is cut into tasks.

Keeps
  L-4  every generation of a shard that is not in the base, ascending, none left out in between
  K-6  shard manifests first, the base last
  C-11 a sealed shard's rows are older than its heirs': they are folded together or before
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal
from uuid import UUID

from weir.format.keys import pk_type
from weir.format.manifest import ShardManifest, Status
from weir.lake import fold
from weir.lake.base import LanceBase
from weir.lake.slots import is_whole
from weir.log.site import ShardSite
from weir.table.core import CONCURRENCY, Core
from weir.table.snapshot import Cut, Snapshot
from weir.upkeep.compact_jobs import Job, WalFold
from weir.upkeep.compact_wal import last_generation
from weir.upkeep.tasks import Task

SLICE_ROWS: Final = 4_000_000
"""Keys one task holds at most: some 200 MB for whole numbers, whatever the rows weigh."""
WHOLE_BYTES: Final = 128 << 20
"""Input up to so many bytes is folded in memory on the local engine."""
STREAMED_ROWS: Final = 64_000_000
STREAMED_TEXTS: Final = 8_000_000
"""Larger input with up to so many keys, numbers or others, is streamed in one piece there.

Pieces read what they share again and again: 28 million rows into 4 million took 40 s in slices of
4 million and 6 s in one piece, on two processors."""
TASK_BYTES: Final = 256 << 20
"""What a task that writes rows aims to read."""
FRAGMENT_ROWS: Final = 4_000_000
"""Base rows whose keys one task that looks for replaced rows reads."""
_ENTRY_ROWS: Final = 1000
"""A guess at the rows of a log entry, for cutting work only."""
_ROW_BYTES: Final = 100


@dataclass(frozen=True)
class Waiting:
    """One shard's share of what waits to be folded."""

    manifest: ShardManifest
    cut: Cut
    rows: int
    nbytes: int
    wal: WalFold | None = None

    @property
    def is_empty(self) -> bool:
        """True when there is nothing to fold."""
        return not self.cut.sstables and self.wal is None


def find_waiting(core: Core, *, fold_wal: bool) -> tuple[LanceBase, list[Waiting]]:
    """Everything not yet in the base, shard by shard, and the base it is not in.

    Two requests a shard when nothing changed, two more where the log is folded; one listing.
    """

    def look(shard: UUID) -> ShardManifest | None:
        # S-5: the log is looked at only where it is folded.
        return core.tails.manifests(core.beside(shard)).latest()

    manifests = core.env.threads.map(look, core.shard_ids(), workers=CONCURRENCY)
    keyed = bool(core.record.primary_key)

    def tail(manifest: ShardManifest) -> WalFold | None:
        # A sealed shard has no writer: its log may be folded whatever the table's mode is.
        return _log_of(core, manifest) if fold_wal or _is_sealed(manifest) else None

    known = [manifest for manifest in manifests if manifest is not None]
    tails: list[WalFold | None] = [None] * len(known)
    if keyed:
        tails = core.env.threads.map(tail, known, workers=CONCURRENCY)
    # K-6: after the manifests, so that what was folded since is in it.
    base = core.lake.open_base()
    assert isinstance(base, LanceBase), "compaction works on Lance"
    waiting = [
        _waiting(manifest, wal, base.compacted.get(manifest.shard_id, 0))
        for manifest, wal in zip(known, tails, strict=True)
    ]
    return base, sorted((w for w in waiting if not w.is_empty), key=lambda w: w.cut.sealed)


def _is_sealed(manifest: ShardManifest) -> bool:
    return manifest.status is Status.SEALED


def _log_of(core: Core, manifest: ShardManifest) -> WalFold | None:
    site, through = log_of(core, manifest)
    if through <= manifest.replay_after:
        return None
    generation = last_generation(site, manifest, through)
    return WalFold(manifest.writer_epoch, manifest.replay_after, through, generation)


def log_of(core: Core, manifest: ShardManifest) -> tuple[ShardSite, int]:
    """Where that shard's log is now, and the last position used in it.

    The floors tell of a move: a handle that is kept for days must not fold what a fenced writer
    left in the store the log was in before (S-3).
    """
    floors = core.tails.manifests(core.beside(manifest.shard_id)).floors.load()
    site = core.site(manifest.shard_id, floors)
    return site, core.tails.tip(site, manifest, floors)


def _waiting(manifest: ShardManifest, wal: WalFold | None, folded: int) -> Waiting:
    fresh = [table for table in manifest.sstables if table.generation > folded]
    rows = sum(table.physical_rows or 0 for table in fresh)
    nbytes = sum(
        table.in_memory_bytes or (table.physical_rows or 0) * _ROW_BYTES for table in fresh
    )
    after = manifest.replay_after
    through = after if wal is None else wal.through
    entries = through - after
    return Waiting(
        manifest,
        Cut(
            manifest.shard_id,
            manifest.version,
            after,
            through,
            manifest.current_generation,
            tuple((table.generation, table.path) for table in fresh),
            _is_sealed(manifest),
        ),
        rows + entries * _ENTRY_ROWS,
        nbytes + entries * _ENTRY_ROWS * _ROW_BYTES,
        wal,
    )


def make_job(job_id: str, base: LanceBase, waiting: Sequence[Waiting]) -> Job:
    """The job that folds all of it."""
    snapshot = Snapshot(base.version, "durable", tuple(w.cut for w in waiting))
    return Job(
        job_id,
        base.version,
        snapshot,
        {w.cut.shard: w.wal for w in waiting if w.wal is not None},
    )


def make_tasks(
    job: Job,
    base: LanceBase,
    waiting: Sequence[Waiting],
    *,
    engine: Literal["local", "spark"],
    slots: int,
    cluster: bool,
) -> list[Task]:
    """The job cut into pieces that can run anywhere, in any order, any number of times."""
    rows = sum(w.rows for w in waiting)
    nbytes = sum(w.nbytes for w in waiting)
    common: Task = {"snapshot": job.snapshot.to_json(), "cluster": cluster}
    keyed = bool(base.schema.primary_key)
    if engine == "local" and keyed and rows <= _one_piece(base):
        run = "fold_whole" if nbytes <= WHOLE_BYTES else "fold_streamed"
        return [{**common, "run": f"compact_tasks.{run}"}]
    if not keyed:
        return [
            {**common, "run": "compact_tasks.write_rows", "snapshot": part.to_json()}
            for part in _parts(job.snapshot, waiting)
        ]
    writes = [
        {**common, "run": "compact_tasks.write_rows", "shards": shards, "slice": slice_}
        for shards, slice_ in _slices(waiting, slots, nbytes)
    ]
    if base.has_key_index and rows * fold.INDEX_PAYS_ROWS_PER_KEY < base.count():
        # So few keys that the index of the base finds their rows faster than any scan of shares.
        return [*writes, {**common, "run": "compact_tasks.hide_indexed"}]
    return writes + [
        {**common, "run": "compact_tasks.hide_rows", **share}
        for share in fragment_shares(base, rows, slots)
    ]


def _one_piece(base: LanceBase) -> int:
    """How many keys one task in process may hold."""
    dtype = pk_type(base.schema.key_schema, base.schema.primary_key)
    return STREAMED_ROWS if is_whole(dtype) else STREAMED_TEXTS


def _parts(snapshot: Snapshot, waiting: Sequence[Waiting]) -> list[Snapshot]:
    """An append-only table: any SSTables together, in pieces of bounded size."""
    parts: list[Snapshot] = []
    for one in waiting:
        sizes = {t.path: t.in_memory_bytes or 0 for t in one.manifest.sstables}
        group: list[tuple[int, str]] = []
        room = TASK_BYTES
        for number, name in one.cut.sstables:
            if group and sizes[name] > room:
                parts.append(_only(snapshot, one.cut, group))
                group, room = [], TASK_BYTES
            group.append((number, name))
            room -= sizes[name]
        if group:
            parts.append(_only(snapshot, one.cut, group))
    return parts


def _only(snapshot: Snapshot, cut: Cut, sstables: Sequence[tuple[int, str]]) -> Snapshot:
    return replace(snapshot, cuts=(replace(cut, sstables=tuple(sstables)),))


def _slices(
    waiting: Sequence[Waiting], slots: int, nbytes: int
) -> list[tuple[list[str], list[int]]]:
    """Shards grouped to a task's size, and shards too hot for one task cut by a hash of the key.

    A slice reads the keys of its whole group. Sealed shards go with all others: their heirs may
    hold newer rows of the same keys.
    """
    groups: list[list[Waiting]] = []
    if any(w.cut.sealed for w in waiting):
        groups = [list(waiting)]
    else:
        aim = max(1, min(TASK_BYTES, nbytes // max(1, slots)))
        for one in sorted(waiting, key=lambda w: -w.nbytes):
            fits = [g for g in groups if sum(w.nbytes for w in g) + one.nbytes <= aim]
            if fits:
                fits[0].append(one)
            else:
                groups.append([one])
    found = []
    for group in groups:
        rows, size = sum(w.rows for w in group), sum(w.nbytes for w in group)
        by_rows = -(-rows // SLICE_ROWS)
        by_bytes = min(max(1, slots // len(groups)), -(-size // TASK_BYTES))
        count = max(1, by_rows, by_bytes)
        names = [str(w.cut.shard) for w in group]
        found += [(names, [number, count]) for number in range(count)]
    return found


def fragment_shares(base: LanceBase, rows: int, slots: int) -> list[dict[str, Any]]:
    """The base's fragments in shares of about equal rows, and how often the keys are passed."""
    fragments = base.fragments()
    total = sum(count for _, count in fragments)
    aim = max(1, min(FRAGMENT_ROWS, total // max(1, slots)))
    shares: list[list[int]] = []
    room = 0
    for fragment, count in fragments:
        if not shares or room < count:
            shares.append([])
            room = aim
        shares[-1].append(fragment)
        room -= count
    passes = max(1, -(-rows // SLICE_ROWS))
    return [{"fragments": share, "passes": passes} for share in shares]
