"""An entry to be written to the log: encoded once, and the same bytes in every attempt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from weir.format.wal_entry import Fill
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
