"""Replaces the MemWAL index entry of a base table, for resharding (C-11)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import lance
from lance.bitmap import Bitmap
from lance.dataset import Index

from weir.errors import InvalidInput
from weir.format.base_manifest import MEM_WAL_INDEX, MemWalDetails, encode_mem_wal_details
from weir.lake.base.view import LanceBase
from weir.lake.datasets import Datasets
from weir.lake.lance_errors import lance_errors

_RETRIES: Final = 20  # Lance's own number
_DETAILS_TYPE: Final = "/lance.table.MemWalIndexDetails"  # Stored.


def replace_mem_wal(
    datasets: Datasets, planned: LanceBase, details: MemWalDetails, properties: Mapping[str, str]
) -> int:
    """Replace the MemWAL index entry of `planned` with `details`; return the version.

    One commit, which changes how the table is sharded (C-11). The caller must hold the compaction
    claim: a mark recorded since `planned` would be overwritten too. `CommitConflict` when another
    process replaced the entry since.
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
        return datasets.commit(planned.dataset, transaction, retries=_RETRIES)
