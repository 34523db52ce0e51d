"""A consistent cut of the table.

Keeps
  L-1  shard manifests first, WAL tails next, the base last: what moves, moves towards what is read
       later
  L-2  sealed shards are older than their heirs
  K-7  a reader at a checkpoint sees nothing past its T
A snapshot is a few numbers per shard and travels as JSON; whoever opens it reads the same rows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, get_args
from uuid import UUID

from weir.errors import InvalidInput, MissingEntry, SnapshotExpired
from weir.format import paths
from weir.format.manifest import ShardManifest, Status
from weir.read.glance import Choice, glance
from weir.routing.core import Core
from weir.types import Version

Freshness = Literal["base", "flushed", "durable"]

STILL_ATTEMPTS: Final = 16
"""How often a cut is taken anew because the base moved; a compaction commits up to six times."""


class ShardPin(Protocol):
    """What a checkpoint says of one shard."""

    @property
    def shard(self) -> UUID:
        """The shard."""

    @property
    def manifest_version(self) -> int:
        """The pinned manifest."""

    @property
    def wal_through(self) -> int:
        """T: the last position that belongs to the checkpoint."""


class Pinned(Protocol):
    """A checkpoint as a reader needs it: `weir.Checkpoint` is one."""

    @property
    def base_version(self) -> int:
        """The pinned version of the base."""

    @property
    def shards(self) -> Sequence[ShardPin]:
        """The pinned shards."""


@dataclass(frozen=True, slots=True)
class Cut:
    """One shard in a snapshot: SSTables by number and name, and log entries `(after, through]`."""

    shard: UUID
    manifest_version: int
    after: int
    through: int
    generation: int
    """The manifest's current generation: entries below it are in SSTables."""
    sstables: tuple[tuple[int, str], ...]
    sealed: bool = False

    def __post_init__(self) -> None:
        assert self.after <= self.through, "K-7: a tail ends where it begins or later"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one read sees. Immutable; valid until collection passes it."""

    base_version: int
    freshness: Freshness
    cuts: tuple[Cut, ...]

    def to_json(self) -> str:
        """As text, for another process."""
        return json.dumps(
            {
                "base_version": self.base_version,
                "freshness": self.freshness,
                "cuts": [
                    [
                        str(c.shard),
                        c.manifest_version,
                        c.after,
                        c.through,
                        c.generation,
                        [list(s) for s in c.sstables],
                        c.sealed,
                    ]
                    for c in self.cuts
                ],
            },
            separators=(",", ":"),
        )

    @staticmethod
    def from_json(text: str) -> Snapshot:
        """Back from text; `InvalidInput` for anything else."""
        try:
            raw = json.loads(text)
            return Snapshot(
                base_version=int(raw["base_version"]),
                freshness=check_freshness(raw["freshness"]),
                cuts=tuple(_cut_from(fields) for fields in raw["cuts"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidInput(f"not a snapshot: {error!r}") from error


def _cut_from(fields: Sequence[Any]) -> Cut:
    shard, version, after, through, generation, sstables, sealed = fields
    if int(after) > int(through):
        raise ValueError(f"a tail that ends at {through}, before it begins after {after}")
    return Cut(
        UUID(shard),
        int(version),
        int(after),
        int(through),
        int(generation),
        tuple((int(number), paths.sstable_folder(name)) for number, name in sstables),
        bool(sealed),
    )


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
    """A cut of the table as it is now, of those shards only that `choose` picks of all.

    A handle that looked before asks for three objects of each shard in one round, then for two
    listings and one of each shard in a second (`weir.read.glance`). Otherwise, and when more
    than new entries is found: one listing of the shards; for each shard, concurrently, two requests
    for the manifest and seven for the tip; one listing for the base, and one more by the first
    read. That cut is taken anew when the base moved meanwhile.
    """
    check_freshness(freshness)
    if freshness != "durable":
        cuts = [] if freshness == "base" else _cuts(core, choose(core.shard_ids()), tail=False)
        return Snapshot(core.lake.open_base().version, freshness, _ordered(cuts))
    seen = glance(core, choose)
    if seen is not None:
        cuts = [_cut_of(one.manifest, one.tip) for one in seen[1]]
        return Snapshot(seen[0], freshness, _ordered(cuts))
    before = core.tails.base_version or core.lake.open_base().version
    for _ in range(STILL_ATTEMPTS):
        shards = core.shard_ids()
        cuts = _cuts(core, choose(shards), tail=True)
        # L-1: after every manifest and tail, so that what was folded meanwhile is in it.
        version = core.lake.open_base().version
        core.tails.shards, core.tails.base_version = shards, version
        # Rows flushed or folded since we looked would be read in the log and in the base, beside
        # others that were written after our cut (L-5). A base that stood still holds none of them.
        if version == before:
            return Snapshot(version, freshness, _ordered(cuts))
        before = version
    raise SnapshotExpired(
        f"{core.uri}: its base changed {STILL_ATTEMPTS} times while a read was planned; read again"
    )


def _cuts(core: Core, shards: Sequence[UUID], *, tail: bool) -> list[Cut]:
    found = core.env.threads.map(
        lambda shard: _cut(core, shard, tail=tail), list(shards), workers=core.workers
    )
    return [cut for cut in found if cut is not None]


def pinned_snapshot(core: Core, pinned: Pinned, freshness: Freshness = "durable") -> Snapshot:
    """The cut a checkpoint pins. One get for each shard's manifest; a listing where it needs the
    log."""
    check_freshness(freshness)

    def load(pin: ShardPin) -> Cut:
        site = core.beside(pin.shard)
        manifest = core.tails.manifests(site).load(Version(pin.manifest_version))
        if manifest is None:
            raise MissingEntry(
                f"{site}: manifest {pin.manifest_version}, pinned by a checkpoint, is gone; the"
                " checkpoint expired or was deleted"
            )
        through = pin.wal_through if freshness == "durable" else manifest.replay_after
        if through > manifest.replay_after:
            # The log may have been moved since this handle last looked (S-3).
            core.site(pin.shard, core.tails.manifests(site).floors.load())
        return _cut_of(manifest, max(through, manifest.replay_after))

    pins = [] if freshness == "base" else list(pinned.shards)
    cuts = core.env.threads.map(load, pins, workers=16)
    return Snapshot(pinned.base_version, freshness, _ordered(cuts))


def _ordered(cuts: list[Cut]) -> tuple[Cut, ...]:
    """Shards that still take writes first: a sealed shard's rows are older than its heirs'."""
    return tuple(sorted(cuts, key=lambda cut: cut.sealed))


def _cut(core: Core, shard: UUID, *, tail: bool) -> Cut | None:
    manifest, floors = core.tails.latest(core.beside(shard))
    if manifest is None:
        return None  # a folder without a manifest: a shard somebody is just making
    through = core.log_of(manifest, floors)[1] if tail else manifest.replay_after
    return _cut_of(manifest, max(through, manifest.replay_after))


def _cut_of(manifest: ShardManifest, through: int) -> Cut:
    return Cut(
        manifest.shard_id,
        manifest.version,
        manifest.replay_after,
        through,
        manifest.current_generation,
        tuple((s.generation, s.path) for s in manifest.sstables),
        manifest.status is Status.SEALED,
    )
