"""Makes a new or existing Lance dataset the base of a weir table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import lance
import pyarrow as pa
from lance import LanceOperation
from lance.schema import LanceSchema

from weir.errors import CommitConflict, InvalidInput, NotAWeirTable
from weir.format.expiry import Expire
from weir.format.schema import COLUMN_MARK
from weir.lake.lance_errors import is_dataset_taken, lance_errors
from weir.lake.schemas import KEY_MARK, KEY_POSITION, marked_key
from weir.lake.shared import SharedDataset
from weir.lake.trial import require_storable


def find_dataset(uri: str, options: Mapping[str, str] | None) -> lance.LanceDataset | None:
    """The dataset at that URI, or None. One listing and one read."""
    try:
        with lance_errors(f"looking for a Lance dataset at {uri}"):
            return lance.dataset(uri, storage_options=dict(options or {}) or None)
    except NotAWeirTable:
        return None


def check_columns(
    schema: pa.Schema, primary_key: Sequence[str], *, storage_version: str | None = None
) -> None:
    """Raise `InvalidInput` for a column that Lance cannot hold or that a log cannot carry.

    `storage_version` is that of the table's files; None: the one that a new table gets.
    """
    for field in schema:
        if _is_blob(field):
            raise InvalidInput(
                f"column {field.name!r} is a Lance blob column; Lance stores blobs outside the"
                " rows, so the log cannot hold them. Use pa.large_binary(), or store a path"
            )
        if _is_json(field):
            raise InvalidInput(
                f"column {field.name!r} is JSON ({field.type}): Lance stores such text in another"
                " form than it was put, and text that is no JSON could be logged and never stored."
                " Use pa.string()"
            )
        try:
            LanceSchema.from_pyarrow(pa.schema([field]))
        except (ValueError, pa.ArrowException) as error:
            raise InvalidInput(
                f"column {field.name!r}: Lance has no type for {field.type}; choose another one"
            ) from error
    require_storable(schema, primary_key, storage_version=storage_version)


def _is_blob(field: pa.Field) -> bool:
    name = getattr(field.type, "extension_name", "")
    marked = (field.metadata or {}).get(b"lance-encoding:blob", b"false").lower() == b"true"
    return (
        marked
        or name.startswith("lance.blob")
        or any(_is_blob(field.type.field(i)) for i in range(field.type.num_fields))
    )


def _is_json(field: pa.Field) -> bool:
    is_json = getattr(field.type, "extension_name", "") in ("arrow.json", "lance.json")
    return is_json or any(_is_json(field.type.field(i)) for i in range(field.type.num_fields))


def create_base(
    uri: str,
    schema: pa.Schema,
    primary_key: Sequence[str],
    options: Mapping[str, str] | None,
    *,
    expire: Expire | None = None,
    enable_stable_row_ids: bool = False,
) -> lance.LanceDataset:
    """Create an empty dataset with that schema and key.

    `CommitConflict` when another process made one since the caller looked.
    """
    empty = LanceOperation.Overwrite(marked_key(schema, primary_key, expire), [])
    with lance_errors(f"creating the base table {uri}"):
        try:
            return lance.LanceDataset.commit(
                uri,
                empty,
                storage_options=dict(options or {}) or None,
                enable_v2_manifest_paths=True,
                enable_stable_row_ids=enable_stable_row_ids,
                # `write_dataset` tries a lost race again, as an overwrite of the winner's dataset.
                max_retries=0,
            )
        except (OSError, ValueError) as error:
            if not is_dataset_taken(error):
                raise
            raise CommitConflict(
                f"{uri}: another process is making a table there; open it with weir.open when that"
                " is done. If it never is, `enable` makes a weir table of what stands there"
            ) from error


def mark_key(dataset: lance.LanceDataset, primary_key: Sequence[str]) -> None:
    """Declare the key of an existing dataset. Reads the key columns: they must hold no null."""
    names = list(primary_key)
    with lance_errors(f"declaring the primary key {names} of {dataset.uri}"):
        nullable = [name for name in names if dataset.schema.field(name).nullable]
        if nullable:
            changes: list[Any] = [{"path": name, "nullable": False} for name in nullable]
            dataset.alter_columns(*changes)
        dataset.update_field_metadata(
            {
                name: {KEY_MARK.decode(): "true", KEY_POSITION.decode(): str(position)}
                for position, name in enumerate(names, 1)
            }
        )


def check_no_duplicates(dataset: lance.LanceDataset, primary_key: Sequence[str]) -> None:
    """Raise `InvalidInput` when a key occurs twice: a merge could not know the newer row."""
    doubled, rows = count_duplicates(dataset, primary_key), dataset.count_rows()
    if doubled:
        raise InvalidInput(
            f"{dataset.uri} holds {rows} rows and only {rows - doubled} different keys"
            f" {list(primary_key)}; remove the duplicates, or choose a key that is unique"
        )


def count_duplicates(dataset: SharedDataset, primary_key: Sequence[str]) -> int:
    """The number of rows beyond the first of each key. Reads the key columns."""
    names = list(primary_key)
    with lance_errors(f"reading the keys of {dataset.uri}"):
        keys = dataset.to_table(columns=names)
    return int(keys.num_rows - keys.group_by(names).aggregate([]).num_rows)


def initialize_mem_wal(dataset: lance.LanceDataset, settings: Mapping[str, Any]) -> None:
    """Attach the MemWAL index, so that native readers and writers know the table's sharding."""
    with lance_errors(f"attaching the MemWAL index to {dataset.uri}"):
        dataset.initialize_mem_wal(**settings)


def mark_columns(dataset: lance.LanceDataset) -> None:
    """Mark the columns that have no mark yet (`weir.format.schema`).

    `CommitConflict` when another process changed the columns since the dataset's version, so no
    mark is ever replaced; the caller reads the table again.
    """
    mark = {COLUMN_MARK.decode(): str(dataset.version)}
    unmarked = [f.name for f in dataset.schema if COLUMN_MARK not in (f.metadata or {})]
    with lance_errors(f"marking the columns {unmarked} of {dataset.uri}"):
        dataset.update_field_metadata({name: dict(mark) for name in unmarked})
