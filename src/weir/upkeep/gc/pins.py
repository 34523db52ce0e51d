"""What checkpoints and consumers of the change feed hold, read from their records.

Keeps
  K-1b records are listed only after the floors were raised: whatever a checkpointer does at the
       same time, one of the two sees the other
  G-2  an expired chain is ended by an appended record first; losing that race means that it was
       refreshed and still holds
  G-11 while a record cannot be read, nothing may be deleted
A chain is alive when its first record exists and its highest is not a deletion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from weir.errors import CorruptEntry
from weir.format import paths
from weir.records import codec
from weir.records.cut import ShardCut, load_cut
from weir.records.lifetime import Lifetime, dump_end, load_lifetime
from weir.store.api import ObjectExists, Store

_CAS_ATTEMPTS: Final = 8


@dataclass
class ChainState:
    """One chain as found: its first and its newest record."""

    folder: str
    seqs: list[int]
    first: dict[str, Any] | None
    newest: dict[str, Any]
    times: dict[int, float]
    sizes: dict[int, int]

    @property
    def alive(self) -> bool:
        """True while it holds anything."""
        return self.first is not None and not self.ended

    @property
    def ended(self) -> bool:
        """True when its newest record is a deletion."""
        return self._lifetime.deleted

    def expired(self, now: float) -> bool:
        """True when its lifetime is over by the store's clock."""
        return self._lifetime.over(now)

    @property
    def _lifetime(self) -> Lifetime:
        try:
            return load_lifetime(self.newest)
        except ValueError as error:
            raise CorruptEntry(f"{self.folder}: not a usable record: {error}") from error


@dataclass
class Pins:
    """Everything held, by shard."""

    checkpoints: dict[UUID, list[ShardCut]] = field(default_factory=dict)
    unread: list[Mapping[str, Any]] = field(default_factory=list)
    """Positions of each living consumer."""

    def of(self, shard: UUID) -> list[ShardCut]:
        """The cuts of one shard that checkpoints hold."""
        return self.checkpoints.get(shard, [])

    def unread_from(self, shard: UUID) -> int | None:
        """The lowest position a consumer may still read; 0 if one has no position in the shard."""
        found = [int(positions.get(str(shard), 0)) for positions in self.unread]
        return min(found, default=None)


class Chains:
    """The chains of a table, as one collection reads them repeatedly.

    The first record of a checkpoint, which names every shard, never changes, and its id is never
    reused, so it is read and decoded once. Which chains are alive is checked every time.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._firsts: dict[str, dict[str, Any]] = {}

    def load(self, root: str) -> list[ChainState]:
        """Every chain below `root`, with its first and newest record.

        One listing and two gets per chain; one get where the first record is cached.
        """
        for _ in range(_CAS_ATTEMPTS):
            folders: dict[str, dict[int, tuple[float, int]]] = {}
            for meta in self.store.list(root):
                folder, _, name = meta.path.rpartition("/")
                seq = paths.parse_chain_name(name)
                if seq is not None:
                    folders.setdefault(folder, {})[seq] = (meta.last_modified, meta.size)
            found = [self._load(root, folder, seqs) for folder, seqs in sorted(folders.items())]
            complete = [chain for chain in found if chain is not None]
            if len(complete) == len(found):
                return complete
        raise CorruptEntry(
            f"{self.store.uri}/{root}: records were deleted during each of {_CAS_ATTEMPTS}"
            " listings; run again"
        )

    def _load(
        self, root: str, folder: str, seqs: Mapping[int, tuple[float, int]]
    ) -> ChainState | None:
        numbers = sorted(seqs)
        first, newest = (paths.chain_path(folder, seq) for seq in (numbers[0], numbers[-1]))
        known = self._firsts.get(first)
        wanted = [newest] if known else [newest, first]
        data = dict(zip(wanted, self.store.get_many(wanted), strict=True))
        if None in data.values():
            return None  # pruned or collected since the listing: list again
        records = {
            path: codec.loads(body, f"{self.store.uri}/{path}")
            for path, body in data.items()
            if body is not None
        }
        begun = (known or records[first]) if numbers[0] == 1 else None
        if begun is not None and root == paths.CHECKPOINTS:
            self._firsts[first] = begun
        return ChainState(
            folder=folder,
            seqs=numbers,
            first=begun,
            newest=records[newest],
            times={seq: time for seq, (time, _) in seqs.items()},
            sizes={seq: size for seq, (_, size) in seqs.items()},
        )


def load_chains(store: Store, root: str) -> list[ChainState]:
    """Every chain below `root`, read once."""
    return Chains(store).load(root)


def end_chain(store: Store, chain: ChainState) -> bool:
    """Append a deletion; False when a refresh was appended first, so the chain lives on (G-2)."""
    try:
        store.put_if_absent(
            paths.chain_path(chain.folder, chain.seqs[-1] + 1),
            codec.dumps(dump_end("expired")),
        )
    except ObjectExists:
        return False
    return True


def load_pins(chains: Chains, now: float, *, ignore_expired: bool = False) -> Pins:
    """All pins. `ignore_expired` is for a dry run, which may not end expired chains."""
    pins = Pins()
    for chain in chains.load(paths.CHECKPOINTS):
        if chain.alive and not (ignore_expired and chain.expired(now)):
            for cut in checkpoint_pins(chain):
                pins.checkpoints.setdefault(cut.shard, []).append(cut)
    for chain in chains.load(paths.CONSUMERS):
        # A consumer's first record may be pruned; the newest record is complete.
        if not chain.ended and not (ignore_expired and chain.expired(now)):
            pins.unread.append(_positions(chain))
    return pins


def checkpoint_pins(chain: ChainState) -> list[ShardCut]:
    """What the first record of a checkpoint names, shard by shard."""
    assert chain.first is not None, "K-1: asked what a dead checkpoint holds"
    if chain.newest.get("base_only") is True:
        return []  # a finished clone has its own copies; the base is held by a tag
    try:
        return [load_cut(UUID(shard), held) for shard, held in chain.first["shards"].items()]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptEntry(
            f"{chain.folder}: not a checkpoint record that this version of weir can read"
            f" ({error!r}); nothing is collected while it exists"
        ) from error


def _positions(chain: ChainState) -> Mapping[str, Any]:
    positions = chain.newest.get("positions", {})
    if not isinstance(positions, dict) or not all(
        type(p) is int and p >= 0 for p in positions.values()
    ):
        raise CorruptEntry(f"{chain.folder}: its 'positions' are invalid; delete that consumer")
    return positions
