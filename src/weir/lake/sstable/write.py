"""Writing one SSTable: a Lance dataset with the base table's field ids, and its side files.

Keeps
  M-4  the directory is complete when `write_sstable` returns, and nothing names it yet
  L-2  a deletion vector hides all but the last row of each key
  F-17 a directory is claimed by creating its Bloom filter: a name drawn twice is used once
A crash leaves an orphan (G-4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from lance.file import LanceFileWriter

from weir.env import Env
from weir.errors import InvalidInput, StoreError
from weir.format import paths
from weir.format.bloom import FULL, USEFUL_KEYS, BloomFilter
from weir.format.keys import pk_values
from weir.format.lance_file import version_name
from weir.format.lance_manifest import (
    deletion_file_name,
    encode_deletion_bitmap,
    pk_index_tables,
    rewrite_sstable_manifest,
)
from weir.format.schema import FIELD_ID, TOMBSTONE_FIELD, TableSchema
from weir.lake.api import SsTableInfo
from weir.lake.lance_errors import lance_errors
from weir.lake.whole_buffers import for_lance
from weir.store.api import ObjectExists, Store, put_new
from weir.types import Version

AfterWrite = Callable[[lance.LanceDataset], None]
"""Called with the finished dataset, before any reader can see it, to build its indexes."""

_COMBINED_BYTES = 64 << 20
"""Batches up to this total size are copied into one first: Lance takes 10 ms of processor time for
100 000 rows in one piece and 16 ms in a hundred; the copy takes 0.2 ms. A larger copy would cost
too much memory."""
_PK_INDEX_VERSION = "2.0"  # Stored: pylance opens the key index as this file version.


class SsTableWriter:
    """Writes the SSTables of one table. Safe to share between threads."""

    def __init__(
        self, uri: str, storage_options: dict[str, str] | None, store: Store, env: Env
    ) -> None:
        self._uri = uri
        self._storage_options = storage_options
        self._store = store
        self._env = env

    def write(
        self,
        path: str,
        batches: Sequence[pa.RecordBatch],
        schema: TableSchema,
        *,
        data_storage_version: str,
        after_write: AfterWrite | None = None,
    ) -> SsTableInfo:
        """Write the complete directory `path` (relative to the table).

        Three objects, and three more with a key; one to three more when a key repeats or the table
        has lost a column. Once the first object exists, the others are written in parallel.
        `StoreError` when the name is taken, with nothing written: choose another.
        """
        rows = _table(batches, schema)
        key_columns = [rows.column(name) for name in schema.primary_key]
        superseded = np.zeros(0, np.uint64)

        def write_data() -> None:
            with lance_errors(f"writing SSTable {self._uri}/{path}"):
                lance.write_dataset(
                    rows,
                    f"{self._uri}/{path}",
                    storage_options=self._storage_options,
                    data_storage_version=cast("Any", data_storage_version),
                    # One fragment: row addresses are plain row numbers.
                    max_rows_per_file=max(rows.num_rows, 1),
                )

        def write_filter() -> None:
            bloom = BloomFilter()
            bloom.insert(key_columns)
            self._store.put(f"{path}/{paths.BLOOM_FILTER}", bloom.to_bytes())

        def write_key_index() -> None:
            nonlocal superseded
            index = pk_index_tables(pk_values(rows, schema.primary_key))
            superseded = self._write_key_index(path, *index)

        self._claim(path, FULL if key_columns else BloomFilter().to_bytes())
        jobs = [write_data, write_key_index] if key_columns else [write_data]
        if key_columns and rows.num_rows <= USEFUL_KEYS:
            jobs.append(write_filter)
        self._env.threads.map(lambda job: job(), jobs, workers=len(jobs))
        if self._env.pace is not None:
            self._env.pace.charge(2 * len(jobs), rows.nbytes)  # written in no session
        self._finish_manifest(path, schema, superseded)
        if after_write is not None:
            with lance_errors(f"indexing SSTable {self._uri}/{path}"):
                after_write(
                    lance.dataset(f"{self._uri}/{path}", storage_options=self._storage_options)
                )
        return SsTableInfo(
            rows=rows.num_rows,
            in_memory_bytes=rows.nbytes,
            primary_key_bytes=sum(c.nbytes for c in key_columns) if key_columns else None,
        )

    def _claim(self, path: str, first_filter: bytes) -> None:
        """Create the Bloom filter: from here on no other writer writes below `path` (F-17).

        With a key it is one that answers 'perhaps' to everything. The filter of the keys replaces
        it later, if one is useful: hashing takes 55 ns a key, for which the data need not wait.
        """
        try:
            # guard: F-17 test_process
            self._store.put_if_absent(f"{path}/{paths.BLOOM_FILTER}", first_filter)
        except ObjectExists:
            raise StoreError(
                f"{self._uri}/{path}: another SSTable already has this name. Nothing was written;"
                " try again with a new name"
            ) from None

    def _write_key_index(
        self, path: str, page_data: pa.Table, page_lookup: pa.Table
    ) -> npt.NDArray[np.uint64]:
        """Write `_pk_index/` and return the rows that a later row of the same key replaces."""
        for name, table in ((paths.PK_PAGE_DATA, page_data), (paths.PK_PAGE_LOOKUP, page_lookup)):
            with (
                lance_errors(f"writing {self._uri}/{path}/{name}"),
                LanceFileWriter(
                    f"{self._uri}/{path}/{name}",
                    table.schema,
                    version=_PK_INDEX_VERSION,
                    storage_options=self._storage_options,
                ) as writer,
            ):
                writer.write_batch(table)
                # `LanceFileWriter` drops the metadata of the schema.
                for key, value in (table.schema.metadata or {}).items():
                    writer.add_schema_metadata(key.decode(), value.decode())
        keys, ids = (page_data.column(i).combine_chunks() for i in range(2))
        if len(keys) < 2:
            return np.zeros(0, np.uint64)
        is_replaced = pc.equal(keys.slice(0, len(keys) - 1), keys.slice(1))
        replaced: npt.NDArray[np.uint64] = ids.slice(0, len(ids) - 1).filter(is_replaced).to_numpy()
        return replaced

    def _finish_manifest(
        self, path: str, schema: TableSchema, superseded: npt.NDArray[np.uint64]
    ) -> None:
        """Give the dataset the base table's field ids and its deletion vector.

        `write_dataset` numbers fields from 0 in order. If those ids are right and no key repeats,
        the dataset is already finished. No reader has seen the manifest, so it may be replaced.
        """
        ids = list(_field_ids(schema))
        wanted = {given: base_id for given, base_id in enumerate(ids) if given != base_id}
        if not wanted and len(superseded) == 0:
            return
        deletion = None
        if len(superseded):
            file_id = self._env.random.getrandbits(63)
            vector = encode_deletion_bitmap(superseded)
            put_new(self._store, f"{path}/{deletion_file_name(file_id)}", vector)
            deletion = (file_id, len(superseded))
        manifest_path = f"{path}/{paths.base_version_path(version_name(Version(1)))}"
        raw = self._store.get(manifest_path).data
        self._store.put(
            manifest_path,
            rewrite_sstable_manifest(raw, field_ids=wanted, deletion=deletion, path=manifest_path),
        )


def _table(batches: Sequence[pa.RecordBatch], schema: TableSchema) -> pa.Table:
    """The rows as `write_dataset` wants them: without field ids, which it would store as text."""
    if not any(batch.num_rows for batch in batches):
        raise InvalidInput("an SSTable needs at least one row; there is nothing to flush")
    fields = [field.with_nullable(schema.wal.field(field.name).nullable) for field in schema.plain]
    target = pa.schema([*fields, TOMBSTONE_FIELD], metadata=schema.arrow.metadata)
    rows = pa.Table.from_batches(batches)
    if len(batches) > 1 and _is_at_most(_COMBINED_BYTES, batches):
        rows = rows.combine_chunks()
    return pa.Table.from_arrays(for_lance(rows).columns, schema=target)


def _is_at_most(limit: int, batches: Sequence[pa.RecordBatch]) -> bool:
    # Buffer sizes are an upper bound on the size of the rows, and twelve times faster to get: 3.5
    # ms for 8,000 batches, where an exact count takes 42 ms, more than all else in a flush.
    held = sum(batch.get_total_buffer_size() for batch in batches)
    return held <= limit or int(pa.Table.from_batches(batches).nbytes) <= limit


def _field_ids(schema: TableSchema) -> Iterator[int]:
    """The base's field ids, parents before children, then the one of `_tombstone`."""
    for field in schema.arrow:
        yield from _ids(field)
    yield schema.max_field_id + 1


def _ids(field: pa.Field) -> Iterator[int]:
    yield int(field.metadata[FIELD_ID])
    dtype = field.type
    if pa.types.is_map(dtype):
        # Lance numbers the entries struct too, but Arrow has no place for that id. The struct is
        # created together with its key, and its id comes right before the key's.
        yield int(dtype.key_field.metadata[FIELD_ID]) - 1
        children = [dtype.key_field, dtype.item_field]
    elif pa.types.is_struct(dtype):
        children = [dtype.field(i) for i in range(dtype.num_fields)]
    elif dtype.num_fields == 1:
        children = [dtype.value_field]
    else:
        children = []
    for child in children:
        if child.metadata and FIELD_ID in child.metadata:
            yield from _ids(child)
