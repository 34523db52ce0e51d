"""A consistent cut of the table.

Keeps
  L-1  shard manifests first, WAL tails next, the base last: rows only ever move towards a place
       that is read later
  L-2  sealed shards are older than their heirs
  C-11 rows of a new routing are seen with all of the old one: the table's record did not change
       while the shards were read, so no heir was written before its predecessors were read
  K-7  a reader at a checkpoint sees nothing past its T
A snapshot is a few numbers per shard and is sent as JSON; every process that opens it reads
the same rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, get_args
from uuid import UUID

from weir.errors import InvalidInput, MissingEntry, SnapshotExpired
from weir.read.fast_snapshot import Choice, fast_snapshot
from weir.records import codec
from weir.records.cut import ShardCut, dump_cut, load_cut
from weir.records.table import TableRecords
from weir.routing.core import Core
from weir.routing.guard import find_rivals
from weir.types import Position, Version

Freshness = Literal["base", "flushed", "durable"]

STILL_ATTEMPTS: Final = 16
"""Attempts to take a cut while the base moves; a compaction commits up to six times."""


class Pinned(Protocol):
    """A checkpoint as a reader needs it: `weir.Checkpoint` is one."""

    @property
    def base_version(self) -> int:
        """The pinned version of the base."""

    @property
    def shards(self) -> Sequence[ShardCut]:
        """The pinned shards."""

    @property
    def created(self) -> float:
        """Creation time in seconds since 1970; rows that had expired by then are hidden."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one read sees. Immutable; valid until collection passes it."""

    base_version: int
    freshness: Freshness
    cuts: tuple[ShardCut, ...]
    at: float = field(default=0.0, compare=False)
    """The time at which expiry is judged, in seconds since 1970: the same for every part of a read,
    in any process."""
    is_pinned: bool = field(default=False, compare=False)
    """A checkpoint holds its objects. Otherwise entries may be collected while the snapshot is
    read, and a writer that slept may put new ones at their positions (G-7b)."""

    def to_json(self) -> str:
        """The snapshot as JSON text, for another process."""
        cuts = [{"shard": str(cut.shard), **dump_cut(cut)} for cut in self.cuts]
        record: dict[str, object] = {
            "base_version": self.base_version,
            "freshness": self.freshness,
            "cuts": cuts,
            "at": self.at,
        }
        if self.is_pinned:
            record["pinned"] = True
        return codec.dumps(record).decode()

    @staticmethod
    def from_json(text: str) -> Snapshot:
        """Parse the text made by `to_json`; `InvalidInput` for anything else."""
        try:
            raw = json.loads(text)
            return Snapshot(
                base_version=int(raw["base_version"]),
                freshness=check_freshness(raw["freshness"]),
                cuts=tuple(_cut_from(fields) for fields in raw["cuts"]),
                at=float(raw.get("at", 0.0)),  # written by 0.1.0, which had no expiry
                is_pinned=raw.get("pinned") is True,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidInput(f"not a snapshot: {error!r}") from error


def _cut_from(raw: Mapping[str, Any] | Sequence[Any]) -> ShardCut:
    if isinstance(raw, Mapping):
        return load_cut(UUID(raw["shard"]), raw)
    # The form of 0.1.0: jobs that it left unfinished hold such snapshots.
    shard, version, after, through, generation, sstables, sealed = raw
    fields = {
        "version": version,
        "epoch": 0,
        "replay_after": after,
        "wal_through": through,
        "current_generation": generation,
        "shard_spec_id": 0,
        "sealed": sealed,
        "field_entries": (),
        "sstables": [(number, name, None, None, None) for number, name in sstables],
    }
    return load_cut(UUID(shard), fields)


def check_freshness(freshness: Any) -> Freshness:
    """The level of freshness, or `InvalidInput`."""
    if freshness not in get_args(Freshness):
        raise InvalidInput(
            f"freshness must be one of {list(get_args(Freshness))}, got {freshness!r}"
        )
    level: Freshness = freshness
    return level


def take_snapshot(
    core: Core, freshness: Freshness = "durable", *, choose: Choice = list
) -> Snapshot:
    """A cut of the table as it is now, limited to the shards that `choose` picks.

    A handle that has read before requests three objects of each shard in one round, then two
    listings and one per shard in a second (`weir.read.fast_snapshot`). On its first read, or if
    more than new entries is found: one listing of the shards; for each shard, concurrently, two
    requests for the manifest and seven for the tip; one listing for the base, and a second one on
    the first read. With several shards, one more request checks that the table's record is still
    the latest. This cut is taken again if the base or the record moved while it was taken.
    """
    check_freshness(freshness)
    at = core.env.clock.wall()
    if freshness == "base":
        return Snapshot(core.lake.open_base().version, freshness, (), at)
    if freshness == "flushed":
        return _flushed(core, choose, at)
    seen = fast_snapshot(core, choose)
    if seen is not None:
        return Snapshot(seen[0], freshness, _ordered(core, seen[1]), at)
    before = core.tails.base_version or core.lake.open_base().version
    records, number = TableRecords(core.store), core.tails.record_number
    for _ in range(STILL_ATTEMPTS):
        number = records.last_number() if number is None else number
        shards = core.shard_ids()
        cuts = _cuts(core, choose(shards), tail=True)
        latest = records.last_number(number) if len(cuts) > 1 else number
        core.tails.record_number = latest
        # L-1: after every manifest and tail, so it includes rows folded while they were read.
        version = core.lake.open_base().version
        core.tails.shards, core.tails.base_version = shards, version
        # Rows flushed or folded since the cut would be read from the log and from the base, next
        # to others written after the cut (L-5). A base that did not move holds none of them.
        if version == before and latest == number:
            return Snapshot(version, freshness, _ordered(core, cuts), at)
        before, number = version, latest
    raise _restless(core)


def _flushed(core: Core, choose: Choice, at: float) -> Snapshot:
    """A cut without the logs. Retries if the table's record moves: otherwise rows of an heir could
    be seen without older rows of its predecessor (C-11)."""
    records = TableRecords(core.store)
    for _ in range(STILL_ATTEMPTS):
        shards = choose(core.shard_ids())
        number = records.last_number(core.tails.record_number) if len(shards) > 1 else None
        cuts = _cuts(core, shards, tail=False)
        version = core.lake.open_base().version  # L-1: after every manifest
        if number is None or records.last_number(number) == number:
            return Snapshot(version, "flushed", _ordered(core, cuts), at)
    raise _restless(core)


def _restless(core: Core) -> SnapshotExpired:
    return SnapshotExpired(
        f"{core.uri}: its base or its record changed {STILL_ATTEMPTS} times while a read was"
        " planned; read again"
    )


def _cuts(core: Core, shards: Sequence[UUID], *, tail: bool) -> list[ShardCut]:
    found = core.env.threads.map(
        lambda shard: _cut(core, shard, tail=tail), list(shards), workers=core.workers
    )
    return [cut for cut in found if cut is not None]


def pinned_snapshot(core: Core, pinned: Pinned, freshness: Freshness = "durable") -> Snapshot:
    """The cut that a checkpoint pins. One get for each shard's manifest, and a listing if the
    shard's log is needed."""
    check_freshness(freshness)

    def load(pin: ShardCut) -> ShardCut:
        log = core.log(pin.shard)
        manifest = log.manifests.load(Version(pin.manifest_version))
        if manifest is None:
            raise MissingEntry(
                f"{log}: manifest {pin.manifest_version}, pinned by a checkpoint, is gone; the"
                " checkpoint expired or was deleted"
            )
        through = pin.wal_through if freshness == "durable" else manifest.replay_after
        if through > manifest.replay_after:
            # The log may have been moved since this handle last read the floors (S-3).
            log.site(log.floors())
        return ShardCut.of(manifest, Position(max(through, manifest.replay_after)))

    pins = [] if freshness == "base" else list(pinned.shards)
    cuts = core.env.threads.map(load, pins, workers=16)
    ordered = _ordered(core, cuts)
    return Snapshot(pinned.base_version, freshness, ordered, pinned.created, is_pinned=True)


def _ordered(core: Core, cuts: list[ShardCut]) -> tuple[ShardCut, ...]:
    """Sort sealed shards last: the rows of a sealed shard are older than those of its heirs.

    A rival's rows come after those of the routing (X-3).
    """
    if not core.rivals and not any(cut.sealed for cut in cuts):
        return tuple(cuts)
    return tuple(sorted(cuts, key=lambda cut: (cut.sealed, cut.shard in core.rivals)))


def _cut(core: Core, shard: UUID, *, tail: bool) -> ShardCut | None:
    manifest, floors = core.log(shard).state()
    if manifest is None:
        return None  # a folder without a manifest: a shard being created
    find_rivals(core, [manifest])
    through = core.log_of(manifest, floors)[1] if tail else manifest.replay_after
    return ShardCut.of(manifest, Position(max(through, manifest.replay_after)))
