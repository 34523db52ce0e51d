"""Checkpoint records: what is pinned, how long, for whom; a chain each in `_weir/checkpoints`.

Record 1 names everything the checkpoint holds. The checkpoint is then pending: it protects, but
cannot be used yet. A later record confirms it, extends its lifetime, or marks it deleted. The
highest number counts, so confirming, refreshing and expiring race for one name and exactly one of
them wins (G-2). None of this is in a shard manifest: pylance drops fields it does not know.

Keeps
  K-1b the record is written before the floors are read and confirmed after; collectors do the
       reverse
  K-5  a refresh only extends the lifetime; refreshing a checkpoint that is gone is an error
  G-2  expiry is a compare-and-swap on the record that was read
A collector keeps everything that a record names, pending or not, until it has itself appended the
deletion. Record 1 is removed first: an appender to the rest of the chain finds it gone and fails.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from weir.env import Env
from weir.errors import CheckpointNotFound, CommitConflict, CorruptEntry, InvalidInput
from weir.format import paths
from weir.records import codec
from weir.records.chain import READ_AT_ONCE, RecordChain
from weir.records.codec import Record
from weir.records.cut import ShardCut
from weir.store.api import ObjectExists, Store
from weir.store.open import require_recorded

Scope = Literal["all", "durable"]

NAME_LENGTH_MAX = 256


class CheckpointState(Record, frozen=True):
    """A record after the first; the newest record counts."""

    KIND: ClassVar[str] = "checkpoint record"
    confirmed: bool = False
    expires: float | None = None
    base_only: bool = False
    deleted: bool = False
    """The chain has ended."""
    reason: str | None = None
    """Why it has ended."""


class Checkpoint(Record, frozen=True):
    """A moment of the table: a manifest and a log end for each shard, and a base version."""

    KIND: ClassVar[str] = "checkpoint record"
    id: UUID
    scope: Scope
    created: float
    """Seconds since 1970 by the store's clock, like `expires`."""
    base_version: int
    routing_version: int
    shards: tuple[ShardCut, ...]
    name: str | None = None
    expires: float | None = None
    """When collection may remove it; None: never."""
    owner: str | None = None
    """URI of the clone that holds it; None for a user's checkpoint."""
    confirmed: bool = False
    base_only: bool = False
    """True for the pin of a finished clone: it holds the base alone, as the rest was copied."""

    def __post_init__(self) -> None:
        """Refuse a place that cannot be."""
        require_recorded(self.owner)

    def __repr__(self) -> str:
        return f"Checkpoint(id={self.id}, name={self.name!r}, scope={self.scope!r})"

    @property
    def state(self) -> CheckpointState:
        """What the next record of its chain says."""
        return CheckpointState(
            confirmed=self.confirmed, expires=self.expires, base_only=self.base_only, seq=self.seq
        )

    def pin(self, shard: UUID) -> ShardCut | None:
        """The cut it holds of that shard, or None."""
        return next((pin for pin in self.shards if pin.shard == shard), None)

    @property
    def base_tag(self) -> str:
        """The Lance tag that keeps `base_version` from Lance's own clean-up."""
        return tag_of(self.id)


def tag_of(checkpoint: UUID) -> str:
    """The name of a checkpoint's tag on the base."""
    return f"weir-{checkpoint}"


def checkpoint_of_tag(tag: str) -> UUID | None:
    """The checkpoint behind a tag's name, or None for a tag that is not weir's."""
    if not tag.startswith("weir-"):
        return None
    try:
        return paths.parse_shard_id(tag.removeprefix("weir-"))
    except InvalidInput:
        return None


Ref = Checkpoint | UUID | str
"""A checkpoint, its id, or its name (the newest of that name)."""


class _Owner(Struct):
    """What `owned` reads of a first record: whether a clone holds the checkpoint."""

    owner: str | None = None


def read_first(data: bytes, id_: UUID, path: str) -> Checkpoint:
    """The first record of that checkpoint, or `CorruptEntry` naming `path`."""
    found = codec.loads(data, Checkpoint, path)
    if found.id != id_:
        raise CorruptEntry(f"{path} is the record of checkpoint {found.id}. {codec.COPY}")
    return found


class Checkpoints:
    """The checkpoint records of one table. Safe to share between threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._unowned: set[UUID] = set()
        """Checkpoints that are known to be held by no clone, which never changes."""

    def announce(self, checkpoint: Checkpoint, *, pending_until: float) -> Checkpoint:
        """Write record 1; from then on everything it names is protected. One put."""
        check_name(checkpoint.name)
        pending = replace(checkpoint, confirmed=False, expires=pending_until, seq=1)
        # The id is random, so an existing record can only be this one.
        with contextlib.suppress(ObjectExists):
            RecordChain(self._store, paths.checkpoint_chain(checkpoint.id), Checkpoint).append(
                replace(pending, seq=0)
            )
        return pending

    def confirm(self, pending: Checkpoint, *, expires: float | None) -> Checkpoint:
        """Make an announced checkpoint usable; `CheckpointNotFound` when it expired first."""
        return self._append(replace(pending, confirmed=True, expires=expires))

    def refresh(self, ref: Ref, *, expires: float | None, env: Env) -> Checkpoint:
        """Extend the lifetime (never shorten it) and return the current checkpoint (K-5).

        Raises `CheckpointNotFound` when the checkpoint is gone, or goes during the call.
        """
        for _ in env.attempts():
            current = self.find(ref, whole=False)
            if current.expires is None or (expires is not None and expires <= current.expires):
                return current
            try:
                return self._append(replace(current, expires=expires))
            except CommitConflict:
                continue
        raise CommitConflict(
            f"{self._where(current.id)} changed during every attempt to refresh it; try again"
        )

    def narrow(self, checkpoint: Checkpoint) -> bool:
        """Hold only the base from now on; False when the checkpoint changed or went first."""
        try:
            self._append(replace(checkpoint, base_only=True))
        except (CommitConflict, CheckpointNotFound):
            return False
        return True

    def mark_deleted(self, checkpoint: Checkpoint) -> bool:
        """Append the deletion after the record that was read; False if another came first (G-2)."""
        try:
            ended = CheckpointState(deleted=True, reason="asked to", seq=checkpoint.seq)
            self._chain(checkpoint.id).append(ended)
        except ObjectExists:
            return False
        return True

    def erase(self, checkpoint: UUID) -> None:
        """Remove the records of a deleted checkpoint, record 1 first. Idempotent."""
        self._store.delete([self._path(checkpoint, 1)])
        rest = [m.path for m in self._store.list(paths.checkpoint_chain(checkpoint))]
        if rest:
            self._store.delete(sorted(rest))

    def load(self, checkpoint: UUID) -> Checkpoint | None:
        """The checkpoint, confirmed or pending; None when deleted or never made. Three requests."""
        _, objects = self._store.list_folder(paths.checkpoint_chain(checkpoint))
        seqs = [paths.parse_chain_name(m.path.rpartition("/")[2]) for m in objects]
        chain = {checkpoint: [seq for seq in seqs if seq is not None]}
        return next(self._read_all(chain), None)

    def all(self, *, pending: bool = False) -> list[Checkpoint]:
        """All checkpoints, oldest first; `pending` adds unconfirmed ones. A list, two gets each,
        made together."""
        alive = [c for c in self._read_all(self._listed()) if pending or c.confirmed]
        return sorted(alive, key=lambda c: (c.created, str(c.id)))

    def owned(self) -> list[Checkpoint]:
        """The checkpoints that clones hold, oldest first. Requests as for `all`.

        The others, which have a pin for every shard, are read once by this object, not decoded.
        """
        chains = {id_: s for id_, s in self._listed().items() if id_ not in self._unowned}
        found = self._read_all(chains, owned=True)
        alive = [c for c in found if c.confirmed and c.owner is not None]
        return sorted(alive, key=lambda c: (c.created, str(c.id)))

    def find(self, ref: Ref, *, whole: bool = True) -> Checkpoint:
        """The usable checkpoint meant by an id, a name (its newest) or an object.

        Raises `CheckpointNotFound`; with `whole` also `InvalidInput` for one that holds
        only the base.
        """
        if isinstance(ref, Checkpoint):
            ref = ref.id
        if isinstance(ref, str):
            matching = self.matching(ref)
            found = matching[-1] if matching else None
        else:
            found = self.load(ref)
        if found is None or not found.confirmed:
            raise CheckpointNotFound(
                f"{self._store.uri}: no checkpoint {str(ref)!r}; it was deleted, expired and"
                " collected, or never made. table.checkpoints(), or weir checkpoint list, shows all"
            )
        if whole:
            require_whole(found)
        return found

    def matching(self, text: str) -> list[Checkpoint]:
        """The checkpoint with that id, or else all with that name, oldest first.

        Three requests for an id; a name reads all checkpoints. A clone's pin bears the name of the
        checkpoint it was made from but never matches by name: users who delete, refresh or read by
        name mean their own (C-1). It does match by id.
        """
        by_id = None
        with contextlib.suppress(InvalidInput):
            by_id = self.load(paths.parse_shard_id(text))
        if by_id is not None and by_id.confirmed:
            return [by_id]
        return [c for c in self.all() if c.name == text and not c.owner]

    def _append(self, following: Checkpoint) -> Checkpoint:
        """Take the next number, then check that the chain below it was not erased (K-5)."""
        try:
            seq = self._chain(following.id).append(following.state).seq
        except ObjectExists:
            if self.load(following.id) is None:
                raise self._gone(following.id) from None
            raise CommitConflict(
                f"{self._where(following.id)} was changed by another process; try again"
            ) from None
        if self._store.head(self._path(following.id, 1)) is None:
            self._store.delete([self._path(following.id, seq)])
            raise self._gone(following.id)
        return replace(following, seq=seq)

    def _listed(self) -> dict[UUID, list[int]]:
        chains: dict[UUID, list[int]] = {}
        for meta in self._store.list(paths.CHECKPOINTS):
            folder, _, name = meta.path.rpartition("/")
            seq = paths.parse_chain_name(name)
            with contextlib.suppress(InvalidInput):
                id_ = paths.parse_shard_id(folder.rpartition("/")[2])
                if seq is not None:
                    chains.setdefault(id_, []).append(seq)
        return chains

    def _read_all(
        self, chains: Mapping[UUID, list[int]], *, owned: bool = False
    ) -> Iterator[Checkpoint]:
        """The checkpoints of those chains, many with one round of requests."""
        ids = [id_ for id_, seqs in chains.items() if 1 in seqs]
        for start in range(0, len(ids), READ_AT_ONCE):
            some = ids[start : start + READ_AT_ONCE]
            ends = [(id_, seq) for id_ in some for seq in sorted({1, max(chains[id_])})]
            found_at = self._store.get_many([self._path(id_, seq) for id_, seq in ends])
            bodies = dict(zip(ends, found_at, strict=True))
            for id_ in some:
                first, last = bodies[id_, 1], bodies[id_, max(chains[id_])]
                found = self._decoded(id_, chains[id_], first, last, owned=owned)
                if found is not None:
                    yield found

    def _decoded(
        self,
        id_: UUID,
        seqs: list[int],
        first: bytes | None,
        last: bytes | None,
        *,
        owned: bool,
    ) -> Checkpoint | None:
        if first is None or last is None:
            # Being erased, or removed since the listing: a fresh listing decides.
            return None if first is None else self.load(id_)
        seq = max(seqs)
        if seq > 1:
            state = codec.loads(last, CheckpointState, self._uri(id_, seq))
            if state.deleted:
                return None
        if owned and not codec.loads(first, _Owner, self._uri(id_, 1)).owner:
            self._unowned.add(id_)
            return None
        announced = read_first(first, id_, self._uri(id_, 1))
        if seq == 1:
            return replace(announced, seq=1)
        return replace(
            announced,
            confirmed=state.confirmed,
            base_only=state.base_only,
            expires=state.expires,
            seq=seq,
        )

    def _chain(self, id_: UUID) -> RecordChain[CheckpointState]:
        return RecordChain(self._store, paths.checkpoint_chain(id_), CheckpointState)

    def _path(self, id_: UUID, seq: int) -> str:
        return paths.chain_path(paths.checkpoint_chain(id_), seq)

    def _uri(self, id_: UUID, seq: int) -> str:
        return f"{self._store.uri}/{self._path(id_, seq)}"

    def _where(self, id_: UUID) -> str:
        return f"checkpoint {id_} of {self._store.uri}"

    def _gone(self, id_: UUID) -> CheckpointNotFound:
        return CheckpointNotFound(
            f"{self._where(id_)} is gone: it was deleted, or expired and collected; make a new one"
        )


def require_whole(checkpoint: Checkpoint) -> None:
    """`InvalidInput` for the pin of a finished clone: it cannot be read, cloned or restored."""
    if checkpoint.base_only:
        raise InvalidInput(
            f"checkpoint {checkpoint.id} is the pin of the clone {checkpoint.owner}. It holds only"
            " base files that the clone shares, so it cannot be read, cloned or restored. Use"
            " another checkpoint"
        )


def check_name(name: str | None) -> None:
    """`InvalidInput` unless the name can be a label."""
    if name is not None and not 0 < len(name) <= NAME_LENGTH_MAX:
        raise InvalidInput(
            f"a checkpoint's name is 1 to {NAME_LENGTH_MAX} characters, not {name!r}"
        )
