"""Bytes of the shard manifest: a protobuf message, one immutable file per version.

The message is lance's `ShardManifest` with five fields added by weir. `commit_id` is random per
commit attempt. Two claimants that would otherwise write the same bytes write different files, so a
lost answer to a put-if-absent is settled by comparing the stored object with the bytes sent (F-9).
pylance ignores the field and drops it when it writes the next version, so nothing may depend on
finding it. The same holds for `closed_epoch` and `wal_only`, which tell of the owner of one epoch:
a claim by pylance drops them, and then the log is folded later (L-6). `log_place` says where the
log is; a mark beside the floors tells that a program dropped it (X-1). `dropped` stands in the last
version of a shard whose table was dropped; no program writes to a sealed shard.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Final
from uuid import UUID

from google.protobuf.message import DecodeError
from msgspec import Meta, Struct

from weir.errors import CorruptEntry
from weir.format import lance_messages as messages
from weir.format import paths
from weir.format.protobuf import LaterFormat, require_known
from weir.types import Epoch, Generation, Position, Version

MANIFEST_BYTES_MAX: Final = 64 << 20
_HINT_BYTES_MAX = 1024
UNCLAIMED: Final = Epoch(0)
"""The epoch of a shard that was never claimed: its log is empty, wherever it is."""


class Status(IntEnum):
    """Whether a shard takes writes. Stored. Never change a value; add one."""

    ACTIVE = 0
    SEALED = 1


Count = Annotated[int, Meta(ge=0)]
"""A number of a record, checked where the record is read."""


ROW_BYTES: Final = 100
"""Assumed size of a row in SSTables of other programs, which do not record it."""


class SsTable(Struct, frozen=True, array_like=True):
    """One flushed generation as the manifest lists it; other writers may leave out the sizes."""

    generation: Annotated[Generation, Meta(ge=0)]
    path: str
    """The folder's name inside the shard's folder."""
    in_memory_bytes: Count | None = None
    physical_rows: Count | None = None
    primary_key_bytes: Count | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Its rows and bytes in memory, as far as the manifest records them."""
        rows = self.physical_rows or 0
        return rows, self.in_memory_bytes or rows * ROW_BYTES


@dataclass(frozen=True, slots=True)
class ShardManifest:
    """One version of a shard's state."""

    version: Version
    writer_epoch: Epoch
    replay_after: Position
    """Replay begins at the position after this one; 0: nothing is flushed."""
    last_seen: Position
    """A hint at the tip of the log."""
    current_generation: Generation
    """The generation the next SSTable gets."""
    sstables: tuple[SsTable, ...]
    shard_spec_id: int
    shard_id: UUID
    field_entries: tuple[tuple[str, bytes], ...]
    status: Status
    commit_id: bytes = b""
    closed_epoch: Epoch = UNCLAIMED
    """The last epoch whose owner said, in its last commit, that no entry of it will follow."""
    wal_only: bool = False
    """The owner of this epoch keeps no rows in memory: its log may be folded (L-6)."""
    log_place: int = 0
    """The number of the record that says where the log is (`records/places.py`). 0: beside the data
    from the beginning, or written by a program that does not know the field (X-1)."""
    dropped: bool = False
    """The shard's table was dropped (C-16). The next table at that place continues its numbers."""

    @property
    def is_left(self) -> bool:
        """True when no writer owns the shard any more: `last_seen` is the last entry with rows.

        One function for all who ask whether a log may still grow (L-6, S-7). A crashed owner, and a
        native one, has not left.
        """
        return self.closed_epoch == self.writer_epoch or self.status is Status.SEALED


_RETIRED: Final = frozenset({5, 7, 9, 12, 13})  # from Lance before its MemWAL had SSTables


def encode_manifest(m: ShardManifest) -> bytes:
    """The manifest's bytes: fields in ascending order, zeros left out, as pylance writes them."""
    message = messages.new(messages.ShardManifest)
    for name, value in (
        ("version", m.version),
        ("writer_epoch", m.writer_epoch),
        ("replay_after", m.replay_after),
        ("last_seen", m.last_seen),
        ("current_generation", m.current_generation),
        ("shard_spec_id", m.shard_spec_id),
        ("status", int(m.status)),
        ("commit_id", m.commit_id),
        ("closed_epoch", m.closed_epoch),
        ("dropped", int(m.dropped)),
        ("wal_only", int(m.wal_only)),
        ("log_place", m.log_place),
    ):
        if value:
            setattr(message, name, value)
    message.shard_id.uuid = m.shard_id.bytes
    for table in m.sstables:
        entry = message.sstables.add(generation=table.generation, path=table.path)
        if table.in_memory_bytes is not None:
            entry.in_memory_bytes = table.in_memory_bytes
        if table.physical_rows is not None:
            entry.physical_rows = table.physical_rows
        if table.primary_key_bytes is not None:
            entry.primary_key_bytes = table.primary_key_bytes
    for field_id, value in m.field_entries:
        message.field_entries.add(field_id=field_id, value=value)
    return message.SerializeToString(deterministic=True)


def decode_manifest(data: bytes, *, path: str) -> ShardManifest:
    """The manifest in `data`, completely checked; `CorruptEntry` naming `path` otherwise."""
    if len(data) > MANIFEST_BYTES_MAX:
        raise _corrupt(path, f"it is larger than {MANIFEST_BYTES_MAX} bytes")
    try:
        message = messages.parse(messages.ShardManifest, data)
        require_known(message, "it", retired=_RETIRED)
        manifest = _from_message(message)
    except LaterFormat as error:
        raise CorruptEntry(f"{path} cannot be read: {error}") from error
    except (DecodeError, ValueError) as error:
        raise _corrupt(path, str(error)) from error
    problem = _problem(manifest, path)
    if problem is not None:
        raise _corrupt(path, problem)
    return manifest


def _from_message(message: messages.ShardManifest) -> ShardManifest:
    return ShardManifest(
        version=Version(message.version),
        writer_epoch=Epoch(message.writer_epoch),
        replay_after=Position(message.replay_after),
        # A position up to R was used, whatever a foreign writer recorded as last seen (F-3).
        last_seen=Position(max(message.last_seen, message.replay_after)),
        current_generation=Generation(message.current_generation),
        sstables=tuple(_sstable(entry) for entry in message.sstables),
        shard_spec_id=message.shard_spec_id,
        shard_id=UUID(bytes=message.shard_id.uuid),
        field_entries=tuple((e.field_id, e.value) for e in message.field_entries),
        status=Status(message.status),
        commit_id=message.commit_id,
        closed_epoch=Epoch(message.closed_epoch),
        wal_only=bool(message.wal_only),
        log_place=int(message.log_place),
        dropped=bool(message.dropped),
    )


def _sstable(entry: messages.SsTable) -> SsTable:
    require_known(entry, f"SSTable {entry.path}")

    def optional(name: str) -> int | None:
        return int(getattr(entry, name)) if entry.HasField(name) else None

    return SsTable(
        generation=Generation(entry.generation),
        path=paths.sstable_folder(entry.path),
        in_memory_bytes=optional("in_memory_bytes"),
        physical_rows=optional("physical_rows"),
        primary_key_bytes=optional("primary_key_bytes"),
    )


def _problem(m: ShardManifest, path: str) -> str | None:
    """The reason why a decoded manifest is unusable, or None."""
    if m.version == 0:
        return "it has no version"
    if m.current_generation == 0:
        return "it has no current generation"
    parts = path.split("/")
    named_version = paths.parse_manifest_name(parts[-1])
    if named_version is not None and named_version != m.version:
        return f"it holds version {m.version}, but its name says {named_version}"
    if len(parts) >= 4 and parts[-4] == paths.SHARDS and parts[-3] != str(m.shard_id):
        return f"it belongs to shard {m.shard_id}, but is in the folder of shard {parts[-3]}"
    return sstables_problem(m.sstables, m.current_generation)


def sstables_problem(sstables: Sequence[SsTable], current: Generation) -> str | None:
    """The reason why a manifest's or record's list of SSTables is unusable, or None."""
    seen: set[int] = set()
    for table in sstables:
        if not 1 <= table.generation < current:
            return (
                f"SSTable generation {table.generation} must be at least 1 and below the current"
                f" generation {current}"
            )
        if table.generation in seen:
            return f"SSTable generation {table.generation} is listed twice"
        seen.add(table.generation)
    return None


def _corrupt(path: str, reason: str) -> CorruptEntry:
    return CorruptEntry(
        f"{path} is not a usable shard manifest: {reason}. Restore the object from a copy of the"
        " table, and find out what else writes there"
    )


def encode_hint(version: Version) -> bytes:
    """The bytes of `version_hint.json`."""
    return b'{"version":%d}' % version


def decode_hint(data: bytes) -> Version | None:
    """The hinted version, or None for anything else: a hint is never an error."""
    if len(data) > _HINT_BYTES_MAX:
        return None
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    version = value.get("version") if isinstance(value, dict) else None
    if type(version) is not int or not 1 <= version <= paths.U64_MAX:
        return None
    return Version(version)
