"""Lance's protobuf messages, as far as weir reads or changes them: declared here and nowhere else.

Protobuf carries fields that are not named here along unchanged, so a message that weir rewrites
keeps what a later Lance put into it.
"""

from __future__ import annotations

from typing import Final, TypeVar

from google.protobuf.message import DecodeError

from weir.format.lance_file import manifest_offset, section, unusable
from weir.format.protobuf import Message, Repeated, message_classes, stored

M = TypeVar("M", bound=Message)

# Stored by Lance. Never change a number. Those from 1001 on are weir's own: add one.


class Uuid(Message):
    """16 bytes."""

    uuid: bytes = stored(1)


class Pair(Message):
    """A key and a text."""

    key: str = stored(1)
    value: str = stored(2)


class Metadata(Message):
    """A key and bytes."""

    key: str = stored(1)
    value: bytes = stored(2)


class TypedBytes(Message):
    """A message of a type that its URL names."""

    type_url: str = stored(1)
    value: bytes = stored(2)


# -- a version of a dataset


class LanceField(Message):
    """A column, or a field in one."""

    name: str = stored(2)
    id: int = stored(3, "int32")
    parent_id: int = stored(4, "int32")
    nullable: bool = stored(6)
    dictionary: bytes = stored(8)
    metadata: Repeated[Metadata] = stored(10)


class DataFile(Message):
    """A file of rows, and the fields in it."""

    path: str = stored(1)
    fields: Repeated[int] = stored(2, "int32")
    base_id: int = stored(7, "uint32")


class DeletionFile(Message):
    """Which rows of a fragment are deleted."""

    file_type: int = stored(1, "int32")
    read_version: int = stored(2, "uint64")
    id: int = stored(3, "uint64")
    num_deleted: int = stored(4, "uint64")
    base_id: int = stored(7, "uint32")


class Fragment(Message):
    """Files with the same rows."""

    id: int = stored(1, "uint64")
    files: Repeated[DataFile] = stored(2)
    deletion_file: DeletionFile = stored(3)


class BasePath(Message):
    """Another place whose files a version names."""

    id: int = stored(1, "uint32")
    is_dataset_root: bool = stored(3)
    path: str = stored(4)


class Manifest(Message):
    """One version of a dataset."""

    fields: Repeated[LanceField] = stored(1)
    fragments: Repeated[Fragment] = stored(2)
    version: int = stored(3, "uint64")
    index_section: int = stored(6, "uint64")
    reader_flags: int = stored(9, "uint64")
    writer_flags: int = stored(10, "uint64")
    transaction_file: str = stored(12)
    base_paths: Repeated[BasePath] = stored(18)
    transaction_section_deprecated: int = stored(21, "uint64")
    """Of Lance up to 13, which LanceDB 0.40 has."""
    transaction_section: int = stored(23, "uint64")


class IndexMetadata(Message):
    """One index, or an entry that is kept like one."""

    uuid: Uuid = stored(1)
    name: str = stored(3)
    details: TypedBytes = stored(6)
    base_id: int = stored(9, "uint32")


class IndexSection(Message):
    """All indexes of a version."""

    indices: Repeated[IndexMetadata] = stored(1)


# -- the entry of the MemWAL index


class ShardingField(Message):
    """How one value of a shard is computed."""

    field_id: str = stored(1)
    source_ids: Repeated[int] = stored(2, "int32")
    transform: str = stored(3)
    expression: str = stored(4)
    result_type: str = stored(5)
    parameters: Repeated[Pair] = stored(6)


class ShardingSpec(Message):
    """One way to spread rows over shards."""

    spec_id: int = stored(1, "uint32")
    fields: Repeated[ShardingField] = stored(2)


class Compacted(Message):
    """The last generation of a shard that is in the base."""

    shard_id: Uuid = stored(1)
    generation: int = stored(2, "uint64")


class Catchup(Message):
    """What an index covers of the compacted generations."""

    index_name: str = stored(1)
    compacted: Repeated[Compacted] = stored(2)


class MemWalIndexDetails(Message):
    """The entry of the MemWAL index."""

    snapshot_ts_millis: int = stored(1, "int64")
    num_shards: int = stored(2, "uint32")
    inline_snapshots: bytes = stored(3)
    sharding_specs: Repeated[ShardingSpec] = stored(7)
    maintained_indexes: Repeated[str] = stored(8)
    compacted: Repeated[Compacted] = stored(9)
    index_catchup: Repeated[Catchup] = stored(10)
    writer_defaults: Repeated[Pair] = stored(11)
    maintain_all: bool = stored(12)


# -- the manifest of a shard


class SsTable(Message):
    """One SSTable as the manifest of its shard lists it."""

    generation: int = stored(1, "uint64")
    path: str = stored(2)
    in_memory_bytes: int = stored(3, "uint64")
    physical_rows: int = stored(4, "uint64")
    primary_key_bytes: int = stored(5, "uint64")


class FieldEntry(Message):
    """What a shard stands for."""

    field_id: str = stored(1)
    value: bytes = stored(2)


class ShardManifest(Message):
    """One version of a shard."""

    version: int = stored(1, "uint64")
    writer_epoch: int = stored(2, "uint64")
    replay_after: int = stored(3, "uint64")
    last_seen: int = stored(4, "uint64")
    current_generation: int = stored(6, "uint64")
    sstables: Repeated[SsTable] = stored(8)
    shard_spec_id: int = stored(10, "uint32")
    shard_id: Uuid = stored(11)
    field_entries: Repeated[FieldEntry] = stored(14)
    status: int = stored(15, "int32")
    commit_id: bytes = stored(1001)
    closed_epoch: int = stored(1002, "uint64")
    dropped: int = stored(1003, "uint64")
    wal_only: int = stored(1004, "uint64")
    log_place: int = stored(1005, "uint64")


_CLASSES: Final = message_classes("weir.lance", Message.__subclasses__())


def new(kind: type[M], **values: object) -> M:
    """A message with those values."""
    made: M = _CLASSES[kind.__name__](**values)
    return made


def parse(kind: type[M], data: bytes) -> M:
    """The message in `data`; `DecodeError` for damaged bytes."""
    found: M = _CLASSES[kind.__name__].FromString(bytes(data))
    return found


def read_manifest(raw: bytes, *, path: str) -> Manifest:
    """The Manifest of a version's file; `CorruptEntry` naming `path` for one that is damaged."""
    return _read(Manifest, raw, manifest_offset(raw, path=path), path)


def clear_transaction(manifest: Manifest) -> None:
    """Forget where the transaction is: Lance panics at a place in the bytes of another file."""
    for name in ("transaction_file", "transaction_section_deprecated", "transaction_section"):
        manifest.ClearField(name)


def read_indices(raw: bytes, manifest: Manifest, *, path: str) -> IndexSection:
    """The IndexSection of the same file, empty if there is none; `CorruptEntry` as above."""
    if not manifest.HasField("index_section"):
        return new(IndexSection)
    return _read(IndexSection, raw, manifest.index_section, path)


def _read(kind: type[M], raw: bytes, offset: int, path: str) -> M:
    try:
        return parse(kind, section(raw, offset, path=path))
    except DecodeError as error:
        raise unusable(path, error) from error


def dictionaries(raw: bytes, manifest: Manifest, *, path: str) -> bytes:
    """What a file with a changed manifest must begin with: the values of dictionary columns.

    They may be stored in front of the message, and are named by absolute offset.
    """
    if any(field.HasField("dictionary") for field in manifest.fields):
        return raw[: manifest_offset(raw, path=path)]
    return b""
