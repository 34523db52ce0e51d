"""Which files a version of the base names, and which other tables it shares files with."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from weir.format import paths
from weir.format.base_manifest import MEM_WAL_INDEX
from weir.format.lance_file import parse_version_name, unusable, version_name
from weir.format.lance_messages import read_indices, read_manifest
from weir.store.api import Store
from weir.types import Version


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
    manifest = read_manifest(raw, path=path)
    indices = read_indices(raw, manifest, path=path)
    named: set[str] = set()
    for fragment in manifest.fragments:
        # Beside a file of rows, Lance may keep a folder of that name for what does not fit.
        named |= {f"data/{file.path.removesuffix('.lance')}" for file in fragment.files}
        if fragment.HasField("deletion_file"):
            deleted = fragment.deletion_file
            named.add(f"_deletions/{fragment.id}-{deleted.read_version}-{deleted.id}")
    try:
        named |= {f"_indices/{UUID(bytes=index.uuid.uuid)}" for index in indices.indices}
    except ValueError as error:
        raise unusable(path, error) from error
    return lambda file: "/".join(file.split("/")[:2]).partition(".")[0] in named


def _places(raw: bytes, path: str) -> set[str]:
    manifest = read_manifest(raw, path=path)
    indices = read_indices(raw, manifest, path=path)
    ids = {file.base_id for f in manifest.fragments for file in f.files if _borrows(file)}
    ids |= {
        fragment.deletion_file.base_id
        for fragment in manifest.fragments
        if fragment.HasField("deletion_file") and _borrows(fragment.deletion_file)
    }
    # The MemWAL entry has no files.
    ids |= {
        index.base_id
        for index in indices.indices
        if _borrows(index) and index.name != MEM_WAL_INDEX
    }
    return {base.path for base in manifest.base_paths if base.id in ids}


def _borrows(message: object) -> bool:
    return bool(message.HasField("base_id"))  # type: ignore[attr-defined]
