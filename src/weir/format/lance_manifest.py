"""Sets field ids and deletions in the manifest of an SSTable that `write_dataset` wrote.

pylance numbers the fields of a new dataset from 0; an SSTable must carry the base table's ids,
since readers pair columns by id. The version-1 manifest is rewritten before the SSTable is
published. The rewrite also sets the deletion vector, which hides all but the last row of a key
(L-2).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from weir.errors import InvalidInput
from weir.format.lance_file import assemble
from weir.format.lance_messages import dictionaries, read_manifest

PK_PAGE_ROWS: Final = 8192
"""Rows per page of the key index. Stored. Never change."""

_BITMAP = 1
_READ_VERSION = 1
_ROARING_COOKIE = 12346
_ARRAY_CONTAINER_MAX = 4096


def deletion_file_name(file_id: int) -> str:
    """Where the deletion vector of an SSTable's one fragment lives, inside the SSTable's folder."""
    return f"_deletions/0-{_READ_VERSION}-{file_id}.bin"


def rewrite_sstable_manifest(
    raw: bytes,
    *,
    field_ids: Mapping[int, int],
    nullable: Collection[int] = (),
    deletion: tuple[int, int] | None = None,
    path: str = "SSTable manifest",
) -> bytes:
    """The manifest with field ids mapped from old to new, and with a deletion vector.

    `field_ids` maps the ids that `write_dataset` gave; an id not in it stays. Fields whose new id
    is in `nullable` become nullable. `deletion` is (file id, rows deleted) of the one fragment; the
    file's name is `deletion_file_name`.
    """
    raw = bytes(raw)
    manifest = read_manifest(raw, path=path)
    _map_ids(manifest, field_ids, set(nullable))
    if deletion is not None:
        if len(manifest.fragments) != 1 or manifest.fragments[0].id != 0:
            raise InvalidInput(
                f"{path} has {len(manifest.fragments)} fragments; an SSTable has one, numbered 0"
            )
        fragment = manifest.fragments[0]
        file_id, num_deleted = deletion
        fragment.deletion_file.file_type = _BITMAP
        fragment.deletion_file.read_version = _READ_VERSION
        fragment.deletion_file.id = file_id
        fragment.deletion_file.num_deleted = num_deleted
    for gone in ("index_section", "transaction_file", "transaction_section"):
        manifest.ClearField(gone)
    before = dictionaries(raw, manifest, path=path)
    return assemble(manifest.SerializeToString(), before=before, footer_of=raw)


def _map_ids(manifest: Any, field_ids: Mapping[int, int], nullable: set[int]) -> None:
    new_ids = [field_ids.get(f.id, f.id) for f in manifest.fields]
    if len(set(new_ids)) != len(new_ids) or min(new_ids, default=0) < 0:
        raise InvalidInput(f"field ids {new_ids} must be distinct and not negative")
    for field, new_id in zip(manifest.fields, new_ids, strict=True):
        field.id = new_id
        if field.parent_id >= 0:
            field.parent_id = field_ids.get(field.parent_id, field.parent_id)
        if new_id in nullable:
            field.nullable = True
    for fragment in manifest.fragments:
        for file in fragment.files:
            file.fields[:] = [field_ids.get(i, i) for i in file.fields]


def encode_deletion_bitmap(offsets: npt.ArrayLike) -> bytes:
    """The deleted row offsets of a fragment as a portable Roaring bitmap."""
    values = np.unique(np.asarray(offsets, dtype=np.int64))
    if len(values) and not 0 <= int(values[0]) <= int(values[-1]) < 2**32:
        raise InvalidInput("a deleted row offset does not fit in 32 bits")
    keys, starts, counts = np.unique(values >> 16, return_index=True, return_counts=True)
    head = np.array([_ROARING_COOKIE, len(keys)], "<u4").tobytes()
    descriptions = np.stack([keys, counts - 1], axis=1).astype("<u2").tobytes()
    bodies = [
        _container((values[start : start + count] & 0xFFFF).astype("<u2"))
        for start, count in zip(starts, counts, strict=True)
    ]
    sizes = np.array([len(body) for body in bodies], np.int64)
    first = len(head) + len(descriptions) + 4 * len(keys)
    positions = (first + np.cumsum(sizes) - sizes).astype("<u4").tobytes()
    return b"".join((head, descriptions, positions, *bodies))


def _container(low: npt.NDArray[np.uint16]) -> bytes:
    if len(low) <= _ARRAY_CONTAINER_MAX:
        return low.tobytes()
    bits = np.zeros(1 << 16, np.bool_)
    bits[low] = True
    return np.packbits(bits, bitorder="little").tobytes()


def pk_index_tables(values: pa.Array | pa.ChunkedArray) -> tuple[pa.Table, pa.Table]:
    """(page_data, page_lookup) of the key index for the keys of all physical rows, in row order.

    Both are stored as Lance files of version 2.0. `values` is what `keys.pk_values` gives.
    """
    if values.null_count:
        raise InvalidInput("a key may not be null")
    dtype = values.type
    rows = pa.table(
        [values, pa.array(np.arange(len(values), dtype=np.uint64))],
        schema=pa.schema([pa.field("values", dtype), pa.field("ids", pa.uint64(), nullable=False)]),
    )
    order = pc.sort_indices(rows, sort_keys=[("values", "ascending"), ("ids", "ascending")])
    page_data = rows.take(order).combine_chunks()
    pages = [
        page_data.column("values").slice(start, PK_PAGE_ROWS)
        for start in range(0, len(values), PK_PAGE_ROWS)
    ]
    schema = pa.schema(
        [
            pa.field("min", dtype),
            pa.field("max", dtype),
            pa.field("null_count", pa.uint32(), nullable=False),
            pa.field("page_idx", pa.uint32(), nullable=False),
        ],
        metadata={b"batch_size": b"%d" % PK_PAGE_ROWS, b"range_partitioned": b"false"},
    )
    columns = [
        pa.array([page[0].as_py() for page in pages], dtype),
        pa.array([page[len(page) - 1].as_py() for page in pages], dtype),
        pa.array([0] * len(pages), pa.uint32()),
        pa.array(range(len(pages)), pa.uint32()),
    ]
    return page_data, pa.table(columns, schema=schema)
