"""The base table's commits and what they say about themselves.

A commit of weir carries transaction properties: a fence its token, a fold its id. They live as long
as the version of the commit; `cleanup_old_versions` removes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import lance

from weir.errors import SnapshotExpired
from weir.lake.datasets import Datasets
from weir.lake.lance_errors import is_moved_index, lance_errors


@dataclass(frozen=True, slots=True)
class Commit:
    """What made one version."""

    version: int
    properties: Mapping[str, str]
    is_restore: bool
    """The commit replaced the current content with that of an older version."""


def commits(datasets: Datasets, *, after: int, until: int | None = None) -> Iterator[Commit]:
    """The commit of each version above `after`, newest first. One read per version.

    Raises `SnapshotExpired` when one of them was cleaned up: its properties are lost.
    """
    dataset = datasets.latest()
    newest = dataset.version if until is None else until
    for version in range(newest, after, -1):
        try:
            with lance_errors(f"reading the commit of {datasets.uri} version {version}"):
                transaction = dataset.read_transaction(version)
        except TypeError as error:
            if not is_moved_index(error):
                raise
            # The commit was read, and is not one of weir's.
            yield Commit(version, {}, is_restore=False)
            continue
        except Exception as error:
            raise SnapshotExpired(
                f"{datasets.uri}: the commit of version {version} cannot be read, perhaps because"
                f" it was cleaned up, so the changes since version {after} are not known; try again"
            ) from error
        if transaction is None:
            yield Commit(version, {}, is_restore=False)
            continue
        is_restore = isinstance(transaction.operation, lance.LanceOperation.Restore)
        yield Commit(version, transaction.transaction_properties or {}, is_restore)


def find_commit(
    datasets: Datasets, key: str, value: str, *, after: int, until: int | None = None
) -> int | None:
    """The newest version above `after` whose commit has that property, or None."""
    for commit in commits(datasets, after=after, until=until):
        if commit.properties.get(key) == value:
            return commit.version
    return None
