"""A shallow clone on another store: the parent's manifest, its files named by the parent's URI.

pylance's own `shallow_clone` writes through the parent's store: given another bucket or another
kind of store, it puts the clone into the parent's store under a wrong name. The manifest is small
and complete, so weir writes it here, with the same fields pylance uses.
"""

from __future__ import annotations

from typing import Final

from weir.format.lance_file import assemble
from weir.format.lance_messages import (
    DataFile,
    DeletionFile,
    IndexMetadata,
    clear_transaction,
    dictionaries,
    read_indices,
    read_manifest,
)

_BASE_PATHS_FLAG: Final = 16
"""Feature flag of a manifest whose files live in several places. Stored."""


def clone_manifest(raw: bytes, parent_uri: str, *, path: str) -> bytes:
    """The manifest of a clone: files in the parent's own place are now found at `parent_uri`.

    Files that the parent itself borrowed keep their places. `CorruptEntry` names `path`.
    """
    manifest = read_manifest(raw, path=path)
    indices = read_indices(raw, manifest, path=path)
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
    clear_transaction(manifest)
    before = dictionaries(raw, manifest, path=path)
    if indices.indices:
        manifest.index_section = len(before)
        body = indices.SerializeToString()
        before += len(body).to_bytes(4, "little") + body
    else:
        manifest.ClearField("index_section")
    return assemble(manifest.SerializeToString(), before=before, footer_of=raw)


def _borrow(message: DataFile | DeletionFile | IndexMetadata, base_id: int) -> None:
    if not message.HasField("base_id"):
        message.base_id = base_id
