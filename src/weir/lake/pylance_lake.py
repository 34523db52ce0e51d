"""`Lake` on pylance: the facade; each verb lives in a module of its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Final
from uuid import UUID

import pyarrow as pa

from weir.env import SYSTEM, Env
from weir.errors import CommitConflict, MissingEntry, SnapshotExpired
from weir.format import paths
from weir.format.base_manifest import BaseManifest, MemWalDetails, parse_base_manifest
from weir.format.expiry import Alive, Expire
from weir.format.lance_file import version_name
from weir.format.schema import TableSchema
from weir.lake.api import Cleaned, SsTableInfo
from weir.lake.base import adopt, columns, expiring, fence, fold, fold_commit, history, versions
from weir.lake.base import indexes as base_indexes
from weir.lake.base.blocks import RowBlocks
from weir.lake.base.resident_keys import ResidentKeys
from weir.lake.base.view import LanceBase
from weir.lake.cache import ByteCache
from weir.lake.datasets import Datasets, expired
from weir.lake.manifest import mem_wal
from weir.lake.manifest.shared_files import borrowed_places
from weir.lake.shared import SharedDataset
from weir.lake.sstable.read import LanceSsTable, SsTableCaches
from weir.lake.sstable.write import AfterWrite, SsTableWriter
from weir.store.api import ObjectMissing, Store, is_local
from weir.types import Version

_BASES_LIMIT: Final = 16
"""Versions of the base kept open at once."""
_SSTABLES_LIMIT: Final = 256
"""SSTables kept open at once; a handle holds a manifest, its caches are bounded separately."""


class PylanceLake:
    """The Lance side of one table. Safe to share between threads.

    `storage_options` are pylance's; `store` is rooted at the same place and serves the files that
    Lance has no call for. `agree` raises for a place whose files the base may not name.
    """

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
        rows = RowBlocks(env)
        self._caches = SsTableCaches(env, rows)
        self._resident = ResidentKeys(env, rows)
        self._env = env
        self._bases: ByteCache[LanceBase] = ByteCache(_BASES_LIMIT, env)
        self._sstables: ByteCache[LanceSsTable] = ByteCache(_SSTABLES_LIMIT, env)

    def __repr__(self) -> str:
        return f"PylanceLake({self.uri})"

    def _require_places(self, version: int) -> None:
        """Check each place whose files this version names, once per place (G-13)."""
        if self._agree is None:
            return
        # guard: G-13 test_inside_the_table
        for place in borrowed_places(self.store, version) - self._agreed:
            self._agree(place)
            self._agreed.add(place)

    def open_base(self, version: int | None = None) -> LanceBase:
        """The latest version (one listing), or `version` (no request when it is known)."""
        if version is not None:
            known = self._bases.get(version)
            if known is not None:
                return known
        dataset = self.datasets.latest() if version is None else self.datasets.at(version)
        return self._bases.get_or_make(dataset.version, lambda: self._base(dataset), lambda _: 1)

    def base_before(self, moment: float) -> LanceBase | None:
        """The newest version that existed at `moment` by the store's clock, if known."""
        then = [v for v, written in versions.written_at(self.store).items() if written <= moment]
        try:
            return self.open_base(max(then)) if then else None
        except (MissingEntry, SnapshotExpired):
            return None  # cleaned up just now: the next call finds a newer one

    def _base(self, dataset: SharedDataset) -> LanceBase:
        return LanceBase(dataset, lambda: self._manifest(dataset.version), self._resident)

    def _manifest(self, version: int) -> BaseManifest:
        inverted = paths.base_version_path(version_name(Version(version)))
        # Tables made by old releases of Lance have plain names.
        for path in (inverted, paths.base_version_path(f"{version}.manifest")):
            try:
                uri = f"{self.store.uri}/{path}"
                return parse_base_manifest(self.store.get(path).data, path=uri)
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

    def schema_for_writing(self) -> TableSchema:
        """The latest schema with every column marked; new columns are marked in one commit, or
        refused with `InvalidInput` where their rows could not be flushed (F-15).

        One listing, as in `open_base`, when there is nothing to mark.
        """
        for _ in self.datasets.env.attempts():
            base = self.open_base()
            if not base.schema.unmarked:
                return base.schema
            _check_added(base)
            try:
                # A separate handle: the commit moves it to another version.
                adopt.mark_columns(self.datasets.own(base.version))
            except CommitConflict:
                continue  # another process marked them, or changed the columns
        raise CommitConflict(f"{self.uri}: its columns keep changing; open the writer again")

    def set_expire(self, expire: Expire | None) -> int:
        """Set the rule by which rows expire, from the next version on; return that version."""
        for _ in self.datasets.env.attempts():
            base = self.open_base()
            if expire is not None:
                expire.check(base.schema.plain)
            dataset = self.datasets.own(base.version)
            try:
                expiring.set_expire(dataset, expire)
            except CommitConflict:
                continue  # another process changed the columns, or the rule
            return dataset.version
        raise CommitConflict(f"{self.uri}: its columns keep changing; set the rule again")

    def add_columns(self, fields: Sequence[pa.Field]) -> None:
        """Add columns to the base, null in every row of it; one commit."""
        columns.add_columns(self.datasets, self.open_base, fields)

    def drop_columns(self, names: Sequence[str], check: columns.Check) -> None:
        """Drop columns of the base, unless `check` raises for the version it is given."""
        columns.drop_columns(self.datasets, self.open_base, names, check)

    def rename_column(self, old: str, new: str, check: columns.Check) -> None:
        """Rename a column of the base, unless `check` raises for the version it is given."""
        columns.rename_column(self.datasets, self.open_base, old, new, check)

    def drop_expired(self, version: int, alive: Alive) -> int:
        """Delete the rows of `version` that have expired; return how many there were."""
        return expiring.drop_expired(self.datasets.own(version), alive)

    def _storage_version(self) -> str:
        # Fixed when the base was made, so any version of it will do.
        return self.datasets.known().data_storage_version

    def open_sstable(self, shard: UUID, name: str, schema: TableSchema) -> LanceSsTable:
        """Open for reading; rows come out in the shape of `schema`, matched by field id.

        The SSTable is kept open: the next call makes no request.
        """
        path = paths.sstable_dir(shard, name)
        known = self._sstables.get(path)
        if known is not None and (known.schema is schema or known.schema == schema):
            return known
        opened = LanceSsTable(
            self.datasets.open_sstable(path), path, schema, self.store, self._caches
        )
        return self._sstables.put(path, opened, 1)

    # Making tables

    def replace_mem_wal(
        self, details: MemWalDetails, *, planned_at: int, properties: Mapping[str, str]
    ) -> int:
        """Replace the MemWAL index entry with `details`: resharding in one commit (C-11)."""
        return mem_wal.replace_mem_wal(
            self.datasets, self.open_base(planned_at), details, properties
        )

    # Versions of the base

    def protect_version(self, name: str, version: int) -> None:
        """Keep a version from Lance's clean-up until `release_version`. Idempotent."""
        versions.protect_version(self.datasets, name, version)

    def release_version(self, name: str) -> None:
        """Undo `protect_version`. Idempotent."""
        versions.release_version(self.datasets, name)

    def protected_versions(self) -> dict[str, int]:
        """Each tag and the version it protects."""
        return versions.protected_versions(self.datasets)

    def check_version(self, version: int) -> None:
        """Raise `MissingEntry` when `version` can no longer be read."""
        versions.check_version(self.datasets, version)

    def shallow_clone(self, destination: Store, version: int) -> int:
        """Make the table root `destination` a base that shares the files of `version`.

        Works between any two kinds of store; protect the version first. Idempotent;
        `CommitConflict` when another dataset is there. The clone keeps the version number.
        """
        return versions.shallow_clone(self.datasets, self.store, destination, version)

    def restore(self, version: int, checkpoint: str) -> int:
        """Make the content of `version` the latest again, by a commit that names the checkpoint;
        return the new version."""
        return versions.restore(self.datasets, version, checkpoint)

    def cleanup_old_versions(
        self,
        replaced_for: timedelta,
        *,
        keep_from: int | None = None,
        dry_run: bool = False,
        released: Collection[str] = (),
    ) -> Cleaned:
        """Remove versions replaced that long ago that nothing protects, and their files; or just
        count them."""
        if is_local(self.store):
            versions.require_no_links(self.store)  # guard: G-13 test_inside_the_table
        return versions.cleanup_old_versions(
            self.datasets,
            self.store,
            replaced_for,
            keep_from=keep_from,
            dry_run=dry_run,
            released=released,
        )

    def compact_files(
        self,
        *,
        target_rows_per_fragment: int | None = None,
        max_bytes_per_file: int | None = None,
        materialize_deletions_threshold: float | None = None,
        max_source_bytes: int | None = None,
        threads: int | None = None,
    ) -> int:
        """Rewrite fragments that are small or have many deletes; return the new version."""
        return versions.compact_files(
            self.datasets,
            target_rows_per_fragment=target_rows_per_fragment,
            max_bytes_per_file=max_bytes_per_file,
            materialize_deletions_threshold=materialize_deletions_threshold,
            max_source_bytes=max_source_bytes,
            threads=threads,
        )

    def plan_files(self, *, target_rows_per_fragment: int) -> versions.FilePlan:
        """Plan `compact_files` as tasks for `rewrite_files`, which other processes may run."""
        return versions.plan_files(self.datasets, target_rows_per_fragment=target_rows_per_fragment)

    def rewrite_files(self, task: str) -> str:
        """Run one task of a plan; commit nothing."""
        return versions.rewrite_files(self.datasets, task)

    def commit_files(self, plan: versions.FilePlan, results: Sequence[str]) -> int:
        """Commit what the tasks of a plan wrote; return the new version."""
        return versions.commit_files(self.datasets, plan, results)

    def optimize_indices(self, names: Sequence[str] | None = None) -> int:
        """Extend the base's indexes to the rows added since; return the new version."""
        return versions.optimize_indices(self.datasets, names)

    def index_names(self) -> list[str]:
        """Names of the base's own indexes."""
        return versions.index_names(self.datasets)

    def borrowed_indexes(self) -> list[str]:
        """Names of the base's indexes with files in another table, of which this is a clone."""
        return versions.borrowed_indexes(self.datasets)

    def indexes(self) -> list[base_indexes.TableIndex]:
        """The base's own indexes and how many rows each covers. One listing."""
        return base_indexes.list_indexes(self.open_base())

    def create_index(self, spec: base_indexes.IndexSpec) -> str:
        """Make an index of the base; return its name. One commit."""
        return base_indexes.create_index(self.datasets, self.open_base, spec)

    def drop_index(self, name: str) -> None:
        """Drop an index of the base. One commit."""
        base_indexes.drop_index(self.datasets, self.open_base, name)

    # Folding rows into the base

    def fence_base(self, token: str) -> int:
        """Commit a fence, so that no fold planned before it can commit; return its version."""
        return fence.fence_base(self.datasets, token)

    def commit_fold(
        self,
        changes: fold.VersionEdit,
        *,
        claim: fold.BaseFence,
        planned_at: int,
        fold_id: str,
        properties: Mapping[str, str],
        folded: Mapping[UUID, int] | None = None,
        number: int = 0,
        hide: fold_commit.Hide | None = None,
    ) -> int:
        """Commit `changes` to the base, once; return the version. `CommitConflict`: plan anew.

        `folded` are the generations whose rows the base then holds. For `number` and `hide` see
        `fold_commit`.
        """
        return fold_commit.commit_fold(
            self.datasets,
            self.open_base,
            changes,
            claim=claim,
            planned_at=planned_at,
            fold_id=fold_id,
            properties=properties,
            folded=folded or {},
            number=number,
            hide=hide,
        )

    def mark_compacted(self, marks: Mapping[UUID, int]) -> int | None:
        """Mark for native readers which generations are in the base; None if already marked."""
        return fold_commit.mark_compacted(self.datasets, self.open_base, marks)

    def find_commit(self, key: str, value: str, *, after_version: int) -> int | None:
        """The newest version above `after_version` whose commit has that property, or None."""
        return history.find_commit(self.datasets, key, value, after=after_version)

    def written_versions(self) -> dict[int, float]:
        """Each version that is still there, and when it was written. One listing."""
        return versions.written_at(self.store)

    def read_commits(self, numbers: Sequence[int]) -> Iterator[history.Commit | None]:
        """What made each of those versions; None where that is gone. One read for each."""
        dataset = self.datasets.own()
        for number in numbers:
            try:
                yield history.read_commit(dataset, number)
            except SnapshotExpired:
                yield None

    def mem_wal_at(self, version: int) -> MemWalDetails | None:
        """The MemWAL index entry of that version; `SnapshotExpired` when it is gone. One read."""
        return self._manifest(version).mem_wal

    def commit_properties(self, *, after_version: int) -> Iterator[tuple[int, Mapping[str, str]]]:
        """(version, properties) of each commit above `after_version`, newest first."""
        found = history.commits(self.datasets, after=after_version)
        return ((commit.version, commit.properties) for commit in found)


def _check_added(base: LanceBase) -> None:
    """Raise `InvalidInput` for a new column whose rows could not be flushed (F-15). A table without
    any mark was checked as a whole, by `enable`."""
    schema = base.schema
    if len(schema.unmarked) == len(schema.arrow):
        return
    tried = (*schema.primary_key, *schema.unmarked)
    adopt.check_columns(
        pa.schema([field for field in schema.plain if field.name in tried]),
        schema.primary_key,
        storage_version=base.dataset.data_storage_version,
    )
