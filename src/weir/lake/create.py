"""Making base tables, and attaching MemWAL to ones that exist."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import lance
import pyarrow as pa
from lance.bitmap import Bitmap
from lance.dataset import Index

from weir.errors import CommitConflict, InvalidInput
from weir.format.base_manifest import MEM_WAL_INDEX, MemWalDetails, encode_mem_wal_details
from weir.lake.base import LanceBase
from weir.lake.datasets import Datasets
from weir.lake.lance_errors import lance_errors
from weir.lake.schemas import base_schema, marked_key

_INITIALIZED: Final = "already"
_DETAILS_TYPE: Final = "/lance.table.MemWalIndexDetails"  # Stored.


@dataclass(frozen=True, slots=True)
class MemWalSettings:
    """What `initialize_mem_wal` records; at most one of the three ways to shard."""

    bucket_column: str | None = None
    num_buckets: int | None = None
    identity_column: str | None = None
    unsharded: bool = False
    maintained_indexes: tuple[str, ...] | None = None
    """Indexes kept up in MemTables and SSTables; None means all, also later ones."""
    writer_defaults: Mapping[str, int | bool] | None = None
    """Keyword arguments of `LanceDataset.initialize_mem_wal`, e.g. `max_memtable_rows`."""


def create_base(
    datasets: Datasets,
    schema: pa.Schema,
    primary_key: Sequence[str],
    *,
    data_storage_version: str | None = None,
    enable_stable_row_ids: bool = False,
) -> int:
    """Make an empty base table and return its version.

    `CommitConflict` when a dataset is already there. One commit.
    """
    target = marked_key(schema, primary_key)
    options: dict[str, Any] = {}
    if data_storage_version is not None:
        options["data_storage_version"] = data_storage_version
    try:
        with lance_errors(f"creating {datasets.uri}"):
            made = lance.write_dataset(
                target.empty_table(),
                datasets.uri,
                mode="create",
                storage_options=datasets.storage_options,
                enable_stable_row_ids=enable_stable_row_ids,
                **options,
            )
    except Exception as error:
        if "already exists" in str(error).lower():
            raise CommitConflict(
                f"{datasets.uri}: a dataset is already there; open it, or adopt it with `enable`"
            ) from error
        raise
    return int(made.version)


def ensure_primary_key(datasets: Datasets, primary_key: Sequence[str]) -> int:
    """Mark the key columns of an existing dataset; return the latest version.

    Nothing is written when they are marked so already. `InvalidInput` for another key, for a column
    that may be null, or one that is not there. Checks no row: the key is taken on trust.
    """
    dataset = datasets.latest()
    known = base_schema(dataset)
    if known.primary_key == tuple(primary_key):
        return int(dataset.version)
    if known.primary_key:
        raise InvalidInput(
            f"{datasets.uri} has the primary key {known.primary_key}, not {tuple(primary_key)}"
        )
    target = marked_key(dataset.schema, primary_key)
    for name in primary_key:
        if dataset.schema.field(name).nullable:
            raise InvalidInput(
                f"{datasets.uri}: primary key column {name!r} may be null;"
                " make it not null first (`LanceDataset.alter_columns`)"
            )
    marks: dict[str, dict[str, str | None]] = {
        name: {k.decode(): v.decode() for k, v in (target.field(name).metadata or {}).items()}
        for name in primary_key
    }
    with lance_errors(f"marking the primary key of {datasets.uri}"):
        datasets.open(datasets.uri).update_field_metadata(marks)
    return int(datasets.latest().version)


def initialize_mem_wal(datasets: Datasets, settings: MemWalSettings) -> int:
    """Attach MemWAL; return the version. `CommitConflict` when the table has it already."""
    kwargs: dict[str, Any] = dict(settings.writer_defaults or {})
    if settings.maintained_indexes is not None:
        kwargs["maintained_indexes"] = list(settings.maintained_indexes)
    dataset = datasets.open(datasets.uri)  # of its own: the call moves the handle
    try:
        with lance_errors(f"attaching MemWAL to {datasets.uri}"):
            dataset.initialize_mem_wal(
                bucket_column=settings.bucket_column,
                num_buckets=settings.num_buckets,
                identity_column=settings.identity_column,
                unsharded=settings.unsharded,
                **kwargs,
            )
    except Exception as error:
        if _INITIALIZED in str(error).lower():
            raise CommitConflict(f"{datasets.uri} has MemWAL already; open the table") from error
        raise
    return int(datasets.latest().version)


def replace_mem_wal(
    datasets: Datasets, planned: LanceBase, details: MemWalDetails, properties: Mapping[str, str]
) -> int:
    """Put `details` in the place of the MemWAL index entry of `planned`; return the version.

    One commit: the way to change how a table is sharded (C-11). The caller holds the compaction
    claim: a mark recorded since `planned` would be replaced too. `CommitConflict` when somebody
    else replaced the entry since.
    """
    uuids = [
        segment.uuid
        for index in planned.dataset.describe_indices()
        if index.name == MEM_WAL_INDEX
        for segment in index.segments
    ]
    if len(uuids) != 1:
        raise InvalidInput(f"{datasets.uri} has no MemWAL index entry to replace")
    old = Index(
        uuid=uuids[0],
        name=MEM_WAL_INDEX,
        fields=[],
        dataset_version=planned.version,
        fragment_ids=Bitmap(),
        index_version=0,
    )
    new = replace(
        old,
        uuid=str(datasets.env.new_id()),
        index_details=(_DETAILS_TYPE, encode_mem_wal_details(details)),
    )
    transaction = lance.Transaction(
        read_version=planned.version,
        operation=lance.LanceOperation.CreateIndex(new_indices=[new], removed_indices=[old]),
        transaction_properties=dict(properties),
    )
    with lance_errors(f"replacing the MemWAL index entry of {datasets.uri}"):
        made = lance.LanceDataset.commit(planned.dataset, transaction)
    return int(made.version)
