"""What weir reads out of the base table's manifest: the MemWAL index entry.

pylance's own call leaves out the compaction progress, so the message is parsed here. Progress is
read from the same bytes as the version it belongs to: progress and data are one commit (L-4).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from google.protobuf.message import DecodeError

from weir.errors import CorruptEntry
from weir.format import lance_messages as messages
from weir.format.lance_file import parse_version_name, unusable
from weir.format.lance_messages import read_indices, read_manifest
from weir.format.protobuf import LaterFormat, Repeated, require_known
from weir.types import Generation

MEM_WAL_INDEX: Final = "__lance_mem_wal"

_COUNT: Final = re.compile(r"[0-9]{1,10}")
# Stored by Lance. Software that ignores an unknown flag misreads or corrupts the table.
_FLAGS: Final = {
    1: "deletion files",
    2: "stable row ids",
    4: "v2 files",
    8: "table config",
    16: "base paths",
    32: "no transaction files",
}


@dataclass(frozen=True, slots=True)
class ShardingField:
    """How one shard value is computed from columns."""

    field_id: str
    source_ids: tuple[int, ...]
    transform: str | None
    expression: str | None
    result_type: str
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ShardingSpec:
    """One way the table's rows are spread over shards."""

    spec_id: int
    fields: tuple[ShardingField, ...]


@dataclass(frozen=True, slots=True)
class MemWalDetails:
    """The MemWAL index entry of one base table version."""

    num_shards: int
    """Bucket count; 1 if unsharded; 0 if sharded manually or by identity."""
    sharding_specs: tuple[ShardingSpec, ...]
    maintained_indexes: tuple[str, ...]
    maintain_all: bool
    compacted: Mapping[UUID, Generation]
    """The last generation of each shard that is part of the base table."""
    writer_defaults: Mapping[str, str]
    index_catchup: Mapping[str, Mapping[UUID, Generation]]
    """The last compacted generation that each index covers, per shard."""


def read_mem_wal(raw: bytes, *, path: str) -> MemWalDetails | None:
    """The MemWAL index entry of the manifest in `raw`, None for a plain dataset; `CorruptEntry`
    naming `path` for what is no manifest that this release can read."""
    raw = bytes(raw)
    try:
        return _parse(raw, path)
    except LaterFormat as error:
        raise CorruptEntry(f"{path} cannot be read: {error}") from error
    except (DecodeError, ValueError) as error:
        raise unusable(path, error) from error


def parse_mem_wal_details(value: bytes, *, path: str) -> MemWalDetails:
    """The value of the MemWAL index entry, or `CorruptEntry` naming `path`."""
    try:
        return _details(messages.parse(messages.MemWalIndexDetails, value))
    except LaterFormat as error:
        raise CorruptEntry(f"{path} cannot be read: {error}") from error
    except (DecodeError, ValueError) as error:
        raise unusable(path, f"its MemWAL index entry is damaged: {error}") from error


def encode_mem_wal_details(details: MemWalDetails) -> bytes:
    """The value of a MemWAL index entry, the inverse of `parse_mem_wal_details`."""
    message = messages.new(
        messages.MemWalIndexDetails,
        num_shards=details.num_shards,
        maintained_indexes=details.maintained_indexes,
        maintain_all=details.maintain_all,
    )
    for spec in details.sharding_specs:
        stored = message.sharding_specs.add(spec_id=spec.spec_id)
        for part in spec.fields:
            stored_field = stored.fields.add(
                field_id=part.field_id,
                source_ids=part.source_ids,
                transform=part.transform,
                expression=part.expression,
                result_type=part.result_type,
            )
            _add_pairs(stored_field.parameters, part.parameters)
    _add_progress(message.compacted, details.compacted)
    for name, progress in details.index_catchup.items():
        _add_progress(message.index_catchup.add(index_name=name).compacted, progress)
    _add_pairs(message.writer_defaults, details.writer_defaults)
    return message.SerializeToString()


def _add_pairs(target: Repeated[messages.Pair], pairs: Mapping[str, str]) -> None:
    for key, value in sorted(pairs.items()):
        target.add(key=key, value=value)


def _add_progress(
    target: Repeated[messages.Compacted], progress: Mapping[UUID, Generation]
) -> None:
    for shard, generation in progress.items():
        target.add(generation=generation).shard_id.uuid = shard.bytes


def _parse(raw: bytes, path: str) -> MemWalDetails | None:
    message = read_manifest(raw, path=path)
    named = parse_version_name(path.rsplit("/", 1)[-1])
    if message.version == 0 or (named is not None and named != message.version):
        raise ValueError(f"it holds version {message.version}, which does not match its name")
    _require_flags(message)  # guard: X-9 test_pending_bytes
    for index in read_indices(raw, message, path=path).indices:
        if index.name == MEM_WAL_INDEX:
            return parse_mem_wal_details(index.details.value, path=path)
    return None


def _require_flags(message: messages.Manifest) -> None:
    for kind, flags in (("reader", message.reader_flags), ("writer", message.writer_flags)):
        unknown = [1 << n for n in range(64) if flags >> n & 1 and 1 << n not in _FLAGS]
        if unknown:
            raise LaterFormat(
                f"it has the unknown {kind} feature flag {', '.join(map(str, unknown))}: a later"
                " Lance wrote it; upgrade weir"
            )


def _details(message: messages.MemWalIndexDetails) -> MemWalDetails:
    require_known(message, "its MemWAL index entry")
    for spec in message.sharding_specs:
        require_known(spec, "a sharding spec")
        for field_ in spec.fields:
            require_known(field_, "a sharding field")
    return MemWalDetails(
        num_shards=message.num_shards,
        sharding_specs=tuple(
            ShardingSpec(spec.spec_id, tuple(_sharding_field(f) for f in spec.fields))
            for spec in message.sharding_specs
        ),
        maintained_indexes=tuple(message.maintained_indexes),
        maintain_all=message.maintain_all,
        compacted=_progress(message.compacted),
        writer_defaults={pair.key: pair.value for pair in message.writer_defaults},
        index_catchup={c.index_name: _progress(c.compacted) for c in message.index_catchup},
    )


def _sharding_field(message: messages.ShardingField) -> ShardingField:
    parameters = {pair.key: pair.value for pair in message.parameters}
    if message.transform == "bucket" and not _COUNT.fullmatch(parameters.get("num_buckets", "")):
        raise ValueError(f"a sharding by bucket has the parameters {parameters}")
    return ShardingField(
        field_id=message.field_id,
        source_ids=tuple(message.source_ids),
        transform=message.transform if message.HasField("transform") else None,
        expression=message.expression if message.HasField("expression") else None,
        result_type=message.result_type,
        parameters=parameters,
    )


def _progress(entries: Repeated[messages.Compacted]) -> dict[UUID, Generation]:
    progress: dict[UUID, Generation] = {}
    for entry in entries:
        shard = UUID(bytes=entry.shard_id.uuid)
        progress[shard] = max(progress.get(shard, Generation(0)), Generation(entry.generation))
    return progress
