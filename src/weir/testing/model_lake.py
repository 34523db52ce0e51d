"""`weir.lake.api.Lake` as a model: SSTables and base versions as objects of a store, no Rust threads.

pylance's own threads and randomness escape the baton, so the mass runs use this in its place. It keeps to the
same contract (tests/contract holds both to it): an SSTable is complete or not there, a base version is a
put-if-absent of the next number, a fold planned before a fence cannot be committed after it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from weir.errors import CommitConflict, InvalidInput, MissingEntry, StoreError
from weir.format import paths
from weir.format.base_manifest import MemWalDetails
from weir.format.dedupe import newest_rows
from weir.format.keys import pk_values
from weir.format.schema import TOMBSTONE, TableSchema
from weir.lake.api import SsTableInfo
from weir.lake.filters import filter_rows
from weir.shard.levels import MemLevel
from weir.store.api import LostAnswer, ObjectExists, ObjectMissing, Store
from weir.types import Generation

FOLD: Final = "weir.fold"
FENCE: Final = "weir.fence"
_ATTEMPTS: Final = 20
_CACHE: dict[bytes, tuple[dict[str, Any], pa.Table]] = {}
_CACHE_MAX: Final = 256


@dataclass(frozen=True)
class ModelClaim:
    """As `weir.lake.fold.Claim`."""

    token: str
    fenced_at: int


def encode(header: Mapping[str, Any], rows: pa.Table) -> bytes:
    """A header and rows as one object."""
    sink = pa.BufferOutputStream()
    schema = rows.schema.with_metadata({b"model": json.dumps(header, sort_keys=True).encode()})
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


def decode(data: bytes) -> tuple[dict[str, Any], pa.Table]:
    """Back from an object; remembered, since histories read the same ones again and again."""
    known = _CACHE.get(data)
    if known is None:
        table = pa.ipc.open_stream(data).read_all()
        known = json.loads(table.schema.metadata[b"model"]), table.replace_schema_metadata(None)
        if len(_CACHE) >= _CACHE_MAX:
            _CACHE.clear()
        _CACHE[data] = known
    return known


class ModelSsTable:
    """One SSTable, read when first asked for rows."""

    def __init__(self, store: Store, path: str, schema: TableSchema) -> None:
        self._store = store
        self._path = path
        self._schema = schema
        self._loaded: MemLevel | None = None

    def _level(self) -> MemLevel:
        if self._loaded is None:
            try:
                data = self._store.get(f"{self._path}/data.arrow").data
            except ObjectMissing:
                raise MissingEntry(f"{self._store.uri}/{self._path} is gone") from None
            rows = decode(data)[1].cast(self._schema.wal)
            self._loaded = MemLevel(rows.to_batches(), self._schema)
        return self._loaded

    @property
    def rows(self) -> int:
        """Rows of a scan."""
        return self._level().rows

    def scan(
        self, columns: Sequence[str] | None = None, *, filter: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The newest row of each key, tombstones included."""
        return self._level().scan(columns, filter=filter)

    def lookup(self, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of those keys, tombstones included."""
        return self._level().lookup(keys, columns)


class ModelBase:
    """One version of the base."""

    def __init__(self, header: Mapping[str, Any], rows: pa.Table, schema: TableSchema) -> None:
        self.version = int(header["version"])
        self.properties: Mapping[str, str] = header["properties"]
        self.compacted: Mapping[UUID, int] = {
            UUID(shard): int(n) for shard, n in sorted(header["compacted"].items())
        }
        self.schema = schema
        self.table = rows
        marks = {shard: Generation(n) for shard, n in self.compacted.items()}
        self.mem_wal: MemWalDetails | None = MemWalDetails(1, (), (), False, marks, {}, {})  # noqa: FBT003

    def scan(
        self,
        columns: Sequence[str] | None = None,
        *,
        filter: str | None = None,
        fragments: Sequence[int] | None = None,
        limit: int | None = None,
        batch_size: int | None = None,
        with_row_address: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Live rows."""
        names = self.schema.plain.names if columns is None else list(columns)
        rows = self.table.cast(self.schema.plain)
        if filter is not None:
            yield from filter_rows(rows, filter, names)
            return
        rows = rows.select(names)
        yield from (rows if limit is None else rows.slice(0, limit)).to_batches()

    def count(self, filter: str | None = None) -> int:
        """Number of live rows."""
        return sum(batch.num_rows for batch in self.scan(filter=filter))

    def lookup(self, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of those keys."""
        names = self.schema.plain.names if columns is None else list(columns)
        wanted = set(pk_values(keys, self.schema.primary_key).to_pylist())
        have = pk_values(self.table, self.schema.primary_key).to_pylist()
        mask = pa.array([key in wanted for key in have], pa.bool_())
        return self.table.cast(self.schema.plain).filter(mask).select(names)

    def fragments(self) -> list[tuple[int, int]]:
        """One fragment."""
        return [(0, self.table.num_rows)] if self.table.num_rows else []


class ModelLake:
    """The Lance side of one table, as a model. Safe to share between threads of one actor."""

    def __init__(self, store: Store, schema: TableSchema) -> None:
        self.uri = store.uri
        self.store = store
        self._schema = schema

    # -- SSTables --------------------------------------------------------------------------------

    def write_sstable(
        self, shard: UUID, name: str, batches: Sequence[pa.RecordBatch], schema: TableSchema
    ) -> SsTableInfo:
        """Two objects, the data last to be read first; nothing is published."""
        rows = pa.Table.from_batches(batches, schema.wal)
        if schema.primary_key:
            rows = rows.take(pa.array(newest_rows(pk_values(rows, schema.primary_key))))
        folder = paths.sstable_dir(shard, name)
        # The name is random, so what is there under it is ours: Lance overwrites as well.
        self.store.put(f"{folder}/bloom_filter.bin", name.encode())
        self.store.put(f"{folder}/data.arrow", encode({"name": name}, rows))
        return SsTableInfo(rows.num_rows, rows.nbytes, None)

    def open_sstable(self, shard: UUID, name: str, schema: TableSchema) -> ModelSsTable:
        """Open for reading."""
        return ModelSsTable(self.store, paths.sstable_dir(shard, name), schema)

    # -- versions of the base --------------------------------------------------------------------

    def create_base(self) -> int:
        """An empty base."""
        return self._commit(0, self._schema.plain.empty_table(), {}, {"kind": "create"})

    def open_base(self, version: int | None = None) -> ModelBase:
        """The latest version, or that one."""
        if version is None:
            version = max(self._versions(), default=0)
        try:
            data = self.store.get(self._path(version)).data
        except ObjectMissing:
            raise MissingEntry(f"{self.uri}: base version {version} is gone") from None
        header, rows = decode(data)
        return ModelBase(header, rows, self._schema)

    def check_version(self, version: int) -> None:
        """Raise `MissingEntry` when that version is gone."""
        if self.store.head(self._path(version)) is None:
            raise MissingEntry(f"{self.uri}: base version {version} is gone")

    # -- folding ---------------------------------------------------------------------------------

    def fence_base(self, token: str) -> int:
        """A version that changes nothing; folds planned before it are dead."""
        for _ in range(_ATTEMPTS):
            base = self.open_base()
            try:
                return self._commit(
                    base.version, base.table, base.compacted, {FENCE: token, "kind": "fence"}
                )
            except ObjectExists:
                continue
        raise CommitConflict(f"{self.uri}: others keep committing")

    def fold_local(
        self,
        upserts: pa.Table,
        deletes: pa.Table,
        *,
        claim: Any,
        fold_id: str,
        marks: Mapping[UUID, int],
        properties: Mapping[str, str],
        base: ModelBase | None = None,
    ) -> int:
        """One commit with the rows and the properties, then the marks."""
        planned = base or self.open_base()
        for version in range(claim.fenced_at + 1, planned.version + 1):
            owner = self.open_base(version).properties.get(FENCE)
            if owner is not None and owner != claim.token:
                raise CommitConflict(f"{self.uri}: another compactor fenced at {version}")
        rows = self._folded(planned, upserts, deletes)
        made = self._commit_fold(rows, planned, fold_id, claim.token, dict(properties))
        self.mark_compacted(marks)
        return made

    def _folded(self, base: ModelBase, upserts: pa.Table, deletes: pa.Table) -> pa.Table:
        names = self._schema.plain.names
        fresh = upserts.select(names).cast(self._schema.plain)
        old = base.table.cast(self._schema.plain)
        if not self._schema.primary_key:
            return pa.concat_tables([old, fresh])
        keys = self._schema.primary_key
        gone = {*pk_values(fresh, keys).to_pylist(), *pk_values(deletes, keys).to_pylist()}
        kept = [key not in gone for key in pk_values(old, keys).to_pylist()]
        return pa.concat_tables([old.filter(pa.array(kept, pa.bool_())), fresh])

    def _commit_fold(
        self, rows: pa.Table, planned: ModelBase, fold_id: str, token: str, properties: dict[str, str]
    ) -> int:
        target = planned
        for _ in range(_ATTEMPTS):
            done = self.find_commit(FOLD, fold_id, after_version=planned.version)
            if done is not None:
                return done
            try:
                return self._commit(
                    target.version, rows, target.compacted, {**properties, FOLD: fold_id, "kind": "fold"}
                )
            except ObjectExists:
                target = self.open_base(target.version + 1)
                if target.properties["kind"] != "mark" and target.properties.get(FOLD) != fold_id:
                    raise CommitConflict(
                        f"{self.uri}: preempted by {target.properties['kind']} at {target.version}"
                    ) from None
            except LostAnswer as lost:
                fenced = self.fence_base(token)
                done = self.find_commit(FOLD, fold_id, after_version=planned.version)
                if done is None or done > fenced:
                    raise StoreError(f"{self.uri}: fold {fold_id} was not applied: {lost}") from lost
                return done
        raise CommitConflict(f"{self.uri}: others keep committing")

    def mark_compacted(self, marks: Mapping[UUID, int]) -> int | None:
        """Raise the marks; never lower one."""
        for _ in range(_ATTEMPTS):
            base = self.open_base()
            due = {s: g for s, g in marks.items() if g > base.compacted.get(s, 0)}
            if not due:
                return None
            try:
                return self._commit(
                    base.version, base.table, {**base.compacted, **due}, {"kind": "mark"}
                )
            except ObjectExists:
                continue
        raise CommitConflict(f"{self.uri}: others keep committing")

    def find_commit(self, key: str, value: str, *, after_version: int) -> int | None:
        """The newest version above `after_version` whose commit has that property."""
        for version, properties in self.commit_properties(after_version=after_version):
            if properties.get(key) == value:
                return version
        return None

    def commit_properties(self, *, after_version: int) -> Iterator[tuple[int, Mapping[str, str]]]:
        """(version, properties) of each commit above `after_version`, newest first."""
        for version in sorted(self._versions(), reverse=True):
            if version > after_version:
                yield version, self.open_base(version).properties

    # -- inside ----------------------------------------------------------------------------------

    def _versions(self) -> list[int]:
        _, objects = self.store.list_folder("_versions")
        return [int(meta.path.rpartition("/")[2].partition(".")[0]) for meta in objects]

    def _path(self, version: int) -> str:
        return f"_versions/{version:020d}.model"

    def _commit(
        self, after: int, rows: pa.Table, compacted: Mapping[UUID, int], properties: dict[str, str]
    ) -> int:
        """Version `after + 1`, or `ObjectExists`."""
        if TOMBSTONE in rows.schema.names:
            raise InvalidInput("the base holds no tombstones")
        header = {
            "version": after + 1,
            "compacted": {str(shard): n for shard, n in compacted.items()},
            "properties": properties,
        }
        self.store.put_if_absent(self._path(after + 1), encode(header, rows))
        return after + 1
