"""Entries to be written to the log: encoded once, and the same bytes in every attempt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from weir.format.schema import TableSchema
from weir.format.wal_entry import EntryEncoder, Fill
from weir.log.intake import fill_of
from weir.log.site import ShardSite
from weir.log.tagging import Tagging
from weir.types import Generation, Position

Token = tuple[str, int]
"""An exactly-once token: application and its batch number (P-2)."""


@dataclass(slots=True, eq=False)
class Entry:
    """Rows encoded for the log; writing the same entry again changes nothing (F-9)."""

    batches: Sequence[pa.RecordBatch]
    generation: Generation
    data: memoryview
    filled: Fill
    """What its generation holds, this entry included (F-15)."""
    is_staged: bool = False
    sent: bool = False
    """True while it may be in the log; false again once it certainly is not."""
    position: Position | None = None
    """Where it is, once it is durable."""


class EntryMaker:
    """Makes one owner's entries."""

    def __init__(self, site: ShardSite, schema: TableSchema, tagging: Tagging) -> None:
        self._env = site.env
        self._encoder = EntryEncoder(schema, max_bytes=site.env.limits.entry_bytes)
        self._tagging = tagging

    def make(
        self,
        batches: Sequence[pa.RecordBatch],
        generation: Generation,
        tokens: Sequence[Token],
        *,
        more: Fill | None = None,
        is_staged: bool = False,
    ) -> Entry:
        """Encode an entry; `more`: what the batches add to a generation, if that is known."""
        filled = self._tagging.filled(generation, more or fill_of(batches))
        data = self._encoder.encode(
            batches,
            epoch=self._tagging.claim.epoch,
            generation=generation,
            entry_id=self._env.new_hex(),
            tokens=tokens,
            filled=None if is_staged else filled,
            is_staged=is_staged,
            batches_max=self._tagging.bounds.batches,
        )
        return Entry(batches, generation, data, filled, is_staged)
