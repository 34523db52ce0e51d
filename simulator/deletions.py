"""C: the judge's check of every deletion, made before the object goes: is it reachable?"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from simulator.scheduler import Actor
from simulator.truth import ShardTruth, Violation
from weir.format import paths
from weir.format.manifest import ShardManifest

if TYPE_CHECKING:
    from simulator.oracles import Judge


def split_uri(uri: str) -> tuple[str, str]:
    """The store of an object, or the folder of a log in one, and its path there."""
    scheme, lead, rest = uri.rpartition("://")
    rest = rest if lead else uri[1:]
    store, _, path = rest.partition("/")
    root = f"{scheme}{lead}{store}" if lead else f"/{store}"
    folder, _, below = path.partition("/")
    return (f"{root}/{folder}", below) if paths.is_log_folder(folder) else (root, path)


def check_delete(judge: Judge, actor: Actor, uri: str) -> None:
    """Raise when something still needs the object."""
    root, path = split_uri(uri)
    parts = path.split("/")
    if len(parts) < 4 or parts[0] != paths.SHARDS or UUID(parts[1]) not in judge.shards:
        return
    truth = judge.truth(UUID(parts[1]))
    latest = truth.manifests.get(truth.last_version)
    if latest is None:
        return
    if parts[2] == "wal" and len(parts) == 4:
        position = paths.parse_wal_name(parts[3])
        if position is not None and root == truth.place_of(position):
            _check_entry(judge, truth, latest, position)
    elif root != judge.shelf.uri:
        return  # an object of a clone
    elif parts[2] == "manifest" and len(parts) == 4:
        _check_manifest(judge, truth, parts[3])
    else:
        _check_sstable(judge, truth, latest, parts[2], actor)


def _check_entry(judge: Judge, truth: ShardTruth, latest: ShardManifest, position: int) -> None:
    if position >= latest.replay_after:
        raise Violation("C", f"entry {position} deleted, R is {latest.replay_after} (G-1, G-9)")
    if position > _floor(judge, truth, "wal"):
        raise Violation("C", f"entry {position} deleted above the floor (G-7c)")
    for shard, version, through in judge.pins.values():
        pinned = truth.manifests.get(version)
        if shard == truth.shard and pinned and pinned.replay_after < position <= through:
            raise Violation("C", f"entry {position} deleted although a checkpoint holds it")


def _check_manifest(judge: Judge, truth: ShardTruth, name: str) -> None:
    version = paths.parse_manifest_name(name)
    if version is None:
        return
    if version == truth.last_version:
        raise Violation("C", f"the latest manifest {version} deleted (G-9)")
    if version > _floor(judge, truth, "manifest"):
        raise Violation("C", f"manifest {version} deleted above the floor (G-6)")
    if any(s == truth.shard and v == version for s, v, _ in judge.pins.values()):
        raise Violation("C", f"manifest {version} deleted although a checkpoint holds it")


def _check_sstable(
    judge: Judge, truth: ShardTruth, latest: ShardManifest, name: str, actor: Actor
) -> None:
    holders = [
        latest,
        *(truth.manifests[v] for s, v, _ in judge.pins.values() if s == truth.shard),
    ]
    if any(name == table.path for manifest in holders for table in manifest.sstables):
        raise Violation("C", f"SSTable {name} deleted while a manifest names it (G-1)")
    parsed = paths.parse_sstable_name(name)
    if parsed and parsed[1] >= latest.current_generation:
        raise Violation("C", f"{actor.name} deleted {name}, which may yet be published (G-4)")


def _floor(judge: Judge, truth: ShardTruth, kind: str) -> int:
    folder = f"{paths.floors_dir(truth.shard)}/{kind}"
    numbers = [paths.parse_mark_name(n.rpartition("/")[2]) for n in judge.shelf.names(folder)]
    return max((n for n in numbers if n is not None), default=0)
