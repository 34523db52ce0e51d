"""`Lake` on pylance: opens the base and SSTables; the other verbs are inherited."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final
from uuid import UUID

import pyarrow as pa

from weir.env import SYSTEM, Env
from weir.format import paths
from weir.format.base_manifest import MemWalDetails, read_mem_wal
from weir.format.lance_file import version_name
from weir.format.schema import TableSchema
from weir.lake.api import SsTableInfo
from weir.lake.base.columns import Columns
from weir.lake.base.fold_commit import Folds
from weir.lake.base.indexes import Indexes
from weir.lake.base.versions import Versions
from weir.lake.base.view import LanceBase
from weir.lake.cache import ByteCache
from weir.lake.datasets import Datasets, expired
from weir.lake.files import FileLookups
from weir.lake.manifest.mem_wal import MemWalEntry
from weir.lake.manifest.shared_files import borrowed_places
from weir.lake.shared import SharedDataset
from weir.lake.sstable.read import LanceSsTable
from weir.lake.sstable.write import AfterWrite, SsTableWriter
from weir.store.api import ObjectMissing, Store
from weir.types import Version

_BASES_LIMIT: Final = 16
"""Versions of the base kept open at once."""
_SSTABLES_LIMIT: Final = 256
"""SSTables kept open at once; a handle holds a manifest, its caches are bounded separately."""


class PylanceLake(Versions, Folds, MemWalEntry, Indexes, Columns):
    """The Lance side of one table. Safe to share between threads.

    `storage_options` are pylance's; `store` is rooted at the same place and serves the files that
    Lance has no call for. `agree` raises for a place whose files the base may not name.
    """

    is_lance = True
    datasets: Datasets

    def __init__(
        self,
        uri: str,
        storage_options: Mapping[str, str] | None,
        store: Store,
        *,
        env: Env = SYSTEM,
        agree: Callable[[str], None] | None = None,
    ) -> None:
        self._agree = agree
        self._agreed: set[str] = set()
        self.datasets = Datasets(uri, storage_options, env, self._require_places)
        self.uri = self.datasets.uri
        self.store = store
        self._writer = SsTableWriter(self.uri, self.datasets.storage_options, store, env)
        self._lookups = FileLookups(env)
        if env.pace is not None:
            env.pace.watch(self.datasets)
        self._bases: ByteCache[LanceBase] = ByteCache(_BASES_LIMIT, env, "bases")
        self._sstables: ByteCache[LanceSsTable] = ByteCache(_SSTABLES_LIMIT, env, "sstables")

    def __repr__(self) -> str:
        return f"PylanceLake({self.uri})"

    def ask_before_changes(self, ask: Callable[[], object]) -> None:
        """See `Lake`."""
        self.datasets.before_changes = ask

    def _require_places(self, version: int) -> None:
        """Check each place whose files this version names, once per place (G-13)."""
        if self._agree is None:
            return
        # guard: G-13 test_inside_the_table
        for place in borrowed_places(self.store, version) - self._agreed:
            self._agree(place)
            self._agreed.add(place)

    def open_base(self, version: int | None = None) -> LanceBase:
        """See `Lake`."""
        if version is not None:
            known = self._bases.get(version)
            if known is not None:
                return known
        dataset = self.datasets.latest() if version is None else self.datasets.at(version)
        return self._bases.get_or_make(dataset.version, lambda: self._base(dataset), lambda _: 1)

    def _base(self, dataset: SharedDataset) -> LanceBase:
        return LanceBase(dataset, lambda: self.mem_wal_at(dataset.version), self._lookups)

    def mem_wal_at(self, version: int) -> MemWalDetails | None:
        """See `Lake`."""
        inverted = paths.base_version_path(version_name(Version(version)))
        # Tables made by old releases of Lance have plain names.
        for path in (inverted, paths.base_version_path(f"{version}.manifest")):
            try:
                uri = f"{self.store.uri}/{path}"
                return read_mem_wal(self.store.get(path).data, path=uri)
            except ObjectMissing:
                continue
        raise expired(self.uri, version)

    def write_sstable(
        self,
        shard: UUID,
        name: str,
        batches: Sequence[pa.RecordBatch],
        schema: TableSchema,
        *,
        after_write: AfterWrite | None = None,
    ) -> SsTableInfo:
        """See `Lake`."""
        return self._writer.write(
            paths.sstable_dir(shard, name),
            batches,
            schema,
            data_storage_version=self._storage_version(),
            after_write=after_write,
        )

    def _storage_version(self) -> str:
        # Fixed when the base was made, so any version of it will do.
        return self.datasets.known().data_storage_version

    def open_sstable(self, shard: UUID, name: str, schema: TableSchema) -> LanceSsTable:
        """See `Lake`."""
        path = paths.sstable_dir(shard, name)
        known = self._sstables.get(path)
        if known is not None and (known.schema is schema or known.schema == schema):
            return known
        dataset = self.datasets.open_sstable(path)
        opened = LanceSsTable(dataset, path, schema, self._lookups)
        return self._sstables.put(path, opened, 1)
