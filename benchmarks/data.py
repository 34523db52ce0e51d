"""The rows that every side writes: a key, a number, a short text."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("v", pa.float64()),
        pa.field("s", pa.string()),
    ]
)
_TEXTS = pa.array([f"text of row {i:08d}" for i in range(1000)])


def batch(start: int, rows: int) -> pa.RecordBatch:
    """Rows with the keys `start`, `start + 1`, ..."""
    return from_keys(np.arange(start, start + rows, dtype=np.int64))


def from_keys(keys: np.ndarray) -> pa.RecordBatch:
    """One row for each key."""
    return pa.RecordBatch.from_arrays(
        [pa.array(keys), pa.array(keys * 0.5), _TEXTS.take(pa.array(keys % len(_TEXTS)))],
        schema=SCHEMA,
    )


def batches(count: int, rows: int) -> list[pa.RecordBatch]:
    """Consecutive batches."""
    return [batch(i * rows, rows) for i in range(count)]


def overlapping(generation: int, rows: int, base_rows: int) -> pa.RecordBatch:
    """Rows that update keys of the base, update keys of older generations, and insert new keys.

    Half of them have keys of the base, chosen at random; generations share some of their keys.
    """
    chance = np.random.default_rng(generation)
    old = chance.choice(base_rows, rows // 2, replace=False)
    new = base_rows + chance.choice(2 * rows, rows - rows // 2, replace=False)
    return from_keys(np.concatenate([old, new]).astype(np.int64))
