"""Lance as weir uses it: SSTables and the base table, one method per verb.

`weir.lake.pylance_lake` is the real implementation; the simulator passes a model with the same
contract. Rows of an SSTable carry `_tombstone`; rows of the base do not. Keys are passed as a table
that holds the primary-key columns in order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol
from uuid import UUID

import pyarrow as pa

from weir.errors import CorruptEntry
from weir.format.base_manifest import MemWalDetails
from weir.format.expiry import Expire
from weir.format.manifest import SsTable
from weir.format.schema import TableSchema
from weir.store.api import Store
from weir.types import Generation


@dataclass(frozen=True, slots=True)
class SsTableInfo:
    """What a finished SSTable holds; goes into the shard manifest."""

    rows: int
    in_memory_bytes: int
    primary_key_bytes: int | None

    def listed_as(self, generation: Generation, name: str) -> SsTable:
        """The entry for a shard manifest; `name` is the folder the SSTable was written to."""
        return SsTable(
            generation=generation,
            path=name,
            in_memory_bytes=self.in_memory_bytes,
            physical_rows=self.rows,
            primary_key_bytes=self.primary_key_bytes,
        )


class SsTableReader(Protocol):
    """One immutable SSTable, its superseded rows hidden by the deletion vector.

    Rows come out in the order of the table's columns (or of `columns`), without field ids, non-key
    columns nullable, `_tombstone` always last.
    """

    @property
    def rows(self) -> int:
        """Number of rows a scan without a filter gives."""

    def scan(
        self, columns: Sequence[str] | None = None, *, filter: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The newest row of each key (all rows without a key), tombstones included."""

    def lookup(self, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of `keys` found here, tombstones included; few reads."""


class Base(Protocol):
    """One version of the base table."""

    @property
    def version(self) -> int:
        """The version of the base dataset."""

    @property
    def schema(self) -> TableSchema:
        """The table's schema at this version."""

    @property
    def rows(self) -> int:
        """Number of live rows, from the manifest alone."""

    @property
    def expire(self) -> Expire | None:
        """When rows expire, by the rule of this version."""

    @property
    def compacted(self) -> Mapping[UUID, int]:
        """Per shard the highest generation already folded into this version (L-2)."""

    @property
    def load_number(self) -> int:
        """The number of the last load in this version; 0 if there was none (P-3). No request."""

    @property
    def mem_wal(self) -> MemWalDetails | None:
        """What the MemWAL index entry says, or None for a plain Lance dataset."""

    def scan(
        self,
        columns: Sequence[str] | None = None,
        *,
        filter: Any = None,
        fragments: Sequence[int] | None = None,
        limit: int | None = None,
        batch_size: int | None = None,
        with_row_address: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Live rows in storage order."""

    def count(self, filter: Any = None) -> int:
        """Number of live rows that pass the filter."""

    def lookup(self, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of `keys`, read through the key's scalar index if there is one."""

    def fragments(self) -> list[tuple[int, int]]:
        """Id and number of live rows of each fragment."""


def require_weir_base(base: Base, primary_key: Sequence[str], uri: str) -> None:
    """Raise `CorruptEntry` when another program left this version unusable as a base (L-8).

    Without the MemWAL index it is unknown which generations are in the base; without the key's
    marks it is unknown which rows are the newest. One read for a version not checked before.
    """
    lost = [] if base.mem_wal is not None else ["its MemWAL index is gone"]
    if tuple(base.schema.primary_key) != tuple(primary_key):
        had, has = (list(key) or "none" for key in (primary_key, base.schema.primary_key))
        lost.append(f"its primary key is {has} instead of {had}")
    if lost:
        raise CorruptEntry(
            f"{uri} at base version {base.version}: {' and '.join(lost)}. Another program overwrote"
            " the base (LanceDB: mode 'overwrite'), or dropped the index (LanceDB:"
            " unset_lsm_write_spec) or a key column (pylance: drop_columns). Rows in the log are"
            " safe. Restore an older version of the base with Lance, or a checkpoint"
        )


class Lake(Protocol):
    """The Lance side of one table."""

    uri: str

    def open_base(self, version: int | None = None) -> Base:
        """The latest version, or `version`."""

    def base_before(self, moment: float) -> Base | None:
        """The newest version that existed at `moment` by the store's clock, or None if unknown.

        Versions that were cleaned up are unknown. One listing.
        """

    def write_sstable(
        self,
        shard: UUID,
        name: str,
        batches: Sequence[pa.RecordBatch],
        schema: TableSchema,
        *,
        after_write: Callable[[Any], None] | None = None,
    ) -> SsTableInfo:
        """Write a complete SSTable directory; publish nothing (M-4).

        `batches` are in `schema.wal` shape and put order; the last row of a key wins.
        `after_write` may build indexes on the finished dataset; a lake without indexes ignores it.
        """

    def open_sstable(self, shard: UUID, name: str, schema: TableSchema) -> SsTableReader:
        """Open for reading; rows come out in the shape of `schema`, matched by field id."""


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What a clean-up removed."""

    versions: int
    bytes: int


class VersionedLake(Lake, Protocol):
    """A `Lake` whose base has versions that can be kept, shared and rolled back to."""

    def protect_version(self, name: str, version: int) -> None:
        """Keep a version from Lance's clean-up until `release_version`. Idempotent."""

    def release_version(self, name: str) -> None:
        """Undo `protect_version`. Idempotent."""

    def protected_versions(self) -> dict[str, int]:
        """Each tag and the version it protects."""

    def cleanup_old_versions(
        self,
        replaced_for: timedelta,
        *,
        keep_from: int | None = None,
        dry_run: bool = False,
        released: Collection[str] = (),
    ) -> Cleaned:
        """Remove versions replaced at least that long ago, and files only they name; or count them.

        Protected versions stay, and so do `keep_from` and all later ones. A dry run counts as if
        the tags `released` were gone, but not the bytes of versions that only they protect.
        """

    def check_version(self, version: int) -> None:
        """Raise `MissingEntry` when `version` can no longer be read."""

    def shallow_clone(self, destination: Store, version: int) -> int:
        """Make `destination` a base that shares the files of `version`. Idempotent."""

    def restore(self, version: int, checkpoint: str) -> int:
        """Make the content of `version` the latest again, by a commit that names the checkpoint;
        return the new version."""
