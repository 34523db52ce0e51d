"""The base table's commits and what they say about themselves.

A commit of weir carries transaction properties: a fence its token, a fold its id. They live as long
as the version of the commit; `cleanup_old_versions` removes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import lance

from weir.errors import SnapshotExpired, StoreError
from weir.format.expiry import selects_expired
from weir.lake.api import Lake
from weir.lake.datasets import Handles
from weir.lake.lance_errors import is_moved_index, lance_errors

_OF_ROWS: Final = frozenset({"Append", "DataReplacement", "Delete", "Overwrite", "Update"})
"""Lance's names of operations that add, change or remove rows."""
_MARKS: Final = "weir."
"""How the names of weir's transaction properties begin."""


@dataclass(frozen=True, slots=True)
class Commit:
    """What made one version."""

    version: int
    properties: Mapping[str, str]
    is_restore: bool
    """The commit replaced the current content with that of an older version."""
    operation: str = ""
    """Lance's name of what was done; empty where Lance does not say."""
    made: tuple[str, ...] = ()
    """Indexes that it made, or made anew."""
    dropped: tuple[str, ...] = ()
    """Indexes that it dropped."""
    changed: tuple[str, ...] = ()
    """Keys of column metadata that it set or removed."""
    is_empty: bool = False
    """An update that changed no row: it only marks what was folded."""
    is_expiry: bool = False
    """A delete of rows that had expired."""

    @property
    def is_foreign_rows(self) -> bool:
        """Another program changed rows: a commit of rows with no mark of weir's."""
        if self.operation not in _OF_ROWS or self.is_empty or self.is_expiry:
            return False
        return not any(key.startswith(_MARKS) for key in self.properties)


class History(Lake):
    """The verbs of `Lake` that read commits."""

    datasets: Handles

    def commits(self, *, after: int, until: int | None = None) -> Iterator[Commit]:
        """See `Lake`."""
        dataset = self.datasets.own()  # reading a commit borrows the handle exclusively
        newest = dataset.version if until is None else until
        for version in range(newest, after, -1):
            try:
                yield read_commit(dataset, version)
            except SnapshotExpired as error:
                raise SnapshotExpired(
                    f"{self.uri}: the commit of version {version} cannot be read, perhaps because"
                    f" it was cleaned up, so the changes since version {after} are not known; try"
                    " again"
                ) from error

    def read_commits(self, numbers: Sequence[int]) -> Iterator[Commit | None]:
        """See `Lake`."""
        dataset = self.datasets.own()
        for number in numbers:
            try:
                yield read_commit(dataset, number)
            except SnapshotExpired:
                yield None


def read_commit(dataset: lance.LanceDataset, version: int) -> Commit:
    """The commit of a version; `SnapshotExpired` when it cannot be read. One read.

    `dataset` is a handle of the caller's own: reading a commit borrows it exclusively.
    """
    try:
        with lance_errors(f"reading the commit of {dataset.uri} version {version}"):
            transaction = dataset.read_transaction(version)
    except TypeError as error:
        if not is_moved_index(error):
            raise
        # The commit was read, and is not one of weir's.
        return Commit(version, {}, is_restore=False, operation="Rewrite")
    except StoreError:
        raise  # whether it is gone is not known
    except Exception as error:
        raise SnapshotExpired(f"{dataset.uri}: version {version} is gone") from error
    if transaction is None:
        return Commit(version, {}, is_restore=False)
    return _described(version, transaction)


def _described(version: int, transaction: lance.Transaction) -> Commit:
    operation: Any = transaction.operation
    made: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    is_empty = is_expiry = False
    if isinstance(operation, lance.LanceOperation.CreateIndex):
        made = tuple(index.name for index in operation.new_indices)
        dropped = tuple(i.name for i in operation.removed_indices if i.name not in made)
    elif isinstance(operation, lance.LanceOperation.UpdateConfig):
        updates = (operation.field_metadata_updates or {}).values()
        changed = tuple(sorted({key for update in updates for key in update.updates}))
    elif isinstance(operation, lance.LanceOperation.Update):
        parts = (operation.removed_fragment_ids, operation.updated_fragments)
        is_empty = not any((*parts, operation.new_fragments))
    elif isinstance(operation, lance.LanceOperation.Delete):
        is_expiry = selects_expired(operation.predicate)
    return Commit(
        version,
        transaction.transaction_properties or {},
        is_restore=isinstance(operation, lance.LanceOperation.Restore),
        operation=type(operation).__name__,
        made=made,
        dropped=dropped,
        changed=changed,
        is_empty=is_empty,
        is_expiry=is_expiry,
    )
