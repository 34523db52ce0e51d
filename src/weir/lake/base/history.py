"""The base table's commits and what they say about themselves.

A commit of weir carries transaction properties: a fence its token, a fold its id. They live as long
as the version they made; `cleanup` ends them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from weir.errors import SnapshotExpired
from weir.lake.datasets import Datasets
from weir.lake.lance_errors import lance_errors


def commits(
    datasets: Datasets, *, after: int, until: int | None = None
) -> Iterator[tuple[int, Mapping[str, str]]]:
    """(version, properties) of each commit above `after`, newest first. One read a version.

    Raises `SnapshotExpired` when one of them was cleaned up: what it said can no longer be known.
    """
    dataset = datasets.latest()
    newest = dataset.version if until is None else until
    for version in range(newest, after, -1):
        try:
            with lance_errors(f"reading the commit of {datasets.uri} version {version}"):
                transaction = dataset.read_transaction(version)
        except Exception as error:
            raise SnapshotExpired(
                f"{datasets.uri}: the commit of version {version} cannot be read (cleaned up?),"
                f" so what happened since version {after} is unknown; plan anew"
            ) from error
        properties = None if transaction is None else transaction.transaction_properties
        yield version, properties or {}


def find_commit(
    datasets: Datasets, key: str, value: str, *, after: int, until: int | None = None
) -> int | None:
    """The newest version above `after` whose commit has that property, or None."""
    for version, properties in commits(datasets, after=after, until=until):
        if properties.get(key) == value:
            return version
    return None
