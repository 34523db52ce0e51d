"""Which files a version of the base names, and which other tables it shares files with."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from google.protobuf.message import DecodeError

from weir.format import paths
from weir.format.base_manifest import MEM_WAL_INDEX
from weir.format.lance_file import (
    manifest_offset,
    parse_version_name,
    section,
    unusable,
    version_name,
)
from weir.format.protobuf import Field, message_classes
from weir.store.api import Store
from weir.types import Version

# Stored by Lance. Never change a number.
_MESSAGES = message_classes(
    "weir.borrowed",
    {
        "Uuid": [Field(1, "uuid", "bytes")],
        "DataFile": [Field(1, "path", "string"), Field(7, "base_id", "uint32")],
        "DeletionFile": [
            Field(2, "read_version", "uint64"),
            Field(3, "id", "uint64"),
            Field(7, "base_id", "uint32"),
        ],
        "Fragment": [
            Field(1, "id", "uint64"),
            Field(2, "files", "DataFile", repeated=True),
            Field(3, "deletion_file", "DeletionFile"),
        ],
        "BasePath": [Field(1, "id", "uint32"), Field(4, "path", "string")],
        "Manifest": [
            Field(2, "fragments", "Fragment", repeated=True),
            Field(6, "index_section", "uint64"),
            Field(18, "base_paths", "BasePath", repeated=True),
        ],
        "IndexMetadata": [
            Field(1, "uuid", "Uuid"),
            Field(3, "name", "string"),
            Field(9, "base_id", "uint32"),
        ],
        "IndexSection": [Field(1, "indices", "IndexMetadata", repeated=True)],
    },
)


def borrowed_places(store: Store, version: int | None = None) -> set[str]:
    """URIs of other tables whose files `version` of this table names, or any version by default.

    One listing, and one read per version. A version that cannot be read is an error: it may use
    anything (G-11).
    """
    used: set[str] = set()
    _, files = store.list_folder(paths.VERSIONS)
    for meta in files:
        number = parse_version_name(meta.path.rpartition("/")[2])
        if number is not None and version in (None, number):
            used |= _places(store.get(meta.path).data, f"{store.uri}/{meta.path}")
    return used


def named_files(store: Store, version: Version) -> Callable[[str], bool]:
    """Whether that version names the object at a path in Lance's folders. One read.

    Other versions, and writes that were never committed, have files there too.
    """
    place = paths.base_version_path(version_name(version))
    raw, path = store.get(place).data, f"{store.uri}/{place}"
    named: set[str] = set()
    try:
        manifest = _MESSAGES["Manifest"].FromString(
            section(raw, manifest_offset(raw, path=path), path=path)
        )
        for fragment in manifest.fragments:
            # Beside a file of rows, Lance may keep a folder of that name for what does not fit.
            named |= {f"data/{file.path.removesuffix('.lance')}" for file in fragment.files}
            if fragment.HasField("deletion_file"):
                deleted = fragment.deletion_file
                named.add(f"_deletions/{fragment.id}-{deleted.read_version}-{deleted.id}")
        if manifest.HasField("index_section"):
            indices = _MESSAGES["IndexSection"].FromString(
                section(raw, manifest.index_section, path=path)
            )
            named |= {f"_indices/{UUID(bytes=index.uuid.uuid)}" for index in indices.indices}
    except (DecodeError, ValueError) as error:
        raise unusable(path, error) from error
    return lambda file: "/".join(file.split("/")[:2]).partition(".")[0] in named


def _places(raw: bytes, path: str) -> set[str]:
    try:
        manifest = _MESSAGES["Manifest"].FromString(
            section(raw, manifest_offset(raw, path=path), path=path)
        )
        ids = {file.base_id for f in manifest.fragments for file in f.files if _borrows(file)}
        ids |= {
            fragment.deletion_file.base_id
            for fragment in manifest.fragments
            if fragment.HasField("deletion_file") and _borrows(fragment.deletion_file)
        }
        if manifest.HasField("index_section"):
            indices = _MESSAGES["IndexSection"].FromString(
                section(raw, manifest.index_section, path=path)
            )
            # The MemWAL entry has no files.
            ids |= {
                index.base_id
                for index in indices.indices
                if _borrows(index) and index.name != MEM_WAL_INDEX
            }
    except DecodeError as error:
        raise unusable(path, error) from error
    return {base.path for base in manifest.base_paths if base.id in ids}


def _borrows(message: object) -> bool:
    return bool(message.HasField("base_id"))  # type: ignore[attr-defined]
