"""Lance's protobuf messages, as far as weir reads or changes them: declared here and nowhere else.

Protobuf carries fields that are not named here along unchanged, so a message that weir rewrites
keeps what a later Lance put into it.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError

from weir.format.lance_file import manifest_offset, section, unusable
from weir.format.protobuf import Field, message_classes

# Stored by Lance. Never change a number. Those from 1001 on are weir's own: add one.
MESSAGES = message_classes(
    "weir.lance",
    {
        "Uuid": [Field(1, "uuid", "bytes")],
        "Pair": [Field(1, "key", "string"), Field(2, "value", "string")],
        "Metadata": [Field(1, "key", "string"), Field(2, "value", "bytes")],
        "Any": [Field(1, "type_url", "string"), Field(2, "value", "bytes")],
        # -- a version of a dataset
        "LanceField": [
            Field(2, "name", "string"),
            Field(3, "id", "int32"),
            Field(4, "parent_id", "int32"),
            Field(6, "nullable", "bool"),
            Field(8, "dictionary", "bytes"),
            Field(10, "metadata", "Metadata", repeated=True),
        ],
        "DataFile": [
            Field(1, "path", "string"),
            Field(2, "fields", "int32", repeated=True, packed=True),
            Field(7, "base_id", "uint32"),
        ],
        "DeletionFile": [
            Field(1, "file_type", "int32"),
            Field(2, "read_version", "uint64"),
            Field(3, "id", "uint64"),
            Field(4, "num_deleted", "uint64"),
            Field(7, "base_id", "uint32"),
        ],
        "Fragment": [
            Field(1, "id", "uint64"),
            Field(2, "files", "DataFile", repeated=True),
            Field(3, "deletion_file", "DeletionFile"),
        ],
        "BasePath": [
            Field(1, "id", "uint32"),
            Field(3, "is_dataset_root", "bool"),
            Field(4, "path", "string"),
        ],
        "Manifest": [
            Field(1, "fields", "LanceField", repeated=True),
            Field(2, "fragments", "Fragment", repeated=True),
            Field(3, "version", "uint64"),
            Field(6, "index_section", "uint64"),
            Field(9, "reader_flags", "uint64"),
            Field(10, "writer_flags", "uint64"),
            Field(12, "transaction_file", "string"),
            Field(18, "base_paths", "BasePath", repeated=True),
            Field(23, "transaction_section", "uint64"),
        ],
        "IndexMetadata": [
            Field(1, "uuid", "Uuid"),
            Field(3, "name", "string"),
            Field(6, "details", "Any"),
            Field(9, "base_id", "uint32"),
        ],
        "IndexSection": [Field(1, "indices", "IndexMetadata", repeated=True)],
        # -- the entry of the MemWAL index
        "ShardingField": [
            Field(1, "field_id", "string"),
            Field(2, "source_ids", "int32", repeated=True, packed=True),
            Field(3, "transform", "string"),
            Field(4, "expression", "string"),
            Field(5, "result_type", "string"),
            Field(6, "parameters", "Pair", repeated=True),
        ],
        "ShardingSpec": [
            Field(1, "spec_id", "uint32"),
            Field(2, "fields", "ShardingField", repeated=True),
        ],
        "Compacted": [Field(1, "shard_id", "Uuid"), Field(2, "generation", "uint64")],
        "Catchup": [
            Field(1, "index_name", "string"),
            Field(2, "compacted", "Compacted", repeated=True),
        ],
        "MemWalIndexDetails": [
            Field(1, "snapshot_ts_millis", "int64"),
            Field(2, "num_shards", "uint32"),
            Field(3, "inline_snapshots", "bytes"),
            Field(7, "sharding_specs", "ShardingSpec", repeated=True),
            Field(8, "maintained_indexes", "string", repeated=True),
            Field(9, "compacted", "Compacted", repeated=True),
            Field(10, "index_catchup", "Catchup", repeated=True),
            Field(11, "writer_defaults", "Pair", repeated=True),
            Field(12, "maintain_all", "bool"),
        ],
        # -- the manifest of a shard
        "SsTable": [
            Field(1, "generation", "uint64"),
            Field(2, "path", "string"),
            Field(3, "in_memory_bytes", "uint64"),
            Field(4, "physical_rows", "uint64"),
            Field(5, "primary_key_bytes", "uint64"),
        ],
        "FieldEntry": [Field(1, "field_id", "string"), Field(2, "value", "bytes")],
        "ShardManifest": [
            Field(1, "version", "uint64"),
            Field(2, "writer_epoch", "uint64"),
            Field(3, "replay_after", "uint64"),
            Field(4, "last_seen", "uint64"),
            Field(6, "current_generation", "uint64"),
            Field(8, "sstables", "SsTable", repeated=True),
            Field(10, "shard_spec_id", "uint32"),
            Field(11, "shard_id", "Uuid"),
            Field(14, "field_entries", "FieldEntry", repeated=True),
            Field(15, "status", "int32"),
            Field(1001, "commit_id", "bytes"),
            Field(1002, "closed_epoch", "uint64"),
            Field(1003, "dropped", "uint64"),
            Field(1004, "wal_only", "uint64"),
            Field(1005, "log_place", "uint64"),
        ],
    },
)


def read_manifest(raw: bytes, *, path: str) -> Any:
    """The Manifest of a version's file; `CorruptEntry` naming `path` for one that is damaged."""
    return _read("Manifest", raw, manifest_offset(raw, path=path), path)


def read_indices(raw: bytes, manifest: Any, *, path: str) -> Any:
    """The IndexSection of the same file, empty if there is none; `CorruptEntry` as above."""
    if not manifest.HasField("index_section"):
        return MESSAGES["IndexSection"]()
    return _read("IndexSection", raw, manifest.index_section, path)


def _read(name: str, raw: bytes, offset: int, path: str) -> Any:
    try:
        return MESSAGES[name].FromString(section(raw, offset, path=path))
    except DecodeError as error:
        raise unusable(path, error) from error


def dictionaries(raw: bytes, manifest: Any, *, path: str) -> bytes:
    """What a file with a changed manifest must begin with: the values of dictionary columns.

    They may be stored in front of the message, and are named by absolute offset.
    """
    if any(field.HasField("dictionary") for field in manifest.fields):
        return raw[: manifest_offset(raw, path=path)]
    return b""
