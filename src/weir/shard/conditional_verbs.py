"""The verbs of a writer that look before they write; how they are decided is in looking.py."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from weir.config import WriterConfig
from weir.shard.conditional import ConditionalWrites
from weir.shard.once import ExactlyOnce
from weir.shard.request import Request, WriteCounts
from weir.shard.request_builder import Missing, OnConflict, WriteSpec
from weir.types import Rows


class ConditionalVerbs(ABC):
    """The verbs of `ShardWriter` besides put and delete.

    Each call sees every row of its keys that this writer accepted before it, and none that comes
    after; concurrent calls on one key behave as if one came after the other (O-2). Keyed tables and
    MemTable mode only: else `InvalidInput` or `WalOnlyMode`.
    """

    config: WriterConfig
    once: ExactlyOnce

    @abstractmethod
    def _check_open(self, batches: Sequence[pa.RecordBatch] = ()) -> None:
        """Raise, with those rows, unless the writer is open."""

    @abstractmethod
    def _conditional_writes(self, call: str) -> ConditionalWrites:
        """Return the object that decides, or raise why nothing can be decided."""

    def update(
        self, rows: Rows, *, missing: Missing = "error", timeout: float | None = None
    ) -> WriteCounts:
        """Set some columns of rows: `rows` hold the key and those columns, the others keep theirs.

        A column given as null becomes null; one left out of a row stays. `missing` says what
        becomes of keys that do not exist: "error" (`KeyConflict`, and nothing is written), "skip",
        or "insert" (columns left out are null). Durable on return, with `durable_write`. Raises
        what `put` raises, with the rows as they were given. One lookup serves all concurrent calls:
        no request for keys in memory, else what `get` costs; then the cost of a put.
        """
        looking = self._conditional_writes("update")
        request = looking.requests.update(rows, missing)
        return looking.run(request, wait=self.config.durable_write, timeout=timeout)

    def update_shaped(
        self, batches: list[pa.RecordBatch], *, missing: Missing, timeout: float | None
    ) -> WriteCounts:
        """`update` of rows that `PartialRows` of the same schema has shaped."""
        looking = self._conditional_writes("update")
        request = looking.requests.update_shaped(batches, missing)
        return looking.run(request, wait=self.config.durable_write, timeout=timeout)

    def _put_when(self, rows: Rows, when: str, timeout: float | None) -> WriteCounts:
        looking = self._conditional_writes("put")
        request = looking.requests.put_when(rows, when)
        return looking.run(request, wait=self.config.durable_write, timeout=timeout)

    def insert(
        self, rows: Rows, *, on_conflict: OnConflict = "error", timeout: float | None = None
    ) -> WriteCounts:
        """Put rows whose keys do not exist.

        `on_conflict`: "error" writes nothing and raises `KeyConflict`, which names the keys; "skip"
        leaves rows that exist alone. Called again after an unknown outcome, "skip" tells what was
        written (O-5). Otherwise like `update`.
        """
        looking = self._conditional_writes("insert")
        request = looking.requests.insert(rows, on_conflict)
        return looking.run(request, wait=self.config.durable_write, timeout=timeout)

    def delete_where(self, filter: str, *, timeout: float | None = None) -> WriteCounts:
        """Delete the rows that pass a filter, SQL as in `scan`.

        Keys are found while a scan runs, in bounded memory; each row is decided again when it is
        deleted, so one that changed and no longer passes is left alone (counted as skipped). Atomic
        for each row, not for all: rows that pass later are not found, and an error leaves those
        before it deleted.
        """
        looking = self._conditional_writes("delete_where")
        self._check_open()  # it reads before it has rows to hand back
        return self._each(looking, looking.requests.where(filter, None), timeout)

    def update_where(
        self, filter: str, assignments: Mapping[str, str], *, timeout: float | None = None
    ) -> WriteCounts:
        """Set columns of the rows that pass a filter: `{"price": "price * 1.1"}`, SQL over the row.

        A value that the column's type cannot hold exactly is refused: cast it. Otherwise like
        `delete_where`.
        """
        looking = self._conditional_writes("update_where")
        self._check_open()  # it reads before it has rows to hand back
        return self._each(looking, looking.requests.where(filter, assignments), timeout)

    def decide_once(
        self, rows: Rows, asked: WriteSpec, *, app: str, version: int
    ) -> WriteCounts | None:
        """Do what `asked` says with those rows; None if batch `version` of `app`, or a later one,
        is in (P-2). For batches that may be sent again: the decision is made once."""
        looking = self._conditional_writes(asked.verb)
        requests = looking.requests
        batches = requests.shaped(rows, asked)
        self._check_open(batches)
        return looking.run_once(
            self.once,
            batches,
            lambda left: requests.of(left, asked),
            app=app,
            version=version,
            timeout=None,
        )

    def _each(
        self, looking: ConditionalWrites, requests: Iterator[Request], timeout: float | None
    ) -> WriteCounts:
        total = WriteCounts()
        for request in requests:
            total += looking.run(request, wait=self.config.durable_write, timeout=timeout)
        if total == WriteCounts() and self.config.durable_write:
            looking.confirm(timeout)
        return total
