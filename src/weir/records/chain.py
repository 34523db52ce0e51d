"""Compare-and-swap on any store: numbered records, each written with put-if-absent after the last.

To change a value, read the latest record and append the next number; of two appenders that started
from the same record, one gets `ObjectExists` and starts over. Numbers begin at 1. `Chain` deals in
bytes; `RecordChain` deals in one kind of record, and holds all records under `_weir/`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from uuid import UUID

from weir.errors import CorruptEntry, InvalidInput, StoreError
from weir.format import paths
from weir.records import codec
from weir.store.api import ObjectExists, ObjectMissing, Store

T = TypeVar("T")

_CAS_ATTEMPTS = 8
"""How often `latest` lists again when the record it found was pruned before it was read."""


@dataclass(frozen=True, slots=True)
class ChainRecord:
    """One record, and when the store wrote it."""

    seq: int
    data: bytes
    last_modified: float


class Chain:
    """The records in one folder; different appenders write different bytes (`RetryingStore`)."""

    def __init__(self, store: Store, directory: str) -> None:
        self._store = store
        self._directory = directory.rstrip("/")

    def latest(self) -> ChainRecord | None:
        """The record with the highest number, or None: one list, one get."""
        for _ in range(_CAS_ATTEMPTS):
            seqs = self._seqs()
            if not seqs:
                return None
            try:
                return self._load(seqs[-1])
            except ObjectMissing:
                continue  # pruned since the listing, so there is a newer one
        raise StoreError(
            f"{self._store.uri}/{self._directory}: the latest record was deleted before it could be"
            f" read, {_CAS_ATTEMPTS} times in a row; try again"
        )

    def last_number(self, known: int | None = None) -> int:
        """The highest number, or 0; one list, or one head when it still is `known`.

        Pass `known` only for a chain that is never pruned.
        """
        if known is not None and self._store.head(self._path(known + 1)) is None:
            return known
        return max(self._seqs(), default=0)

    def append(self, data: bytes, after: int) -> int:
        """Write record `after + 1` and return its number; `ObjectExists` when it is taken. One put.

        `after` is the number of the latest record as the caller knows it, 0 when there is none. A
        pruned number can be written again, so callers that prune keep enough records.
        """
        if after < 0:
            raise InvalidInput(f"after must not be negative, but is {after}")
        path = self._path(after + 1)
        try:
            self._store.put_if_absent(path, data)
        except ObjectExists:
            # A request that was retried in transit collides with itself (F-9).
            if not self._holds(path, data):
                raise
        return after + 1

    def _holds(self, path: str, data: bytes) -> bool:
        try:
            return self._store.get(path).data == data
        except ObjectMissing:
            return False

    def all(self) -> list[ChainRecord]:
        """Every record that is still there, ascending: one list, one get each."""
        records = []
        for seq in self._seqs():
            try:
                records.append(self._load(seq))
            except ObjectMissing:
                continue
        return records

    def prune(self, keep: int) -> int:
        """Delete all but the latest `keep` records (at least 1) and return how many were deleted.

        Keep more records than can be appended while an appender stalls between its read and its
        write, or that appender writes below the latest record and believes it won.
        """
        if keep < 1:
            raise InvalidInput(
                f"keep must be at least 1, not {keep}: the latest record stays (G-9)"
            )
        old = self._seqs()[:-keep]
        if old:
            self._store.delete([self._path(seq) for seq in old])
        return len(old)

    def _seqs(self) -> list[int]:
        _, objects = self._store.list_folder(self._directory)
        seqs = (paths.parse_chain_name(meta.path.rpartition("/")[2]) for meta in objects)
        return sorted(seq for seq in seqs if seq is not None)

    def _load(self, seq: int) -> ChainRecord:
        blob = self._store.get(self._path(seq))
        return ChainRecord(seq, blob.data, blob.meta.last_modified)

    def _path(self, seq: int) -> str:
        return paths.chain_path(self._directory, seq)


@dataclass(frozen=True)
class RecordCodec(Generic[T]):
    """How one kind of record becomes JSON and comes back."""

    name: str
    """Its name in error messages: "table record"."""
    encode: Callable[[T], Mapping[str, Any]]
    decode: Callable[[Mapping[str, Any], str], T]
    """Takes the values and the path they were read from; its errors become `CorruptEntry`."""

    def load(self, data: bytes, path: str) -> T:
        """The record in `data`, checked; `CorruptEntry` naming `path` otherwise."""
        raw = codec.loads(data, path)
        try:
            return self.decode(raw, path)
        except (KeyError, TypeError, ValueError, AttributeError, InvalidInput) as error:
            raise CorruptEntry(
                f"{path} is not a usable {self.name}: {error!r}. {codec.COPY}"
            ) from error


@dataclass(frozen=True, slots=True)
class Numbered(Generic[T]):
    """A record, its number, and when the store wrote it."""

    seq: int
    value: T
    written: float


class RecordChain(Generic[T]):
    """A chain whose records are all of one kind."""

    def __init__(self, store: Store, folder: str, kind: RecordCodec[T]) -> None:
        self._chain = Chain(store, folder)
        self._where = f"{store.uri}/{folder}"
        self._kind = kind

    def latest(self) -> Numbered[T] | None:
        """The current record, or None: one list, one get."""
        found = self._chain.latest()
        return None if found is None else self._decode(found)

    def last_number(self, known: int | None = None) -> int:
        """Like `Chain.last_number`."""
        return self._chain.last_number(known)

    def all(self) -> list[Numbered[T]]:
        """Every record that is still there, ascending: one list, one get each."""
        return [self._decode(found) for found in self._chain.all()]

    def append(self, value: T, after: int, *, nonce: UUID | None = None) -> int:
        """Write the record after number `after`; `ObjectExists` when somebody else did. One put.

        A nonce distinguishes equal records written by two appenders (F-9).
        """
        body = dict(self._kind.encode(value))
        if nonce is not None:
            body["nonce"] = nonce.hex
        return self._chain.append(codec.dumps(body), after)

    def prune(self, keep: int) -> int:
        """Like `Chain.prune`."""
        return self._chain.prune(keep)

    def _decode(self, found: ChainRecord) -> Numbered[T]:
        path = paths.chain_path(self._where, found.seq)
        return Numbered(found.seq, self._kind.load(found.data, path), found.last_modified)
