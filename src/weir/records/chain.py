"""Compare-and-swap on any store: numbered records, each written with put-if-absent after the last.

To change a value, read the latest record and append the next number; of two appenders that started
from the same record, one gets `ObjectExists` and starts over. Numbers begin at 1. All records of a
chain are of one kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Generic, TypeVar

from msgspec.structs import replace

from weir.env import Env
from weir.errors import CommitConflict, CorruptEntry, InvalidInput, StoreError
from weir.format import paths
from weir.records import codec
from weir.records.codec import Record
from weir.store.api import Meta, ObjectExists, ObjectMissing, Store

R = TypeVar("R", bound=Record)

Listed = Mapping[int, Meta]
"""The records of one chain, by number, ascending."""

READ_AT_ONCE: Final = 64
"""Records that are requested together: each may have a pin for every shard."""
_HIGHEST: Final = 1 << 63
LOOKS: Final = 8
"""How often a chain is listed again when a record was removed before it was read."""


class RecordChain(Generic[R]):
    """The records in one folder; different appenders write different bytes (`RetryingStore`)."""

    def __init__(self, store: Store, folder: str, kind: type[R]) -> None:
        self._store = store
        self._folder = folder
        self._kind = kind

    def latest(self) -> R | None:
        """The record with the highest number, or None: one list, one get."""
        for _ in range(LOOKS):
            numbers = self._numbers()
            if not numbers:
                return None
            try:
                blob = self._store.get(self._path(numbers[-1]))
                return self._load(numbers[-1], blob.data, blob.meta)
            except ObjectMissing:
                continue  # pruned since the listing, so there is a newer one
        raise StoreError(
            f"{self._where}: the latest record was deleted before it could be read, {LOOKS} times"
            " in a row; try again"
        )

    def load(self, number: int) -> R | None:
        """The record with that number, or None. One get."""
        try:
            blob = self._store.get(self._path(number))
        except ObjectMissing:
            return None
        return self._load(number, blob.data, blob.meta)

    def last_number(self, known: int | None = None) -> int:
        """The highest number, or 0; one list, or one head when it still is `known`.

        Pass `known` only for a chain that is never pruned.
        """
        if known is not None and self._store.head(self._path(known + 1)) is None:
            return known
        return max(self._numbers(), default=0)

    def all(self) -> list[R]:
        """Every record that is still there, ascending: one list, one get each, many at once."""
        records, listed = [], self._listed()
        for start in range(0, len(listed), READ_AT_ONCE):
            some = listed[start : start + READ_AT_ONCE]
            found = self._store.get_many([meta.path for _, meta in some])
            for (number, meta), data in zip(some, found, strict=True):
                if data is not None:  # else it was pruned since the listing
                    records.append(self._load(number, data, meta))
        return records

    def append(self, record: R) -> R:
        """Write the record as the one after number `record.seq`, and return it with its number.

        `ObjectExists` when somebody else was faster. One put. `seq` is the number of the latest
        record as the caller knows it, 0 when there is none. A pruned number can be written again,
        so callers that prune keep enough records.
        """
        if record.seq < 0:
            raise InvalidInput(f"a record follows number {record.seq}, which cannot be")
        path, data = self._path(record.seq + 1), codec.dumps(record)
        try:
            self._store.put_if_absent(path, data)
        except ObjectExists:
            # A request that was retried in transit collides with itself (F-9).
            if not self._holds(path, data):  # guard: F-9 always test_reshard_resumed_beside_a_claim
                raise
        return replace(record, seq=record.seq + 1)

    def follow(self, record: R, busy: str) -> R:
        """`append`; `CommitConflict`, which says `busy`, when somebody else was faster."""
        try:
            return self.append(record)
        except ObjectExists:
            raise CommitConflict(f"{self._store.uri}: {busy}") from None

    def update(self, change: Callable[[R | None], R | None], env: Env, busy: str) -> R | None:
        """Append `change(latest)`, starting over when somebody else was faster; returns the latest.

        A change to None, or to the same record, appends nothing. `CommitConflict`, which says
        `busy`, when others were faster every time.
        """
        for _ in env.attempts():
            current = self.latest()
            changed = change(current)
            if changed is None or changed == current:
                return current
            after = 0 if current is None else current.seq
            try:
                return self.append(replace(changed, seq=after))
            except ObjectExists:
                continue
        raise CommitConflict(f"{self._where}: {busy}")

    def prune(self, keep: int) -> int:
        """Delete all but the latest `keep` records (at least 1) and return how many were deleted.

        Keep more records than can be appended while an appender stalls between its read and its
        write, or that appender writes below the latest record and believes it won.
        """
        if keep < 1:
            raise InvalidInput(f"keep must be at least 1, not {keep}: the latest record stays")
        old = self._numbers()[:-keep]
        if old:
            self._store.delete([self._path(number) for number in old])
        return len(old)

    @property
    def _where(self) -> str:
        return f"{self._store.uri}/{self._folder}"

    def _holds(self, path: str, data: bytes) -> bool:
        try:
            return self._store.get(path).data == data
        except ObjectMissing:
            return False

    def _numbers(self) -> list[int]:
        return [number for number, _ in self._listed()]

    def _listed(self) -> list[tuple[int, Meta]]:
        return list(list_chain(self._store, self._folder).items())

    def _load(self, number: int, data: bytes, meta: Meta) -> R:
        return read_record(self._store, number, data, meta, self._kind)

    def _path(self, number: int) -> str:
        return paths.chain_path(self._folder, number)


def read_record(store: Store, number: int, data: bytes, meta: Meta, kind: type[R]) -> R:
    """The record of that number, or `CorruptEntry` naming its path."""
    record = codec.loads(data, kind, f"{store.uri}/{meta.path}")
    return replace(record, seq=number, written=meta.last_modified)


def list_chain(store: Store, folder: str) -> Listed:
    """The records in that folder. One list."""
    _, objects = store.list_folder(folder)
    return _by_number(objects)


def list_chains(store: Store, root: str) -> dict[str, Listed]:
    """Every chain below `root`, by its folder. One listing."""
    folders: dict[str, list[Meta]] = {}
    for meta in store.list(root):
        folders.setdefault(meta.path.rpartition("/")[0], []).append(meta)
    found = {folder: _by_number(metas) for folder, metas in sorted(folders.items())}
    return {folder: listed for folder, listed in found.items() if listed}


def _by_number(objects: Iterable[Meta]) -> Listed:
    named = ((paths.parse_chain_name(meta.path.rpartition("/")[2]), meta) for meta in objects)
    listed = dict(sorted((number, meta) for number, meta in named if number is not None))
    last = max(listed, default=0)
    if last > _HIGHEST:  # guard: G-13 test_marks_of_strangers
        raise CorruptEntry(
            f"{listed[last].path} has a number that no chain of records reaches: another program"
            " put it there. Find out which, and delete that object"
        )
    return listed
