"""The objects of the model of Lance: base versions and SSTables, as Arrow streams with a header."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
from lance.fragment import FragmentMetadata

from weir.errors import MissingEntry
from weir.format.base_manifest import MemWalDetails, ShardingField, ShardingSpec
from weir.format.expiry import Expire
from weir.format.keys import pk_values
from weir.format.schema import TableSchema
from weir.lake.api import Base, Scanned, SsTableReader
from weir.lake.filters import filter_rows
from weir.lake.live_rows import RowRange
from weir.merge.levels import MemLevel
from weir.store.api import ObjectMissing, Store
from weir.types import Generation

_CACHE: dict[bytes, tuple[dict[str, Any], pa.Table]] = {}
_CACHE_MAX: Final = 256
_UNSHARDED: Final = ShardingField("bucket", (), "unsharded", None, "int32", {})


def encode(header: Mapping[str, Any], rows: pa.Table) -> bytes:
    """A header and rows as one object."""
    sink = pa.BufferOutputStream()
    schema = rows.schema.with_metadata({b"model": json.dumps(header, sort_keys=True).encode()})
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


def decode(data: bytes) -> tuple[dict[str, Any], pa.Table]:
    """Header and rows of an object; cached, since histories read the same ones again and again."""
    known = _CACHE.get(data)
    if known is None:
        table = pa.ipc.open_stream(data).read_all()
        known = json.loads(table.schema.metadata[b"model"]), table.replace_schema_metadata(None)
        if len(_CACHE) >= _CACHE_MAX:
            _CACHE.clear()
        _CACHE[data] = known
    return known


class ModelSsTable(SsTableReader):
    """One SSTable, read when its rows are first needed."""

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

    def scan(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The newest row of each key, tombstones included."""
        return self._level().scan(columns)

    def part(self, within: RowRange) -> Scanned:
        """A range of its rows."""
        wal = self._schema.wal
        rows = pa.Table.from_batches(self._level().scan(), wal).slice(*within)
        return MemLevel(rows.to_batches(), self._schema)

    def lookup(self, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of those keys, tombstones included."""
        return self._level().lookup(keys, columns)


class ModelBase(Base):
    """One version of the base, its rows as one table."""

    is_lance = False
    has_key_index = False

    def __init__(self, header: Mapping[str, Any], rows: pa.Table, schema: TableSchema) -> None:
        self.header = header
        self.table = rows
        self._schema = schema
        self.properties: Mapping[str, str] = header["properties"]

    def __repr__(self) -> str:
        return f"ModelBase({self.version})"

    @property
    def dataset(self) -> Any:
        """None: `FragmentBase` has one."""
        raise AssertionError("this model has no files")

    @property
    def version(self) -> int:
        """The number of this version."""
        return int(self.header["version"])

    @property
    def schema(self) -> TableSchema:
        """The table's schema, which never changes here."""
        return self._schema

    @property
    def expire(self) -> Expire | None:
        """None: no row expires here."""
        return None

    @property
    def marked(self) -> Mapping[UUID, int]:
        """The highest generation marked, by shard."""
        return {UUID(shard): int(n) for shard, n in sorted(self.header["marked"].items())}

    @property
    def compacted(self) -> Mapping[UUID, int]:
        """The marks, and generations that a fold noted but did not mark yet."""
        found = dict(self.marked)
        for shard, number in sorted(self.header["noted"].items()):
            found[UUID(shard)] = max(number, found.get(UUID(shard), 0))
        return found

    @property
    def fold_number(self) -> int:
        """The number of the last fold."""
        return int(self.header.get("number", 0))

    @property
    def load_number(self) -> int:
        """0: nothing is loaded here past the log."""
        return 0

    @property
    def mem_wal(self) -> MemWalDetails | None:
        """The marks as the MemWAL index would hold them."""
        marks = {shard: Generation(n) for shard, n in self.marked.items()}
        specs = tuple(ShardingSpec(n, (_UNSHARDED,)) for n in self.header.get("specs", ()))
        return MemWalDetails(1, specs, (), False, marks, {}, {})

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

    @property
    def rows(self) -> int:
        """Number of live rows."""
        return int(self.table.num_rows)

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

    def fragment(self, fragment_id: int) -> Any:
        """None."""
        raise MissingEntry(f"{self!r} has no fragment {fragment_id}")

    def write_fragments(
        self, data: Any, *, rows_per_file: int, bytes_per_file: int
    ) -> list[FragmentMetadata]:
        """See `FragmentBase`; here the keepers write what a fold adds (`write_changes`)."""
        raise AssertionError("this model has no files")

    def deleted_rows(self) -> int:
        """See `LanceBase`; no file is modelled."""
        return 0

    def fragments(self) -> list[tuple[int, int]]:
        """One fragment."""
        return [(0, self.table.num_rows)] if self.table.num_rows else []
