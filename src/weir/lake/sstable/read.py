"""Reading one SSTable: scans in the shape of the current schema, lookups that read little.

A lookup searches an index of the SSTable's keys (cached, 16 bytes a key) and fetches only the rows
found. Caches are bounded in size and keyed by the SSTable's path, which is never used for other
bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import lance
import numpy as np
import pyarrow as pa

from weir.format.nested import as_type
from weir.format.schema import (
    FIELD_ID,
    TOMBSTONE,
    TOMBSTONE_FIELD,
    TableSchema,
    align_batch,
    is_same_column,
    no_rows,
)
from weir.lake.base.view import SCAN_BATCH_ROWS
from weir.lake.files import Columns, FileLookups, KeyedFile
from weir.lake.lance_errors import lance_errors
from weir.lake.live_rows import RowRange, scan_past_deletes
from weir.lake.schemas import with_field_ids
from weir.lake.shared import SharedDataset
from weir.lazy import Lazy

_Rows = TypeVar("_Rows", pa.RecordBatch, pa.Table)


@dataclass(frozen=True)
class _Projection:
    """How the requested columns are read: names in the SSTable, and the shape they take."""

    source_names: list[str]
    source: pa.Schema
    target: pa.Schema
    is_same: bool

    @Lazy
    def stored(self) -> Columns:
        return tuple((name, 0) for name in self.source_names)

    @Lazy
    def empty(self) -> pa.Table:
        return no_rows(self.target)

    def apply(self, rows: _Rows) -> _Rows:
        if self.is_same:
            return rows
        columns = [
            as_type(column, field.type) if field.type.num_fields else column
            for column, field in zip(rows.columns, self.source, strict=True)
        ]
        shaped = type(rows).from_arrays(columns, schema=self.source)
        if TOMBSTONE in self.target.names and TOMBSTONE not in self.source.names:
            # pylance accepts an SSTable without `_tombstone` as one without deletes.
            no_deletes = pa.array(np.zeros(rows.num_rows, np.bool_))
            shaped = shaped.append_column(TOMBSTONE_FIELD, no_deletes)
        return align_batch(shaped, self.target)


@dataclass(frozen=True)
class SsTablePart:
    """A range of the rows of an SSTable, to be scanned."""

    table: LanceSsTable
    within: RowRange

    @property
    def rows(self) -> int:
        """At least the number of rows a scan gives."""
        return min(self.within[1], self.table.rows)

    def scan(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows in this range that are the newest of their key in the SSTable."""
        projection = self.table.projection(columns)
        dataset, names = self.table.dataset, projection.source_names
        with lance_errors(f"scanning {dataset.uri}"):
            for batch in scan_past_deletes(
                dataset, names, within=self.within, batch_size=SCAN_BATCH_ROWS
            ):
                yield projection.apply(batch)


class LanceSsTable:
    """One published SSTable. Immutable and safe to share between threads."""

    def __init__(
        self,
        dataset: SharedDataset,
        path: str,
        schema: TableSchema,
        lookups: FileLookups,
    ) -> None:
        self.dataset = dataset
        self._path = path
        self.schema = schema
        self._lookups = lookups
        self._projections: dict[tuple[str, ...], _Projection] = {}

    def __repr__(self) -> str:
        return f"LanceSsTable({self.dataset.uri})"

    @Lazy
    def rows(self) -> int:
        """Number of rows a scan gives; from the manifest alone."""
        with lance_errors(f"counting rows of {self.dataset.uri}"):
            return int(self.dataset.count_rows())

    def scan(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The newest row of each key (all rows without a key), tombstones included."""
        yield from self._read(self.projection(columns))

    def part(self, within: RowRange) -> SsTablePart:
        """A range of its rows, counting those that a later row of the SSTable replaces."""
        return SsTablePart(self, within)

    def _read(self, projection: _Projection) -> Iterator[pa.RecordBatch]:
        with lance_errors(f"scanning {self.dataset.uri}"):
            scanner = self.dataset.scanner(
                columns=projection.source_names,
                batch_size=SCAN_BATCH_ROWS,
                scan_in_order=True,
            )
            for batch in scanner.to_batches():
                yield projection.apply(batch)

    def lookup(self, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of `keys` found here, tombstones included, in no promised order.

        Warm: no request unless a key is found, then one read of its rows. Cold: one read of the key
        columns first.
        """
        wanted = self._wanted(columns)
        found = self._lookups.lookup([self._file], self.schema, keys, wanted)
        return self._projection(wanted).empty if found is None else found

    def projection(self, columns: Sequence[str] | None) -> _Projection:
        """How those columns are read, with `_tombstone` last."""
        return self._projection(self._wanted(columns))

    def _wanted(self, columns: Sequence[str] | None) -> tuple[str, ...]:
        names = self._all_columns if columns is None else columns
        return (*(name for name in names if name != TOMBSTONE), TOMBSTONE)

    @Lazy
    def _file(self) -> KeyedFile:
        return KeyedFile(
            self._path,
            self.dataset.uri,
            self._projection(tuple(self.schema.primary_key)).stored,
            self._read_keys,
            self._fragment,
            lambda names: self._projection(tuple(names)).stored,
            lambda rows, names: self._projection(tuple(names)).apply(rows),
        )

    def _read_keys(self) -> pa.Table:
        projection = self._projection(tuple(self.schema.primary_key))
        return pa.Table.from_batches(self._read(projection), projection.target)

    def _fragment(self) -> lance.LanceFragment:
        fragments = self.dataset.get_fragments()
        if len(fragments) != 1:
            raise ValueError(f"an SSTable has one fragment, this one has {len(fragments)}")
        return fragments[0]

    @Lazy
    def _all_columns(self) -> list[str]:
        return list(self.schema.arrow.names)

    @Lazy
    def _source(self) -> pa.Schema:
        return with_field_ids(self.dataset)

    @Lazy
    def has_current_names(self) -> bool:
        """True when every current column is here, under its current name and with its id."""
        target = self.schema.wal
        return all(
            self._source.get_field_index(field.name) >= 0
            and self._source.field(field.name).equals(field, check_metadata=True)
            for field in target
        )

    def _projection(self, wanted: tuple[str, ...]) -> _Projection:
        known = self._projections.get(wanted)
        if known is None:
            known = self._make_projection(wanted)
            self._projections[wanted] = known
        return known

    def _make_projection(self, wanted: tuple[str, ...]) -> _Projection:
        wal, plain = self.schema.wal, self.schema.plain
        target = pa.schema(
            [
                wal.field(name)
                if name == TOMBSTONE
                else plain.field(name).with_nullable(wal.field(name).nullable)
                for name in wanted
            ]
        )
        if self.has_current_names:
            return _Projection(list(wanted), target, target, is_same=True)
        with_ids = pa.schema([wal.field(name) for name in wanted])
        by_id = {f.metadata[FIELD_ID]: f for f in self._source if f.name != TOMBSTONE}
        source = [
            by_id[field.metadata[FIELD_ID]]
            for field in with_ids
            if field.name != TOMBSTONE
            and field.metadata[FIELD_ID] in by_id
            and is_same_column(by_id[field.metadata[FIELD_ID]], field)
        ]
        if TOMBSTONE in self._source.names and TOMBSTONE in wanted:
            source.append(self._source.field(TOMBSTONE))
        return _Projection([f.name for f in source], pa.schema(source), with_ids, is_same=False)
