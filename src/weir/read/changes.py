"""The log of all shards as a change feed that can be resumed.

Keeps
  F-12 fences are skipped
  K-8  a following feed survives an error of the store: it logs, counts and polls again
  G-7c a bookmark below the WAL floor raises an error that says so, never a silent skip
Changes of one shard come in the order they were made durable; between shards there is no order.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Literal
from uuid import UUID

import numpy as np
import pyarrow as pa

from weir.errors import (
    InvalidInput,
    SnapshotExpired,
    StoreDenied,
    StoreError,
    WalStoreMismatch,
)
from weir.format.schema import TOMBSTONE, TableSchema, align_batch
from weir.format.wal_entry import WalEntry
from weir.log.tailer import WalTailer
from weir.merge.levels import shaped
from weir.read.expiries import Expiries
from weir.routing.core import Core

logger = logging.getLogger("weir.table")

Kind = Literal["put", "delete", "expire"]
_EXPIRED: Final = "expired_through"


@dataclass(frozen=True)
class Bookmark:
    """How far a consumer has read: the last position per shard. Small, serializable, comparable."""

    positions: Mapping[UUID, int] = field(default_factory=dict)
    expired_through: float | None = None
    """For a feed that reports expired rows: it has reported those whose time is at or before this,
    in seconds since 1970."""

    def to_json(self) -> str:
        """The bookmark as JSON text."""
        record: dict[str, float] = {str(shard): at for shard, at in self.positions.items()}
        if self.expired_through is not None:
            record[_EXPIRED] = self.expired_through
        return json.dumps(record, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Bookmark:
        """Parse the text made by `to_json`; `InvalidInput` for anything else."""
        try:
            raw = json.loads(text)
            expired = raw.pop(_EXPIRED, None)
            positions = {UUID(shard): int(position) for shard, position in raw.items()}
            return Bookmark(positions, None if expired is None else float(expired))
        except (ValueError, TypeError, AttributeError) as error:
            raise InvalidInput(f"not a bookmark: {error!r}") from error


@dataclass(frozen=True)
class Change:
    """Rows that became durable together, all puts or all deletes; or that have expired."""

    shard: UUID
    position: int
    """Position of the entry; for expired rows, the last position reported for this shard."""
    epoch: int
    """Epoch of the entry; 0 for expired rows, which no writer wrote."""
    kind: Kind
    batch: pa.RecordBatch
    """Put: whole rows in the table's schema. Delete and expire: the key columns, or whole rows if
    the table has no key."""


class Changes:
    """An iterator of `Change`; `bookmark` is where to resume after the changes handed out.

    The bookmark moves past an entry when the consumer requests the change after its last one: a
    consumer that stops within an entry gets all changes of that entry again.
    """

    def __init__(
        self,
        core: Core,
        since: Bookmark | str | None = None,
        *,
        follow: bool = False,
        poll: float = 0.1,
        stop: Callable[[], bool] = lambda: False,
        expired: bool = False,
    ) -> None:
        """Use `Table.changes`."""
        if isinstance(since, str):
            since = Bookmark.from_json(since)
        if since is not None and not isinstance(since, Bookmark):
            raise InvalidInput(f"since must be a Bookmark or its text, got {since!r}")
        self._core = core
        self._positions: dict[UUID, int] = dict(since.positions) if since else {}
        self._resumes = since is not None
        self._follow = follow
        self._poll = poll
        self._stop = stop
        self._tailers: dict[UUID, WalTailer] = {}
        self._is_late = False
        """True after the first round over all shards: later shards appeared while following."""
        self._begun: set[UUID] = set()
        """Shards of which an entry was handed out."""
        self.failed_polls = 0
        """Rounds of a following feed that failed with a store error and were repeated (K-8)."""
        through = None if since is None else since.expired_through
        self._expired_through = through
        self._expiries = Expiries(core, through) if expired else None
        self._rows = self._run()

    @property
    def bookmark(self) -> Bookmark:
        """Everything handed out before the current change."""
        expiries = self._expiries
        through = self._expired_through if expiries is None else expiries.through
        return Bookmark(dict(self._positions), through)

    def __iter__(self) -> Iterator[Change]:
        return self

    def __next__(self) -> Change:
        return next(self._rows)

    def _run(self) -> Iterator[Change]:
        while True:
            yield from self.poll()
            if not self._follow or self._stop():
                return
            self._core.env.clock.sleep(self._poll)

    def poll(self) -> Iterator[Change]:
        """The changes available now, without waiting for more; call it repeatedly."""
        try:
            yield from self._round()
        except StoreDenied:
            raise
        except StoreError as error:
            if not self._follow:
                raise
            self.failed_polls += 1
            logger.warning("changes.poll.failed table=%s reason=%s", self._core.uri, error)

    def _round(self) -> Iterator[Change]:
        """Read every shard up to the current end of its log."""
        schema = self._core.schema()
        if self._expiries is not None:
            self._expiries.begin()
        for shard in self._core.shard_ids():
            yield from self._read_all(shard, schema)
            if self._stop():
                return
        self._is_late = True
        if self._expiries is not None:
            for shard, gone in self._expiries.since():
                yield Change(shard, self._positions.get(shard, 0), 0, "expire", gone)

    def _read_all(self, shard: UUID, schema: TableSchema) -> Iterator[Change]:
        while True:
            try:
                if shard not in self._tailers:
                    self._tailers[shard] = self._start(shard)
                yield from self._read(shard, self._tailers[shard], schema)
                return
            except WalStoreMismatch as lost:
                if not self._pass_lost(shard, lost):
                    return

    def _pass_lost(self, shard: UUID, lost: WalStoreMismatch) -> bool:
        """S-7: continue after a lost log whose rows are all in the table, if that is allowed.

        False if nothing was written after the lost log yet. A lost log is treated like a collected
        one: a feed that had begun before it raises, and a new feed starts after it.
        """
        shard_log = self._core.log(shard)
        at = self._positions[shard]
        through = shard_log.lost_through(at + 1)
        if through is None:
            raise lost
        if at >= through:
            return False
        if self._resumes or self._is_late or shard in self._begun:
            raise SnapshotExpired(
                f"{shard_log}: this feed is at position {at}, but the log up to {through} was lost"
                f" ({lost}). The table still has every row: read it once (scan), then follow from"
                " a new bookmark"
            ) from lost
        logger.warning("changes.lost shard=%s positions=%d-%d", shard, at + 1, through)
        self._positions[shard] = through
        del self._tailers[shard]
        return True

    def _start(self, shard: UUID) -> WalTailer:
        shard_log = self._core.log(shard)
        floor = shard_log.floors().wal
        known = self._positions.get(shard)
        if known is None and floor and (self._resumes or self._is_late):
            raise SnapshotExpired(
                f"{shard_log}: this feed has not read this shard yet, and its log was collected up"
                f" to position {floor}; read the table once (scan), then follow from a new bookmark"
            )
        if known is not None and known < floor:
            raise SnapshotExpired(
                f"{shard_log}: the bookmark is at position {known}, but the log was collected up to"
                f" {floor}; read the table once (scan), then follow from a new bookmark"
            )
        start = (floor if known is None else known) + 1
        self._positions.setdefault(shard, start - 1)
        return WalTailer(shard_log, start)

    def _read(self, shard: UUID, tailer: WalTailer, schema: TableSchema) -> Iterator[Change]:
        for entry in tailer:
            at = int(entry.position)
            for kind, batch in _runs(entry, schema):
                yield Change(shard, at, int(entry.epoch), kind, batch)
                if self._expiries is not None and kind == "put":
                    gone = self._expiries.late(batch, schema)
                    if gone is not None:
                        yield Change(shard, at, 0, "expire", gone)
            self._positions[shard] = int(entry.position)
            self._begun.add(shard)
        # Fences after the last rows are skipped as well (F-12).
        self._positions[shard] = max(self._positions[shard], int(tailer.position) - 1)


def _runs(
    entry: WalEntry, schema: TableSchema
) -> Iterator[tuple[Literal["put", "delete"], pa.RecordBatch]]:
    """The rows of an entry as runs of one kind, in order."""
    key = schema.key_schema
    for stored in entry.batches:
        batch = align_batch(stored, schema.wal)
        marks = batch.column(TOMBSTONE).to_numpy(zero_copy_only=False)
        edges = [0, *(np.flatnonzero(marks[1:] != marks[:-1]) + 1).tolist(), len(marks)]
        for start, end in pairwise(edges):
            rows = batch.slice(start, end - start)
            if marks[start]:
                yield "delete", shaped(rows, key)
            else:
                yield "put", shaped(rows, schema.plain)
