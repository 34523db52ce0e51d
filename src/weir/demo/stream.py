"""A realistic stream from a seed: a shop's orders with updates, deletes and an embedding.

The same seed gives the same events, so that every count can be checked against the generator.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa

VECTOR = 16
STATUSES = ("placed", "paid", "packed", "shipped", "delivered", "returned")
TOMBSTONE = "_tombstone"
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("customer", pa.string()),
        pa.field("status", pa.string()),
        pa.field("cents", pa.int64()),
        pa.field("revision", pa.int32()),
        pa.field("updated", pa.timestamp("us", tz="UTC")),
        pa.field("embedding", pa.list_(pa.float32(), VECTOR)),
    ]
)
EVENTS = SCHEMA.append(pa.field(TOMBSTONE, pa.bool_()))
"""Schema of the events: rows of the table, and a column that marks deletes."""

_NEW, _UPDATE = 0.55, 0.93
"""55 % of the events place an order, 38 % change one, 7 % delete one."""
_START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Orders:
    """The shop. `batch` makes events and remembers what the table must hold afterwards."""

    seed: int
    rows: dict[int, tuple[str, int, int]] = field(default_factory=dict)
    """The expected rows of the table: id to (status, cents, revision)."""
    events: int = 0
    puts: int = 0
    deletes: int = 0
    _next_id: int = 1

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)
        self._living: list[int] = []
        customers = self._random.normal(size=(200, VECTOR)).astype(np.float32)
        self._tastes: npt.NDArray[np.float32] = customers

    def batch(self, size: int) -> pa.Table:
        """The next `size` events; a key occurs at most once in them."""
        kinds = self._random.random(size)
        customers = self._random.integers(0, len(self._tastes), size)
        amounts = self._random.integers(199, 49_999, size)
        touched: set[int] = set()
        ids, statuses, cents, revisions, gone = [], [], [], [], []
        for kind, price in zip(kinds.tolist(), amounts.tolist(), strict=True):
            order = None if kind < _NEW else self._pick(touched)
            if order is None:
                order, status, amount, revision = self._next_id, STATUSES[0], price, 1
                self._next_id += 1
                self._living.append(order)
            else:
                status, amount, revision = self._advance(order)
            deleted = kind >= _UPDATE and revision > 1
            if deleted:
                self._remove(order)
            else:
                self.rows[order] = (status, amount, revision)
            touched.add(order)
            ids.append(order)
            statuses.append(status)
            cents.append(amount)
            revisions.append(revision)
            gone.append(deleted)
        self.events += size
        self.deletes += sum(gone)
        self.puts += size - sum(gone)
        return self._table(ids, customers, statuses, cents, revisions, gone)

    def expected(self) -> pa.Table:
        """The expected rows of the table, sorted by id."""
        ids = sorted(self.rows)
        values = [self.rows[order] for order in ids]
        return pa.table(
            {
                "id": pa.array(ids, pa.int64()),
                "status": pa.array([v[0] for v in values], pa.string()),
                "cents": pa.array([v[1] for v in values], pa.int64()),
                "revision": pa.array([v[2] for v in values], pa.int32()),
            }
        )

    def _pick(self, touched: set[int]) -> int | None:
        for _ in range(4):
            if not self._living:
                return None
            order = self._living[int(self._random.integers(0, len(self._living)))]
            if order not in touched:
                return order
        return None

    def _advance(self, order: int) -> tuple[str, int, int]:
        status, cents, revision = self.rows[order]
        place = min(STATUSES.index(status) + 1, len(STATUSES) - 1)
        return STATUSES[place], cents, revision + 1

    def _remove(self, order: int) -> None:
        del self.rows[order]
        place = self._living.index(order)
        self._living[place] = self._living[-1]
        self._living.pop()

    def _table(
        self,
        ids: list[int],
        customers: npt.NDArray[np.int64],
        statuses: list[str],
        cents: list[int],
        revisions: list[int],
        gone: list[bool],
    ) -> pa.Table:
        size = len(ids)
        noise = self._random.normal(scale=0.1, size=(size, VECTOR)).astype(np.float32)
        vectors = (self._tastes[customers] + noise).reshape(-1)
        seconds = int(_START.timestamp()) + self.events + np.arange(size)
        columns = [
            pa.array(ids, pa.int64()),
            pa.array([f"customer-{c:03d}" for c in customers.tolist()]),
            pa.array(statuses),
            pa.array(cents, pa.int64()),
            pa.array(revisions, pa.int32()),
            pa.array(seconds * 1_000_000, pa.int64()).cast(SCHEMA.field("updated").type),
            pa.FixedSizeListArray.from_arrays(pa.array(vectors), VECTOR),
            pa.array(gone),
        ]
        return pa.Table.from_arrays(columns, schema=EVENTS)


def batches(orders: Orders, total: int, size: int) -> Iterator[pa.Table]:
    """`total` events in pieces of `size`."""
    while total > 0:
        yield orders.batch(min(size, total))
        total -= size
