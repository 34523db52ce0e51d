"""Copies what a clone owns, store to store: log entries, SSTables, the base of a deep clone.

Keeps
  C-7  a copied entry is of an epoch the pinned manifest knows
  C-8  after the first entry found, a missing one is an error
  C-9  a missing prefix is skipped only if it provably holds no rows, or on request
  C-10 the source is read, the destination written with put-if-absent, bytes compared on collision
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from weir.env import Env
from weir.errors import CorruptEntry, InvalidInput, MissingEntry
from weir.format import paths
from weir.format.lance_file import version_name
from weir.format.wal_entry import decode_entry
from weir.lake.manifest.shared_files import borrowed_places, named_files
from weir.log.site import ShardSite
from weir.records.checkpoints import Scope
from weir.records.cut import ShardCut
from weir.records.lineage import KEEP_WITHOUT_PARENT
from weir.routing.core import Core
from weir.store.api import Meta, ObjectExists, Store, is_local
from weir.store.bounded import get_some
from weir.store.open import open_store
from weir.types import Position, Version
from weir.upkeep.tasks import LOCAL, Result, Run, Runner, Task

WORKERS: Final = 8
CHUNK: Final = 64
LARGE_BYTES: Final = 16 << 20
"""Objects of this size or more are copied one by one, in parts, to bound the memory used."""
_ALONE_BYTES: Final = 16 << 20
"""Up to this many bytes are copied by one thread between local folders: a small file is copied
faster than handed to another thread."""
PART_BYTES: Final = 16 << 20

Copy = Callable[[Sequence[Meta]], int]
"""Copies objects and returns the number of bytes."""

BASE_FOLDERS: Final = ("data", "_deletions", "_indices")


@dataclass(frozen=True)
class CopiedLog:
    """The copied part of a log."""

    start: Position
    """R', the last position not needed."""
    bytes: int = 0
    tokens: Mapping[str, int] = field(default_factory=dict)
    """The highest exactly-once batch of each application in it."""


def copy_wal(
    source: ShardSite,
    target: Store,
    pin: ShardCut,
    scope: Scope,
    *,
    accept_loss: bool,
    shift: int = 0,
) -> CopiedLog:
    """Copy the entries `(R, T]`, each to its own position plus `shift`."""
    tokens: dict[str, int] = {}
    there = _positions(source, pin)
    start = Position(there[0] - 1) if there else pin.wal_through
    if start > pin.replay_after and scope != "all" and not accept_loss:  # guard: C-9
        raise lost_prefix(pin, start, source.wal.uri)
    copied = 0
    wanted = range(start + 1, start + len(there) + 1)
    gap = next((p for p, found in zip(wanted, there, strict=True) if p != found), wanted.stop)
    if gap <= pin.wal_through:  # guard: C-8
        raise _hole(source, pin, Position(gap))
    for position, data in _entries(source, there):
        if data is None:
            raise _hole(source, pin, position)
        path = paths.wal_path(source.shard, position)
        entry = decode_entry(data, position=position, path=f"{source.wal.uri}/{path}")
        if entry.epoch > pin.epoch:  # guard: C-7
            raise CorruptEntry(
                f"{source}: the entry at position {position} has epoch {entry.epoch}, but the"
                f" checkpoint pinned epoch {pin.epoch}: the position was reused after the"
                f" checkpoint. Inspect {source.wal.uri}/{path}"
            )
        _put(target, paths.wal_path(source.shard, Position(position + shift)), data)
        copied += len(data)
        for app, number in entry.tokens:
            tokens[app] = max(number, tokens.get(app, number))
    return CopiedLog(start, copied, tokens)


def lost_prefix(pin: ShardCut, last: Position, where: str) -> MissingEntry:
    """C-9: entries that hold rows of the checkpoint are gone."""
    return MissingEntry(
        f"shard {pin.shard}: entries {pin.replay_after + 1} to {last} of its log are gone from"
        f" {where}, and the checkpoint (scope 'durable') needs them: acknowledged rows are lost."
        " Bring the WAL store back, or clone with accept_loss=True"
    )


def _positions(source: ShardSite, pin: ShardCut) -> list[Position]:
    """The entries of the checkpoint that are there, ascending. Only what is listed is asked for: a
    mark that another program left may say that the log is of any length (G-13)."""
    listed = source.wal.list(paths.wal_dir(source.shard))
    found = (paths.parse_wal_name(meta.path.rpartition("/")[2]) for meta in listed)
    return sorted(p for p in found if p is not None and pin.replay_after < p <= pin.wal_through)


def _entries(
    source: ShardSite, wanted: Sequence[Position]
) -> Iterator[tuple[Position, bytes | None]]:
    first = 0
    while some := wanted[first : first + CHUNK]:
        where = [paths.wal_path(source.shard, p) for p in some]
        found = get_some(source.wal, where, source.env.limits.read_bytes)
        yield from zip(some, found, strict=False)
        first += len(found)


def _hole(source: ShardSite, pin: ShardCut, position: Position) -> MissingEntry:
    return MissingEntry(
        f"{source}: the log has a hole at position {position}, inside the range"
        f" {pin.replay_after + 1} to {pin.wal_through} of the checkpoint;"
        f" {paths.wal_path(source.shard, position)} is gone. Restore that object"
    )


def copy_sstables(source: Store, target: Store, shard: UUID, names: Sequence[str], env: Env) -> int:
    """Copy whole SSTable folders; returns the bytes."""
    objects = [meta for name in names for meta in source.list(paths.sstable_dir(shard, name))]
    return _copy(source, target, objects, env)


def copy_folder(source: Store, target: Store, folder: str, env: Env) -> int:
    """Copy every object of a folder; returns the bytes."""
    return _copy(source, target, list(source.list(folder)), env)


def require_own_files(source: Store, version: int) -> None:
    """Raise `InvalidInput` when that version of the base shares files with another table."""
    shared = borrowed_places(source, version)
    if shared:
        raise InvalidInput(
            f"{source.uri} is itself a clone that shares files with {sorted(shared)}; a deep clone"
            f" copies files of one table only. Nothing was done. {KEEP_WITHOUT_PARENT}"
        )


def copy_base(
    source: Store, target: Store, version: int, env: Env, copy: Copy | None = None
) -> int:
    """Copy the base at that version with its files, by `copy` if given; returns the bytes."""
    is_named = named_files(source, Version(version))
    listed = (meta for folder in BASE_FOLDERS for meta in source.list(folder))
    objects = [meta for meta in listed if is_named(meta.path)]
    copied = _copy(source, target, objects, env) if copy is None else copy(objects)
    # Last: without its manifest the files are not a dataset.
    path = paths.base_version_path(version_name(Version(version)))
    data = source.get(path).data
    _put(target, path, data)
    return copied + len(data)


def copy_by(core: Core, target: Store, runner: Runner) -> Copy | None:
    """A `Copy` by the tasks of an engine, which use the table's storage options; None: locally."""
    if runner.name == LOCAL.name:
        return None

    def copy(objects: Sequence[Meta]) -> int:
        results = runner.run(core, _copy_tasks(objects, target, runner.slots), None)
        return sum(int(result["bytes"]) for result in results)

    return copy


def _copy_tasks(objects: Sequence[Meta], target: Store, slots: int) -> list[Task]:
    """Tasks of about the same size; the largest files are assigned first."""
    shares: list[list[tuple[str, int]]] = [[] for _ in range(max(1, min(slots * 2, len(objects))))]
    sizes = [0] * len(shares)
    for meta in sorted(objects, key=lambda meta: -meta.size):
        least = sizes.index(min(sizes))
        shares[least].append((meta.path, meta.size))
        sizes[least] += meta.size
    return [
        {"run": "copying.copy_objects", "to": target.uri, "objects": share}
        for share in shares
        if share
    ]


def copy_objects(core: Core, task: Task) -> Result:
    """Copy some files of the base to another store; a second run finds them there (C-10)."""
    target = open_store(str(task["to"]), dict(core.storage_options), env=core.env)
    objects = [Meta(path, size, 0.0) for path, size in task["objects"]]
    return {"bytes": _copy(core.store, target, objects, core.env)}


def _copy(source: Store, target: Store, objects: Sequence[Meta], env: Env) -> int:
    def one(meta: Meta) -> int:
        data = source.get(meta.path).data
        _put(target, meta.path, data)
        return len(data)

    def in_parts(meta: Meta) -> int:
        _put_large(source, target, meta)
        return meta.size

    small = [meta for meta in objects if meta.size < LARGE_BYTES]
    large = [meta for meta in objects if meta.size >= LARGE_BYTES]
    is_quick = is_local(source) and is_local(target)
    workers = 1 if is_quick and sum(meta.size for meta in small) <= _ALONE_BYTES else WORKERS
    return sum(env.threads.map(one, small, workers=workers)) + sum(map(in_parts, large))


def _put(target: Store, path: str, data: bytes) -> None:
    try:
        target.put_if_absent(path, data)
    except ObjectExists:
        if target.get(path).data != data:  # guard: C-10
            raise _other_bytes(target, path) from None


def _put_large(source: Store, target: Store, meta: Meta) -> None:
    """The same in parts: a file of the base may have 8 GiB, and S3 takes 5 in one put.

    No store offers put-if-absent in parts. The names of these files are random and their bytes
    never change, so a concurrent copy writes the same bytes.
    """
    there = target.head(meta.path)
    if there is None:
        target.put_parts(meta.path, lambda: _parts(source, meta))
        return
    pairs = zip(_parts(source, meta), _parts(target, meta), strict=True)
    if there.size != meta.size or any(ours != theirs for ours, theirs in pairs):
        raise _other_bytes(target, meta.path)


def _parts(store: Store, meta: Meta) -> Iterator[bytes]:
    for start in range(0, meta.size, PART_BYTES):
        yield store.get_range(meta.path, start, min(PART_BYTES, meta.size - start))


def _other_bytes(target: Store, path: str) -> CorruptEntry:
    return CorruptEntry(
        f"{target.uri}/{path} exists with other content than this clone needs: another clone left"
        " it there. Clone to an empty place"
    )


TASKS: Final[dict[str, Run]] = {"copy_objects": copy_objects}
