"""Writing one SSTable: a Lance dataset with the base table's field ids, and its side files.

Keeps
  M-4  the directory is complete when `write_sstable` returns, and nothing names it yet
  L-2  of the rows of one key only the last is written
  F-17 a directory is claimed by creating one object in it: a name drawn twice is used once
A crash leaves an orphan (G-4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import lance
import numpy as np
import pyarrow as pa
from lance.file import LanceFileWriter

from weir.env import Env
from weir.errors import InvalidInput, StoreError
from weir.format import paths
from weir.format.keys import pk_values
from weir.format.lance_file import version_name
from weir.format.lance_manifest import pk_index_tables, rewrite_sstable_manifest
from weir.format.nested import children
from weir.format.schema import FIELD_ID, TOMBSTONE_FIELD, TableSchema
from weir.keys.keyset import newest_rows
from weir.lake.api import SsTableInfo
from weir.lake.lance_errors import lance_errors
from weir.lake.whole_buffers import for_lance
from weir.store.api import ObjectExists, Store
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

        Three objects, and two more with a key; two requests more when the table has lost a column.
        Once the first object exists, the others are written in parallel. `StoreError` when the name
        is taken, with nothing written: choose another.
        """
        rows = _table(batches, schema)
        key_columns = [rows.column(name) for name in schema.primary_key]

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

        def write_key_index() -> None:
            self._write_key_index(path, *pk_index_tables(pk_values(rows, schema.primary_key)))

        self._claim(path)
        jobs = [write_data, write_key_index] if key_columns else [write_data]
        self._env.threads.map(lambda job: job(), jobs, workers=len(jobs))
        if self._env.pace is not None:
            self._env.pace.charge(2 * len(jobs), rows.nbytes)  # written in no session
        self._number_fields(path, schema)
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

    def _claim(self, path: str) -> None:
        """Take the directory: from here on no other writer writes below `path` (F-17).

        The claim is random, or two writers that drew one name could both take it for theirs.
        """
        try:
            # guard: F-17 test_process
            self._store.put_if_absent(f"{path}/{paths.SSTABLE_CLAIM}", self._env.new_id().bytes)
        except ObjectExists:
            raise StoreError(
                f"{self._uri}/{path}: another SSTable already has this name. Nothing was written;"
                " try again with a new name"
            ) from None

    def _write_key_index(self, path: str, page_data: pa.Table, page_lookup: pa.Table) -> None:
        """Write `_pk_index/`, by which native readers look keys up."""
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

    def _number_fields(self, path: str, schema: TableSchema) -> None:
        """Give the dataset the base table's field ids.

        `write_dataset` numbers fields from 0 in order; mostly these are the right ids. No reader
        has seen the manifest, so it may be replaced.
        """
        ids = list(_field_ids(schema))
        wanted = {given: base_id for given, base_id in enumerate(ids) if given != base_id}
        if not wanted:
            return
        manifest_path = f"{path}/{paths.base_version_path(version_name(Version(1)))}"
        raw = self._store.get(manifest_path).data
        numbered = rewrite_sstable_manifest(raw, field_ids=wanted, path=manifest_path)
        self._store.put(manifest_path, numbered)


def _table(batches: Sequence[pa.RecordBatch], schema: TableSchema) -> pa.Table:
    """The newest row of each key, or all rows without a key, as `write_dataset` wants them:
    without field ids, which it would store as text."""
    if not any(batch.num_rows for batch in batches):
        raise InvalidInput("an SSTable needs at least one row; there is nothing to flush")
    fields = [field.with_nullable(schema.wal.field(field.name).nullable) for field in schema.plain]
    target = pa.schema([*fields, TOMBSTONE_FIELD], metadata=schema.arrow.metadata)
    rows = pa.Table.from_batches(batches)
    if len(batches) > 1 and _is_at_most(_COMBINED_BYTES, batches):
        rows = rows.combine_chunks()
    if schema.primary_key:
        newest = newest_rows(pk_values(rows, schema.primary_key))
        # guard: L-2 test_l2_only_the_newest_row_of_a_key_is_written
        if len(newest) < rows.num_rows:
            stays = np.zeros(rows.num_rows, np.bool_)
            stays[newest] = True
            rows = rows.filter(pa.array(stays))
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
    inside = children(field.type)
    if pa.types.is_map(field.type):
        # Lance numbers the entries struct too, but Arrow has no place for that id. The struct is
        # created together with its key, and its id comes right before the key's.
        yield int(inside[0].metadata[FIELD_ID]) - 1
    for child in inside:
        if child.metadata and FIELD_ID in child.metadata:
            yield from _ids(child)
