"""Lance's own filter over rows in memory, so that one SQL text means the same everywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import lance
import pyarrow as pa

from weir.lake.lance_errors import lance_errors


def filter_rows(
    rows: pa.Table, filter: str, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows that pass, projected to `columns`. Costs one write to memory: meant for few rows."""
    with lance_errors(f"filtering rows in memory by {filter!r}"):
        # A handle in memory has its own store, gone with the handle: the name is never shared.
        dataset = lance.write_dataset(rows, "memory://rows")
        scanner = dataset.scanner(columns=None if columns is None else list(columns), filter=filter)
        yield from scanner.to_batches()
