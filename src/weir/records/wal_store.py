"""Which store holds a shard's log: a chain per shard, `_weir/shards/{shard}/wal_store`.

Without a record the log is beside the data. One record prepares a move and the next one confirms or
refuses it: of a confirmation and a refusal, exactly one gets the number (S-3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

from weir.format import paths
from weir.records.chain import Numbered, RecordChain, RecordCodec
from weir.store.api import Store
from weir.store.open import recorded
from weir.types import Epoch

_NOBODY: Final = Epoch(0)


@dataclass(frozen=True, slots=True)
class WalStoreRecord:
    """Where a shard's log is and, during a move, where its owner is moving it."""

    uri: str | None = None
    store_id: str | None = None
    """None: beside the data."""
    after: int = 0
    """Entries at or below this position are in the log's previous place."""
    empty_after: int | None = None
    """Positions after this one, up to `after`, count as empty in every store: a store was lost that
    may hold fences nobody can count (S-2). None: there are no such positions."""
    epoch: Epoch = _NOBODY
    """The owner that wrote the record."""
    prepared: bool = False
    """True while a move is prepared and not confirmed; the values above still hold."""
    next_uri: str | None = None
    next_id: str | None = None
    """The target of a prepared move."""
    seq: int = 0
    """Number of the record; 0: there is none."""

    def confirmed(self, epoch: Epoch) -> WalStoreRecord:
        """The record by which that owner refuses a move: the log stays here."""
        return replace(self, epoch=epoch, prepared=False, next_uri=None, next_id=None)

    def moving(self, epoch: Epoch, uri: str | None, store_id: str | None) -> WalStoreRecord:
        """The record by which that owner prepares a move."""
        return replace(self, epoch=epoch, prepared=True, next_uri=uri, next_id=store_id)


def _encode(record: WalStoreRecord) -> dict[str, Any]:
    body: dict[str, Any] = {
        "uri": record.uri,
        "store_id": record.store_id,
        "epoch": record.epoch,
        "prepared": record.prepared,
        "after": record.after,
    }
    if record.empty_after is not None:
        body["empty_after"] = record.empty_after
    if record.prepared:
        body |= {"next_uri": record.next_uri, "next_id": record.next_id}
    return body


def _decode(raw: Mapping[str, Any], path: str) -> WalStoreRecord:
    uri, store_id, epoch, after = raw["uri"], raw["store_id"], raw["epoch"], raw.get("after", 0)
    if (uri is None) != (store_id is None) or not isinstance(store_id, str | None):
        raise ValueError("uri and store_id must both be strings or both be null (S-1)")
    empty_after = raw.get("empty_after")
    if type(epoch) is not int or type(after) is not int:
        raise ValueError("epoch and after must be integers")
    if empty_after is not None and type(empty_after) is not int:
        raise ValueError("empty_after must be an integer or null")
    next_id = raw.get("next_id")
    return WalStoreRecord(
        uri=None if uri is None else recorded(uri, path),
        store_id=store_id,
        after=after,
        empty_after=empty_after,
        epoch=Epoch(epoch),
        prepared=raw.get("prepared") is True,
        next_uri=raw.get("next_uri"),
        next_id=None if next_id is None else str(next_id),
    )


RECORD: Final = RecordCodec("WAL store record", _encode, _decode)


def _chain(store: Store, shard: UUID) -> RecordChain[WalStoreRecord]:
    return RecordChain(store, paths.wal_store_chain(shard), RECORD)


def _numbered(found: Numbered[WalStoreRecord]) -> WalStoreRecord:
    return replace(found.value, seq=found.seq)


def latest_record(store: Store, shard: UUID) -> WalStoreRecord:
    """Where the log is now. One list, and one get when it was ever moved."""
    found = _chain(store, shard).latest()
    return WalStoreRecord() if found is None else _numbered(found)


def all_records(store: Store, shard: UUID) -> list[WalStoreRecord]:
    """Every record the shard ever had, ascending. One list, one get each."""
    return [_numbered(found) for found in _chain(store, shard).all()]


def append_record(store: Store, shard: UUID, record: WalStoreRecord, nonce: UUID) -> WalStoreRecord:
    """Write the record after number `record.seq`; `ObjectExists` when somebody else did. One put.

    The nonce distinguishes the records of two writers (F-9).
    """
    return replace(record, seq=_chain(store, shard).append(record, record.seq, nonce=nonce))


def known_ids(store: Store, shard: UUID) -> set[str]:
    """Every store id this shard ever recorded, including targets of prepared moves."""
    records = all_records(store, shard)
    return {id_ for r in records for id_ in (r.store_id, r.next_id) if id_ is not None}
