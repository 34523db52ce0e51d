"""What threads may share of a Lance dataset.

A pylance dataset is one object of PyO3: a call that changes it (a tag, an index, added columns, a
move to another version, also `read_transaction`) borrows it exclusively for the whole request, and
calls of other threads meanwhile fail with 'Already borrowed'. So a shared handle has a type without
such calls. `Datasets.own` opens a handle for one caller that changes something.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

import lance
import pyarrow as pa


class SharedTags(Protocol):
    """The tags, to be read."""

    def list(self) -> Mapping[str, Any]:
        """Each tag with what it names."""

    def get_version(self, tag: str) -> int | None:
        """The version that a tag names."""


class UncommittedMerge(Protocol):
    """A merge that writes files and commits nothing."""

    def when_matched_delete(self) -> UncommittedMerge:
        """Delete the rows that match."""

    def use_index(self, use_index: bool) -> UncommittedMerge:  # noqa: FBT001  pylance's spelling
        """Whether to search through an index."""

    def execute_uncommitted(self, data_obj: Any) -> tuple[lance.Transaction, dict[str, Any]]:
        """Write the files; return what to commit."""


class SharedDataset(Protocol):
    """One version of a dataset, without the calls that change the handle.

    `lance.LanceDataset` has all of them; arguments are pylance's.
    """

    _storage_options: dict[str, str] | None

    @property
    def uri(self) -> str:
        """Where it is."""

    @property
    def version(self) -> int:
        """The version of this handle."""

    @property
    def latest_version(self) -> int:
        """The newest version of the dataset. One listing."""

    @property
    def schema(self) -> pa.Schema:
        """The columns."""

    @property
    def lance_schema(self) -> Any:
        """The columns as Lance describes them."""

    @property
    def max_field_id(self) -> int:
        """The highest field id ever given."""

    @property
    def data_storage_version(self) -> str:
        """The version of new data files."""

    @property
    def stats(self) -> Any:
        """Statistics of the dataset and its indexes."""

    @property
    def tags(self) -> SharedTags:
        """Its tags."""

    def io_stats_snapshot(self) -> Any:
        """What Lance has read and written through the handles of this session."""

    def config(self) -> dict[str, str]:
        """Its settings."""

    def base_paths(self) -> Mapping[int, Any]:
        """The other places whose files it names."""

    def versions(self) -> Sequence[Mapping[str, Any]]:
        """Every version that is still there. One read for each."""

    def describe_indices(self) -> Sequence[Any]:
        """Its indexes."""

    def get_fragments(self) -> list[lance.LanceFragment]:
        """Its fragments."""

    def get_fragment(self, fragment_id: int) -> lance.LanceFragment | None:
        """One fragment."""

    def scanner(self, *args: Any, **options: Any) -> lance.LanceScanner:
        """A scan."""

    def to_table(self, *args: Any, **options: Any) -> pa.Table:
        """Rows, read at once."""

    def count_rows(self, filter: Any = None) -> int:
        """The number of rows that pass."""

    def merge_insert(self, on: Any) -> UncommittedMerge:
        """A merge that is not committed."""

    def _take_rows(self, row_ids: Any, columns: Any = None) -> pa.Table: ...


def as_destination(shared: SharedDataset) -> lance.LanceDataset:
    """The handle for functions of pylance that leave it as it is."""
    return cast("lance.LanceDataset", shared)
