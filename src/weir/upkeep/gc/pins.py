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
from typing import Final
from uuid import UUID

from weir.errors import CorruptEntry
from weir.format import paths
from weir.records import codec
from weir.records.checkpoints import Checkpoint, CheckpointState, read_first
from weir.records.consumers import Standing
from weir.records.cut import ShardCut
from weir.store.api import ObjectExists, Store

_CAS_ATTEMPTS: Final = 8


@dataclass
class ChainState:
    """One chain as found: its first and its newest record."""

    folder: str
    seqs: list[int]
    first: Checkpoint | None
    """The first record of a checkpoint; None for other chains, or when it is gone."""
    newest: CheckpointState | Standing | None
    """None for a chain that is neither a checkpoint's nor a consumer's."""
    times: dict[int, float]
    sizes: dict[int, int]

    @property
    def alive(self) -> bool:
        """True while it holds anything."""
        return self.first is not None and not self.ended

    @property
    def ended(self) -> bool:
        """True when its newest record is a deletion."""
        return self.newest is not None and self.newest.deleted

    def expired(self, now: float) -> bool:
        """True when its lifetime is over by the store's clock."""
        expires = None if self.newest is None else self.newest.expires
        return expires is not None and expires <= now


@dataclass
class Pins:
    """Everything held, by shard."""

    checkpoints: dict[UUID, list[ShardCut]] = field(default_factory=dict)
    unread: list[Mapping[UUID, int]] = field(default_factory=list)
    """Positions of each living consumer."""

    def of(self, shard: UUID) -> list[ShardCut]:
        """The cuts of one shard that checkpoints hold."""
        return self.checkpoints.get(shard, [])

    def unread_from(self, shard: UUID) -> int | None:
        """The lowest position a consumer may still read; 0 if one has no position in the shard."""
        found = [positions.get(shard, 0) for positions in self.unread]
        return min(found, default=None)


class Chains:
    """The chains of a table, as one collection reads them repeatedly.

    The first record of a checkpoint, which names every shard, never changes, and its id is never
    reused, so it is read and decoded once. Which chains are alive is checked every time.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._firsts: dict[str, Checkpoint] = {}

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
        is_checkpoint = root == paths.CHECKPOINTS
        wanted = {newest, first} if is_checkpoint and first not in self._firsts else {newest}
        data = dict(zip(sorted(wanted), self.store.get_many(sorted(wanted)), strict=True))
        found = {path: body for path, body in data.items() if body is not None}
        if len(found) < len(wanted):
            return None  # pruned or collected since the listing: list again
        begun = None
        if is_checkpoint and numbers[0] == 1:
            begun = self._first(first, found.get(first))
        if begun is not None and numbers[-1] == 1:
            state: CheckpointState | Standing | None = begun.state
        else:
            state = self._state(root, newest, found[newest])
        return ChainState(
            folder=folder,
            seqs=numbers,
            first=begun,
            newest=state,
            times={seq: time for seq, (time, _) in seqs.items()},
            sizes={seq: size for seq, (_, size) in seqs.items()},
        )

    def _state(self, root: str, path: str, data: bytes) -> CheckpointState | Standing | None:
        uri = f"{self.store.uri}/{path}"
        if root == paths.CHECKPOINTS:
            return codec.loads(data, CheckpointState, uri)
        if root == paths.CONSUMERS:
            return codec.loads(data, Standing, uri)
        codec.loads(data, dict, uri)  # G-11: older records stay beside a damaged one
        return None

    def _first(self, path: str, data: bytes | None) -> Checkpoint:
        if path not in self._firsts:
            assert data is not None, "a first record that is not known was read"
            id_ = paths.parse_shard_id(path.split("/")[-2])
            self._firsts[path] = read_first(data, id_, f"{self.store.uri}/{path}")
        return self._firsts[path]


def load_chains(store: Store, root: str) -> list[ChainState]:
    """Every chain below `root`, read once."""
    return Chains(store).load(root)


def end_chain(store: Store, chain: ChainState) -> bool:
    """Append a deletion; False when a refresh was appended first, so the chain lives on (G-2)."""
    try:
        store.put_if_absent(
            paths.chain_path(chain.folder, chain.seqs[-1] + 1),
            codec.dumps({"deleted": True, "reason": "expired"}),
        )
    except ObjectExists:  # guard: G-2
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
        assert isinstance(chain.newest, Standing), "a consumer's chain has its records"
        held = chain.newest.held
        if held is not None and not (ignore_expired and chain.expired(now)):
            pins.unread.append(held)
    return pins


def checkpoint_pins(chain: ChainState) -> list[ShardCut]:
    """What the first record of a checkpoint names, shard by shard."""
    assert chain.first is not None, "K-1: asked what a dead checkpoint holds"
    assert isinstance(chain.newest, CheckpointState), "a checkpoint's chain has its records"
    # A finished clone has its own copies; the base is held by a tag.
    return [] if chain.newest.base_only else list(chain.first.shards)
