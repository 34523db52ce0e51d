"""A shallow clone on another store: the parent's manifest, its files named by the parent's URI.

pylance's own `shallow_clone` writes through the parent's store: given another bucket or another
kind of store, it puts the clone into the parent's store under a wrong name. The manifest is small
and complete, so weir writes it here, with the same fields pylance uses.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.message import DecodeError

from weir.format.lance_file import assemble, manifest_offset, section, unusable
from weir.format.protobuf import Field, message_classes

# Stored by Lance. Never change a number. Fields not named here are carried over as they are.
_MESSAGES = message_classes(
    "weir.clone_manifest",
    {
        "DataFile": [Field(7, "base_id", "uint32")],
        "DeletionFile": [Field(7, "base_id", "uint32")],
        "Fragment": [
            Field(2, "files", "DataFile", repeated=True),
            Field(3, "deletion_file", "DeletionFile"),
        ],
        "BasePath": [
            Field(1, "id", "uint32"),
            Field(3, "is_dataset_root", "bool"),
            Field(4, "path", "string"),
        ],
        "LanceField": [Field(8, "dictionary", "bytes")],
        "Manifest": [
            Field(1, "fields", "LanceField", repeated=True),
            Field(2, "fragments", "Fragment", repeated=True),
            Field(6, "index_section", "uint64"),
            Field(9, "reader_flags", "uint64"),
            Field(10, "writer_flags", "uint64"),
            Field(12, "transaction_file", "string"),
            Field(18, "base_paths", "BasePath", repeated=True),
            Field(23, "transaction_section", "uint64"),
        ],
        "IndexMetadata": [Field(9, "base_id", "uint32")],
        "IndexSection": [Field(1, "indices", "IndexMetadata", repeated=True)],
    },
)

_BASE_PATHS_FLAG: Final = 16
"""Feature flag of a manifest whose files live in several places. Stored."""


def clone_manifest(raw: bytes, parent_uri: str, *, path: str) -> bytes:
    """The manifest of a clone: files in the parent's own place are now found at `parent_uri`.

    Files that the parent itself borrowed keep their places. `CorruptEntry` names `path`.
    """
    offset = manifest_offset(raw, path=path)
    try:
        manifest = _MESSAGES["Manifest"].FromString(section(raw, offset, path=path))
        indices = _MESSAGES["IndexSection"]()
        if manifest.HasField("index_section"):
            indices.ParseFromString(section(raw, manifest.index_section, path=path))
    except DecodeError as error:
        raise unusable(path, error) from error
    base_id = max((base.id for base in manifest.base_paths), default=-1) + 1
    for fragment in manifest.fragments:
        for file in fragment.files:
            _borrow(file, base_id)
        if fragment.HasField("deletion_file"):
            _borrow(fragment.deletion_file, base_id)
    for index in indices.indices:
        _borrow(index, base_id)
    manifest.base_paths.add(id=base_id, is_dataset_root=True, path=parent_uri)
    manifest.reader_flags |= _BASE_PATHS_FLAG
    manifest.writer_flags |= _BASE_PATHS_FLAG
    manifest.ClearField("transaction_file")
    manifest.ClearField("transaction_section")
    # Dictionary values may be stored in front of the message, by absolute offset: keep them there.
    before = raw[:offset] if any(f.HasField("dictionary") for f in manifest.fields) else b""
    if indices.indices:
        manifest.index_section = len(before)
        body = indices.SerializeToString()
        before += len(body).to_bytes(4, "little") + body
    else:
        manifest.ClearField("index_section")
    return assemble(manifest.SerializeToString(), before=before, footer_of=raw)


def _borrow(message: Any, base_id: int) -> None:
    if not message.HasField("base_id"):
        message.base_id = base_id
