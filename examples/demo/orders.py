"""A shop's orders from a seed: new ones, changes and deletes. The same seed gives the same events,
so every row of the table can be checked against what the generator remembers."""

import numpy as np
import pyarrow as pa

STATUSES = ("placed", "paid", "packed", "shipped", "delivered", "returned")
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("status", pa.string()),
        pa.field("cents", pa.int64()),
        pa.field("revision", pa.int32()),
        pa.field("embedding", pa.list_(pa.float32(), 16)),
    ]
)
EVENTS = SCHEMA.append(pa.field("_tombstone", pa.bool_()))
"""Rows of the table, and a column that marks deletes."""


class Orders:
    """`batch` makes events, and `rows` is what the table must hold after them."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.rows: dict[int, tuple[str, int, int]] = {}
        self.deletes = 0
        self._last = 0

    def batch(self, size: int) -> pa.Table:
        """The next events; a key occurs at most once in them. One in two places an order, one in
        fourteen deletes one, the rest change one."""
        known = list(self.rows)
        self.random.shuffle(known)
        events = []
        for kind in self.random.random(size).tolist():
            if kind < 0.5 or not known:
                self._last += 1
                order = self._last
                row = (STATUSES[0], int(self.random.integers(199, 49_999)), 1)
            else:
                order = known.pop()
                status, cents, revision = self.rows[order]
                place = min(STATUSES.index(status) + 1, len(STATUSES) - 1)
                row = (STATUSES[place], cents, revision + 1)
            is_delete = kind > 0.93 and row[2] > 1
            if is_delete:
                del self.rows[order]
                self.deletes += 1
            else:
                self.rows[order] = row
            events.append((order, *row, is_delete))
        ids, statuses, cents, revisions, gone = zip(*events, strict=True)
        vectors = self.random.normal(size=size * 16).astype(np.float32)
        embeddings = pa.FixedSizeListArray.from_arrays(pa.array(vectors), 16)
        columns = [ids, statuses, cents, revisions, embeddings, gone]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, EVENTS, strict=True)]
        return pa.Table.from_arrays(arrays, schema=EVENTS)
