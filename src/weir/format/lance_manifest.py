"""Sets field ids in the manifest of an SSTable that `write_dataset` wrote, and makes its key index.

pylance numbers the fields of a new dataset from 0; an SSTable must carry the base table's ids,
since readers pair columns by id. The version-1 manifest is rewritten before the SSTable is
published.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.errors import InvalidInput
from weir.format.lance_file import assemble
from weir.format.lance_messages import Manifest, clear_transaction, dictionaries, read_manifest

PK_PAGE_ROWS: Final = 8192
"""Rows per page of the key index. Stored. Never change."""


def rewrite_sstable_manifest(
    raw: bytes, *, field_ids: Mapping[int, int], path: str = "SSTable manifest"
) -> bytes:
    """The manifest with field ids mapped from old to new.

    `field_ids` maps the ids that `write_dataset` gave; an id not in it stays.
    """
    raw = bytes(raw)
    manifest = read_manifest(raw, path=path)
    _map_ids(manifest, field_ids)
    manifest.ClearField("index_section")
    clear_transaction(manifest)
    before = dictionaries(raw, manifest, path=path)
    return assemble(manifest.SerializeToString(), before=before, footer_of=raw)


def _map_ids(manifest: Manifest, field_ids: Mapping[int, int]) -> None:
    new_ids = [field_ids.get(f.id, f.id) for f in manifest.fields]
    if len(set(new_ids)) != len(new_ids) or min(new_ids, default=0) < 0:
        raise InvalidInput(f"field ids {new_ids} must be distinct and not negative")
    for field, new_id in zip(manifest.fields, new_ids, strict=True):
        field.id = new_id
        if field.parent_id >= 0:
            field.parent_id = field_ids.get(field.parent_id, field.parent_id)
    for fragment in manifest.fragments:
        for file in fragment.files:
            file.fields[:] = [field_ids.get(i, i) for i in file.fields]


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
