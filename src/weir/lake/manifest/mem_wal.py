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
from weir.lake.api import Lake
from weir.lake.datasets import Datasets
from weir.lake.lance_errors import lance_errors

_DETAILS_TYPE: Final = "/lance.table.MemWalIndexDetails"  # Stored.


class MemWalEntry(Lake):
    """The verb of `Lake` that reshards."""

    datasets: Datasets

    def replace_mem_wal(
        self, details: MemWalDetails, *, planned_at: int, properties: Mapping[str, str]
    ) -> int:
        """See `Lake`."""
        planned = self.open_base(planned_at)
        uuids = [
            segment.uuid
            for index in planned.dataset.describe_indices()
            if index.name == MEM_WAL_INDEX
            for segment in index.segments
        ]
        if len(uuids) != 1:
            raise InvalidInput(f"{self.uri} has no MemWAL index entry to replace")
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
            uuid=str(self.datasets.env.new_id()),
            index_details=(_DETAILS_TYPE, encode_mem_wal_details(details)),
        )
        transaction = lance.Transaction(
            read_version=planned.version,
            operation=lance.LanceOperation.CreateIndex(new_indices=[new], removed_indices=[old]),
            transaction_properties=dict(properties),
        )
        with lance_errors(f"replacing the MemWAL index entry of {self.uri}"):
            return self.datasets.commit(planned.dataset, transaction, is_repeatable=True)
