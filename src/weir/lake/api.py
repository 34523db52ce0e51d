"""Lance as weir uses it: SSTables and the base table, one method per verb.

`weir.lake.pylance_lake` is the real implementation; the simulator has models with the same
contract. Rows of an SSTable carry `_tombstone`; rows of the base do not. Keys are passed as a table
that holds the primary-key columns in order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

import lance
import pyarrow as pa
from lance.fragment import FragmentMetadata

from weir.errors import CorruptEntry, MissingEntry, SnapshotExpired
from weir.format.base_manifest import MemWalDetails
from weir.format.expiry import Alive, Expire
from weir.format.manifest import SsTable
from weir.format.schema import TableSchema
from weir.lake.shared import SharedDataset
from weir.store.api import Store
from weir.types import Generation

if TYPE_CHECKING:  # what the verbs take and give is defined beside the code that does them
    from weir.lake.base.fold import BaseFence, VersionEdit
    from weir.lake.base.history import Commit
    from weir.lake.base.indexes import IndexSpec, TableIndex
    from weir.lake.base.versions import FilePlan
    from weir.lake.live_rows import RowRange


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What a clean-up removed."""

    versions: int
    bytes: int


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


class Scanned(Protocol):
    """A level, or a part of one: what a merge of all its rows needs."""

    @property
    def rows(self) -> int:
        """At least the number of rows a scan gives."""

    def scan(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The newest row of each key (all rows without a key), tombstones included."""


class SsTableReader(Scanned, Protocol):
    """One immutable SSTable, its superseded rows hidden by the deletion vector.

    Rows come out in the order of the table's columns (or of `columns`), without field ids, non-key
    columns nullable, `_tombstone` always last.
    """

    def part(self, within: RowRange) -> Scanned:
        """A range of its rows, counting those that a later row of the SSTable replaces."""

    def lookup(self, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of `keys` found here, tombstones included, in no promised order; few reads."""


class Base(Protocol):
    """One version of the base table; never changes. Safe to share between threads."""

    @property
    def is_lance(self) -> bool:
        """False for a model, whose rows Lance cannot search."""

    @property
    def dataset(self) -> SharedDataset:
        """The dataset that holds it."""

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
        """When rows expire, by the rule of this version. No request."""

    @property
    def marked(self) -> Mapping[UUID, int]:
        """Per shard the highest generation marked in the MemWAL index, for native readers."""

    @property
    def compacted(self) -> Mapping[UUID, int]:
        """Per shard the highest generation folded into this version, marked or not (L-2, L-7)."""

    @property
    def fold_number(self) -> int:
        """The number of the last fold in this version. No request."""

    @property
    def load_number(self) -> int:
        """The number of the last load in this version; 0 if there was none (P-3). No request."""

    @property
    def mem_wal(self) -> MemWalDetails | None:
        """The MemWAL index entry, or None for a plain Lance dataset. One read, once."""

    @property
    def has_key_index(self) -> bool:
        """True when the first key column has a scalar index: a query then reads little."""

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
        """Number of live rows that pass the filter; without one no data is read."""

    def lookup(self, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of `keys`, in no promised order."""

    def fragments(self) -> list[tuple[int, int]]:
        """Id and number of live rows of each fragment, from the manifest alone."""

    def fragment(self, fragment_id: int) -> lance.LanceFragment:
        """One fragment, or `MissingEntry`."""

    def deleted_rows(self) -> int:
        """Rows that files of this version hold and that are deleted, from the manifest alone."""

    def write_fragments(
        self, data: Any, *, rows_per_file: int, bytes_per_file: int
    ) -> list[FragmentMetadata]:
        """Write new files beside those of this version; nothing names them yet."""


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


Check = Callable[[Base], None]
"""Raises when the table, as that version has it, cannot do without what is to change."""


class Lake(Protocol):
    """The Lance side of one table. Safe to share between threads."""

    uri: str
    is_lance: bool
    """False for a model: no native program opens its tables or reads its manifests."""

    # -- rows ------------------------------------------------------------------------------------

    def open_base(self, version: int | None = None) -> Base:
        """The latest version (one listing), or `version` (no request when it is known)."""

    def written_versions(self) -> dict[int, float]:
        """Each version that is still there, and when it was written, by the store's clock. One
        listing."""

    def base_before(self, moment: float) -> Base | None:
        """The newest version that existed at `moment` by the store's clock, or None if unknown.

        Versions that were cleaned up are unknown. One listing.
        """
        then = [v for v, written in self.written_versions().items() if written <= moment]
        try:
            return self.open_base(max(then)) if then else None
        except (MissingEntry, SnapshotExpired):
            return None  # cleaned up just now: the next call finds a newer one

    def write_sstable(
        self,
        shard: UUID,
        name: str,
        batches: Sequence[pa.RecordBatch],
        schema: TableSchema,
        *,
        after_write: Callable[[lance.LanceDataset], None] | None = None,
    ) -> SsTableInfo:
        """Write a complete SSTable directory; publish nothing (M-4).

        `batches` are in `schema.wal` shape and put order; the last row of a key wins.
        `after_write` may build indexes on the finished dataset; a lake without indexes ignores it.
        """

    def open_sstable(self, shard: UUID, name: str, schema: TableSchema) -> SsTableReader:
        """Open for reading; rows come out in the shape of `schema`, matched by field id.

        The SSTable is kept open: the next call makes no request.
        """

    # -- versions of the base --------------------------------------------------------------------

    def check_version(self, version: int) -> None:
        """Raise `SnapshotExpired` when `version` can no longer be read; looks at the store."""

    def protect_version(self, name: str, version: int) -> None:
        """Keep `version` from Lance's clean-up, by a tag, until `release_version`. Idempotent.

        `CommitConflict` when the name protects another version, `MissingEntry` when `version` is
        gone.
        """

    def release_version(self, name: str) -> None:
        """Undo `protect_version`; a name that protects nothing is left alone."""

    def protected_versions(self) -> dict[str, int]:
        """Each tag and the version it protects, weir's tags and others."""

    def shallow_clone(self, destination: Store, version: int) -> int:
        """Make `destination` (the root of the new table) a base that shares the files of `version`,
        under the same number.

        One read, one put-if-absent; any two kinds of store. The clone names its parent by URI, so
        the version must stay protected there, and readers of the clone need credentials for both.
        Idempotent; `CommitConflict` when another dataset is there.
        """

    def restore(self, version: int, checkpoint: str) -> int:
        """Make the content of `version` the latest again, by a commit that names the checkpoint;
        return the new version."""

    def cleanup_old_versions(
        self,
        replaced_for: timedelta,
        *,
        keep_from: int | None = None,
        dry_run: bool = False,
        released: Collection[str] = (),
    ) -> Cleaned:
        """Remove versions replaced at least that long ago, and files only they name; or count them.

        Protected versions stay, and so do `keep_from` and all later ones (a fold whose mark is not
        yet recorded is found by its commit). A dry run counts as if the tags `released` were gone,
        but not the bytes of versions that only they protect: Lance does not tell them.
        """

    def commits(self, *, after: int, until: int | None = None) -> Iterator[Commit]:
        """The commit of each version above `after`, newest first. One read per version.

        Raises `SnapshotExpired` when one of them was cleaned up: its properties are lost.
        """

    def find_commit(
        self, key: str, value: str, *, after: int, until: int | None = None
    ) -> int | None:
        """The newest version above `after` whose commit has that property, or None."""
        for commit in self.commits(after=after, until=until):
            if commit.properties.get(key) == value:
                return commit.version
        return None

    def read_commits(self, numbers: Sequence[int]) -> Iterator[Commit | None]:
        """What made each of those versions; None where that is gone. One read for each."""

    # -- folding rows into the base --------------------------------------------------------------

    def ask_before_changes(self, ask: Callable[[], object]) -> None:
        """Call `ask` right before every change of the base; what it raises refuses it (C-16).

        A model, whose tables are not dropped under it, need not.
        """
        return

    def fence_base(self, token: str) -> int:
        """Commit a fence and return its version; from then on no fold planned before it can commit.

        The caller has won the claim that `token` stands for. Conflicts with other commits are
        retried. One commit; a lost answer leaves an extra fence, which is harmless.
        """

    def commit_fold(
        self,
        changes: VersionEdit,
        *,
        claim: BaseFence,
        planned_at: int,
        fold_id: str,
        properties: Mapping[str, str],
        folded: Mapping[UUID, int] | None = None,
        number: int = 0,
        hide: Callable[[int, Sequence[int]], VersionEdit] | None = None,
    ) -> int:
        """Commit `changes`, planned on version `planned_at`, to the base; return their version.

        All or nothing, and only once: a call with the same `fold_id` finds the earlier commit. The
        same commit notes `folded`, the generations whose rows the base then holds, and the `number`
        of the fold. If other programs changed the base since the plan, `hide(version, fragments)`
        says what to hide in the fragments they touched; without `hide` that is a `CommitConflict`.
        So are another compactor's fence, changed columns, and a base that was rolled back (its
        generations may differ): plan anew if the claim still holds. `CorruptEntry` when it is no
        longer the base of a weir table.
        """

    def mark_compacted(self, marks: Mapping[UUID, int]) -> int | None:
        """Record in the MemWAL index that these generations are in the base, for native readers.

        Existing marks are left out; returns None when nothing is left to do. One commit. A mark
        never goes back, so two compactors may both try.
        """

    def mem_wal_at(self, version: int) -> MemWalDetails | None:
        """The MemWAL index entry of that version; `SnapshotExpired` when it is gone. One read."""

    def replace_mem_wal(
        self, details: MemWalDetails, *, planned_at: int, properties: Mapping[str, str]
    ) -> int:
        """Replace the MemWAL index entry of version `planned_at`; return the new version.

        One commit, which changes how the table is sharded (C-11). The caller must hold the
        compaction claim: a mark recorded since would be overwritten too. `CommitConflict` when
        another process replaced the entry since.
        """

    # -- files -----------------------------------------------------------------------------------

    def plan_files(self, *, target_rows_per_fragment: int) -> FilePlan:
        """Which fragments that are small or have many deletes are rewritten, as tasks for
        `rewrite_files`. No row changes."""

    def rewrite_files(self, task: str) -> str:
        """Run one task: write new files, which nothing names yet; return what to commit."""

    def commit_files(self, plan: FilePlan, results: Sequence[str]) -> int:
        """Replace the old files with the new ones; return the new version.

        `CommitConflict` when a fold changed one of the fragments since: try again.
        """

    # -- indexes ---------------------------------------------------------------------------------

    def indexes(self) -> list[TableIndex]:
        """The base's own indexes by name, and how many rows each covers. One listing."""

    def create_index(self, spec: IndexSpec) -> str:
        """Make the index and return its name. `InvalidInput`, before anything is written, for one
        that does not fit; `CommitConflict` when commits beside it changed the files again and
        again."""

    def drop_index(self, name: str) -> None:
        """Drop the index; `InvalidInput` names those that there are."""

    def optimize_indices(self) -> int:
        """Extend the base's indexes to the rows added since; return the new version."""

    # -- columns ---------------------------------------------------------------------------------

    def schema_for_writing(self) -> TableSchema:
        """The latest schema with every column marked; new columns are marked in one commit, or
        refused with `InvalidInput` where their rows could not be flushed (F-15).

        One listing, as in `open_base`, when there is nothing to mark.
        """

    def add_columns(self, fields: Sequence[pa.Field]) -> None:
        """Add columns, null in every row. `InvalidInput` for those that a table cannot have."""

    def drop_columns(self, names: Sequence[str], check: Check) -> None:
        """Drop columns, unless `check` raises for the version it is given. Their values are gone
        with the files, which the next rewrite replaces."""

    def rename_column(self, old: str, new: str, check: Check) -> None:
        """Give a column another name, unless `check` raises for the version it is given."""

    def set_expire(self, expire: Expire | None) -> int:
        """Set the rule by which rows expire, from the next version on; return that version."""

    def drop_expired(self, version: int, alive: Alive) -> int:
        """Delete the rows of `version` that have expired; return how many. One commit, if any."""
