"""`Lake` on pylance: the facade; each verb lives in a module of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

import lance
import pyarrow as pa

from weir.env import SYSTEM, Env
from weir.errors import MissingEntry
from weir.format import paths
from weir.format.base_manifest import BaseManifest, parse_base_manifest
from weir.format.lance_file import version_name
from weir.format.schema import TableSchema
from weir.lake.api import SsTableInfo
from weir.lake.base import LanceBase
from weir.lake.cache import ByteCache
from weir.lake.datasets import Datasets
from weir.lake.sstable_read import LanceSsTable, SsTableCaches
from weir.lake.sstable_write import AfterWrite, SsTableWriter
from weir.store.api import ObjectMissing, Store
from weir.types import Version

_BASES_LIMIT: Final = 16
"""Versions of the base kept open at once."""


class PylanceLake:
    """The Lance side of one table. Safe to share between threads.

    `storage_options` is what pylance takes; `store` is rooted at the same place and serves the
    files that Lance has no call for.
    """

    def __init__(
        self,
        uri: str,
        storage_options: Mapping[str, str] | None,
        store: Store,
        *,
        env: Env = SYSTEM,
    ) -> None:
        self.datasets = Datasets(uri, storage_options, env)
        self.uri = self.datasets.uri
        self.store = store
        self._writer = SsTableWriter(self.uri, self.datasets.storage_options, store, env)
        self._caches = SsTableCaches(env)
        self._bases: ByteCache[LanceBase] = ByteCache(_BASES_LIMIT, env)

    def __repr__(self) -> str:
        return f"PylanceLake({self.uri})"

    def open_base(self, version: int | None = None) -> LanceBase:
        """The latest version (one listing), or that one (nothing when it is known)."""
        if version is not None:
            known = self._bases.get(version)
            if known is not None:
                return known
        dataset = self.datasets.latest() if version is None else self.datasets.at(version)
        return self._bases.get_or_make(dataset.version, lambda: self._base(dataset), lambda _: 1)

    def _base(self, dataset: lance.LanceDataset) -> LanceBase:
        return LanceBase(dataset, lambda: self._manifest(dataset.version))

    def _manifest(self, version: int) -> BaseManifest:
        inverted = f"_versions/{version_name(Version(version))}"
        # Tables made by old releases of Lance have plain names.
        for path in (inverted, f"_versions/{version}.manifest"):
            try:
                return parse_base_manifest(self.store.get(path).data, path=path)
            except ObjectMissing:
                continue
        raise MissingEntry(
            f"{self.uri}/{inverted} is gone: version {version} was cleaned up; read the table again"
        )

    def write_sstable(
        self,
        shard: UUID,
        name: str,
        batches: Sequence[pa.RecordBatch],
        schema: TableSchema,
        *,
        after_write: AfterWrite | None = None,
    ) -> SsTableInfo:
        """Write a complete SSTable directory; publish nothing (M-4).

        `batches` are in `schema.wal` shape and put order; the last row of a key wins.
        `after_write` may build indexes on the finished dataset.
        """
        return self._writer.write(
            paths.sstable_dir(shard, name),
            batches,
            schema,
            data_storage_version=self._storage_version(),
            after_write=after_write,
        )

    def _storage_version(self) -> str:
        # Fixed when the base was made; any version of it tells.
        return self.datasets.known().data_storage_version

    def open_sstable(self, shard: UUID, name: str, schema: TableSchema) -> LanceSsTable:
        """Open for reading; rows come out in the shape of `schema`, matched by field id."""
        return LanceSsTable(
            self.datasets.sstable(shard, name),
            paths.sstable_dir(shard, name),
            schema,
            self.store,
            self._caches,
        )
