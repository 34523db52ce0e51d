"""`Holds`: what is kept from collection, and for whom; read here by collection and users alike.

Three things hold: a user's checkpoint, the pin of a clone (a checkpoint with an owner), and a named
consumer of the change feed. Each is a chain of records; the highest number counts, so confirming,
refreshing and expiring race for one name and exactly one of them wins.

Keeps
  K-1b a checkpoint's first record is written before the floors are read, and it is confirmed after;
       collectors do the reverse
  K-5  a refresh only extends the lifetime; refreshing a checkpoint that is gone is an error
  G-2  what has expired is ended by an appended record first; losing that race means that it was
       refreshed and still holds
  G-11 while a record cannot be read, nothing may be deleted
A collector keeps everything that a record names, pending or not, until it has itself appended the
deletion. Record 1 is removed first: an appender to the rest of the chain finds it gone and fails.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal
from uuid import UUID

from msgspec.structs import replace

from weir.env import Env
from weir.errors import CheckpointNotFound, CommitConflict, CorruptEntry, InvalidInput, StoreError
from weir.format import paths
from weir.records import codec
from weir.records.chain import (
    LOOKS,
    READ_AT_ONCE,
    Listed,
    RecordChain,
    list_chain,
    list_chains,
    read_record,
)
from weir.records.checkpoints import Checkpoint, CheckpointState, Ref, check_name, require_whole
from weir.records.codec import Record
from weir.records.consumers import ON_REQUEST, Standing
from weir.records.cut import ShardCut
from weir.store.api import ObjectExists, Store

HoldKind = Literal["checkpoints", "consumers"]

Expired = Mapping[HoldKind, float]
"""By kind, the time at which what has expired counts as ended."""

_ROOTS: Final[dict[HoldKind, str]] = {
    "checkpoints": paths.CHECKPOINTS,
    "consumers": paths.CONSUMERS,
}


@dataclass(frozen=True)
class Hold:
    """One chain as found, dead or alive."""

    folder: str
    listed: Listed
    state: CheckpointState | Standing
    """The newest record."""
    first: Checkpoint | None
    """The first record of a checkpoint; None for a consumer, or when it is gone."""

    @property
    def name(self) -> str:
        """A consumer's name, or the id of a checkpoint."""
        return self.folder.rpartition("/")[2]

    @property
    def is_ended(self) -> bool:
        """True when its newest record is a deletion, or the first, which says what it holds, is
        gone. A consumer's first record may be pruned; the newest is complete."""
        return self.state.deleted or (
            self.first is None and isinstance(self.state, CheckpointState)
        )

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The checkpoint as it is now, confirmed or pending; None for anything else."""
        state = self.state
        if self.first is None or self.is_ended or not isinstance(state, CheckpointState):
            return None
        return replace(
            self.first,
            confirmed=state.confirmed,
            base_only=state.base_only,
            expires=state.expires,
            seq=state.seq,
        )

    def is_expired(self, now: float) -> bool:
        """True when its lifetime is over by the store's clock."""
        return self.state.expires is not None and self.state.expires <= now


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


class Holds:
    """What is held in one table. Safe to share between threads.

    The first record of a checkpoint, which names every shard, never changes, and its id is never
    reused, so it is read and decoded once. Which chains are alive is checked every time.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._firsts: dict[str, Checkpoint] = {}

    # -- list ------------------------------------------------------------------------------------

    def all(self, kind: HoldKind) -> list[Hold]:
        """Every chain of that kind, dead or alive, for collection. One listing, and two gets each,
        many together; one get where the first record is known."""
        return self._read(list_chains(self._store, _ROOTS[kind]))

    def living(self, kind: HoldKind, expired: Expired | None = None) -> list[Hold]:
        """Those of that kind that hold something. Requests as for `all`.

        `expired` is for a dry run, which may not end what the real run ends.
        """
        at = (expired or {}).get(kind, -math.inf)
        return [h for h in self.all(kind) if not h.is_ended and not h.is_expired(at)]

    def pins(self, expired: Expired | None = None) -> Pins:
        """Everything that is held, by shard. Requests as for `all`, of each kind."""
        pins = Pins()
        for hold in self.living("checkpoints", expired):
            pinned = hold.checkpoint
            # A finished clone has its own copies; the base is held by a tag.
            for cut in () if pinned is None or pinned.base_only else pinned.shards:
                pins.checkpoints.setdefault(cut.shard, []).append(cut)
        for hold in self.living("consumers", expired):
            if isinstance(hold.state, Standing):
                pins.unread.append(hold.state.positions)
        return pins

    def checkpoints(self, *, pending: bool = False) -> list[Checkpoint]:
        """All checkpoints, oldest first; `pending` adds unconfirmed ones. Requests as for `all`."""
        listed = list_chains(self._store, paths.CHECKPOINTS)
        ours = {folder: chain for folder, chain in listed.items() if 1 in chain and _id_of(folder)}
        found = [hold.checkpoint for hold in self._read(ours)]
        alive = [c for c in found if c is not None and (pending or c.confirmed)]
        return sorted(alive, key=lambda c: (c.created, str(c.id)))

    def clone_pins(self) -> list[Checkpoint]:
        """The checkpoints that clones hold, oldest first. Requests as for `all`."""
        return [c for c in self.checkpoints() if c.owner is not None]

    def consumers(self) -> dict[str, Standing]:
        """The consumers for which something is held, by name. Requests as for `all`."""
        found = {hold.name: hold.state for hold in self.living("consumers")}
        return {name: state for name, state in found.items() if isinstance(state, Standing)}

    # -- one checkpoint --------------------------------------------------------------------------

    def load(self, checkpoint: UUID) -> Checkpoint | None:
        """The checkpoint, confirmed or pending; None when deleted or never made. Three requests."""
        folder = paths.checkpoint_chain(checkpoint)
        listed = list_chain(self._store, folder)
        found = self._read({folder: listed}) if 1 in listed else []
        return found[0].checkpoint if found else None

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
        return [c for c in self.checkpoints() if c.name == text and not c.owner]

    # -- announce, confirm, end ------------------------------------------------------------------

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
            with contextlib.suppress(CommitConflict):
                return self._append(replace(current, expires=expires))
        raise self._busy(current)

    def touch(self, ref: Ref, env: Env) -> Checkpoint:
        """Append the checkpoint's state once more: whoever decided to end it looks again (G-2).

        Raises `CheckpointNotFound` when the checkpoint is gone, or goes during the call.
        """
        for _ in env.attempts():
            current = self.find(ref)
            with contextlib.suppress(CommitConflict):
                return self._append(current)
        raise self._busy(current)

    def narrow(self, checkpoint: Checkpoint) -> bool:
        """Hold only the base from now on; False when the checkpoint changed or went first."""
        try:
            self._append(replace(checkpoint, base_only=True))
        except (CommitConflict, CheckpointNotFound):
            return False
        return True

    def end(self, held: Checkpoint | Hold, reason: str = ON_REQUEST) -> bool:
        """Append the deletion after the record that was read; False if another came first: a
        refresh, so that it lives on (G-2)."""
        folder = held.folder if isinstance(held, Hold) else paths.checkpoint_chain(held.id)
        kind, after = type(held.state), held.state.seq
        try:
            RecordChain[Record](self._store, folder, kind).append(
                kind(deleted=True, reason=reason, seq=after)
            )
        except ObjectExists:  # guard: G-2
            return False
        return True

    def erase(self, checkpoint: UUID) -> None:
        """Remove the records of a deleted checkpoint, record 1 first. Idempotent."""
        self._store.delete([self._path(checkpoint, 1)])
        rest = [m.path for m in self._store.list(paths.checkpoint_chain(checkpoint))]
        if rest:
            self._store.delete(sorted(rest))

    def _append(self, following: Checkpoint) -> Checkpoint:
        """Take the next number, then check that the chain below it was not erased (K-5)."""
        chain = RecordChain(self._store, paths.checkpoint_chain(following.id), CheckpointState)
        try:
            seq = chain.append(following.state).seq
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

    # -- the one decoder -------------------------------------------------------------------------

    def _read(self, chains: Mapping[str, Listed]) -> list[Hold]:
        """Those chains, many with one round of requests."""
        found: list[Hold] = []
        folders = list(chains)
        for start in range(0, len(folders), READ_AT_ONCE):
            some = {folder: chains[folder] for folder in folders[start : start + READ_AT_ONCE]}
            bodies = self._bodies(some)
            for folder, listed in some.items():
                hold = self._decoded(folder, listed, bodies) or self._look_again(folder)
                found += [] if hold is None else [hold]
        return found

    def _look_again(self, folder: str) -> Hold | None:
        """A chain of which a record was pruned or erased since the listing; None: it is gone."""
        for _ in range(LOOKS):
            listed = list_chain(self._store, folder)
            if not listed:
                return None
            hold = self._decoded(folder, listed, self._bodies({folder: listed}))
            if hold is not None:
                return hold
        raise StoreError(
            f"{self._store.uri}/{folder}: records were deleted before they could be read, {LOOKS}"
            " times in a row; try again"
        )

    def _bodies(self, chains: Mapping[str, Listed]) -> dict[str, bytes | None]:
        """The newest record of each, and the first of a checkpoint, unless that is known."""
        wanted: list[str] = []
        for folder, listed in chains.items():
            ends = {1, max(listed)} if _is_checkpoint(folder) else {max(listed)}
            wanted += [
                listed[number].path
                for number in sorted(ends & listed.keys())
                if number != 1 or listed[number].path not in self._firsts
            ]
        return dict(zip(wanted, self._store.get_many(wanted), strict=True))

    def _decoded(
        self, folder: str, listed: Listed, bodies: Mapping[str, bytes | None]
    ) -> Hold | None:
        """The chain; None when a record that it needs is gone."""
        last, is_checkpoint = max(listed), _is_checkpoint(folder)
        state: CheckpointState | Standing | None = None
        if last > 1 or not is_checkpoint:
            data = bodies[listed[last].path]
            if data is None:
                return None
            kind: type[CheckpointState | Standing] = CheckpointState if is_checkpoint else Standing
            state = read_record(self._store, last, data, listed[last], kind)
            if state.deleted or not is_checkpoint or 1 not in listed:
                return Hold(folder, listed, state, None)
        first = self._first(folder, listed, bodies)
        return None if first is None else Hold(folder, listed, state or first.state, first)

    def _first(
        self, folder: str, listed: Listed, bodies: Mapping[str, bytes | None]
    ) -> Checkpoint | None:
        path = listed[1].path
        if path in self._firsts:
            return self._firsts[path]
        data = bodies[path]
        if data is None:
            return None
        found = codec.loads(data, Checkpoint, f"{self._store.uri}/{path}")
        if found.id != paths.parse_shard_id(folder.rpartition("/")[2]):
            raise CorruptEntry(
                f"{self._store.uri}/{path} is the record of checkpoint {found.id}. {codec.COPY}"
            )
        return self._firsts.setdefault(path, replace(found, seq=1))

    def _path(self, id_: UUID, seq: int) -> str:
        return paths.chain_path(paths.checkpoint_chain(id_), seq)

    def _where(self, id_: UUID) -> str:
        return f"checkpoint {id_} of {self._store.uri}"

    def _busy(self, changed: Checkpoint) -> CommitConflict:
        return CommitConflict(
            f"{self._where(changed.id)} changed during every attempt to refresh it; try again"
        )

    def _gone(self, id_: UUID) -> CheckpointNotFound:
        return CheckpointNotFound(
            f"{self._where(id_)} is gone: it was deleted, or expired and collected; make a new one"
        )


def _is_checkpoint(folder: str) -> bool:
    return folder.startswith(f"{paths.CHECKPOINTS}/")


def _id_of(folder: str) -> UUID | None:
    """The checkpoint whose chain is there; None for a folder that is not weir's."""
    with contextlib.suppress(InvalidInput):
        return paths.parse_shard_id(folder.rpartition("/")[2])
    return None
