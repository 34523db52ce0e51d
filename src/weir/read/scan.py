"""Scans of a whole table: a snapshot, its levels, one merge.

Keeps
  L-1  a plan whose files were collected before they were read is made again, a few times at most
  L-5  one scan reads one snapshot, whatever runs concurrently
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from weir.errors import InvalidInput
from weir.format.schema import no_rows
from weir.lake.filters import both, is_for_lance
from weir.merge.merge import (
    merge_count,
    merge_scan,
    replanned,
    unless_collected,
)
from weir.merge.projection import Projection
from weir.meters import READ_SECONDS
from weir.read.loader import BUFFER_ROWS, Loader
from weir.read.probes import Choice
from weir.read.reader import SnapshotReader
from weir.read.snapshot import (
    Freshness,
    Pinned,
    Snapshot,
    check_freshness,
    pinned_snapshot,
    take_snapshot,
)
from weir.routing.core import Core
from weir.types import Columns, Filter, require_whole

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from weir.read.dataset import ScanDataset

T = TypeVar("T")
OrderBy: TypeAlias = str | Sequence[str | tuple[str, str]]
"""A column, or several; each may be a pair of a column and "ascending" or "descending"."""


def with_snapshot(
    core: Core,
    freshness: Freshness,
    pinned: Pinned | Snapshot | None,
    run: Callable[[SnapshotReader], T],
    *,
    choose: Choice = list,
    verb: str | None = None,
) -> T:
    """Call `run` on a fresh snapshot; retry if objects of the snapshot were collected. With
    `pinned`, on that one: what a checkpoint pins, or a snapshot that the caller plans again. With a
    `verb` it is measured as a read."""

    def read() -> T:
        if isinstance(pinned, Snapshot):
            return run(SnapshotReader(core, pinned))
        if pinned is not None:
            return run(SnapshotReader(core, pinned_snapshot(core, pinned, freshness)))

        def fresh() -> T:
            snapshot = take_snapshot(core, freshness, choose=choose)
            return run(SnapshotReader(core, snapshot, passing=False))

        return replanned(fresh, core.uri)

    if verb is None:
        return read()
    return core.env.meters.timed(read, core.env.clock, READ_SECONDS, verb)


class Scan:
    """A read of the table that has not run yet. Each method below takes its own snapshot.

    The order of rows is unspecified. DuckDB, polars, DataFusion and pandas can consume it directly
    through `__arrow_c_stream__`.
    """

    def __init__(
        self,
        core: Core,
        *,
        columns: Columns | None = None,
        filter: Filter | None = None,
        limit: int | None = None,
        freshness: Freshness = "durable",
        pinned: Pinned | Snapshot | None = None,
        batch_size: int | None = None,
        offset: int = 0,
        order_by: OrderBy | None = None,
    ) -> None:
        """Use `Table.scan`."""
        if limit is not None:
            require_whole("limit", limit, 0)
        require_whole("offset", offset, 0)
        if batch_size is not None:
            require_whole("batch_size", batch_size, 1)
        if filter is not None and not isinstance(filter, str | pc.Expression):
            raise InvalidInput(
                f"filter must be SQL text or a pyarrow expression, got {type(filter).__module__}."
                f"{type(filter).__name__}"
            )
        self._core = core
        self._columns = Projection.of(columns)
        self._filter = filter
        self._limit = limit
        self._freshness = check_freshness(freshness)
        self._pinned = pinned
        self._batch_size = batch_size
        self._offset = offset
        self._order = [] if order_by is None else _order(order_by)

    def __repr__(self) -> str:
        return (
            f"Scan({self._core.uri}, columns={self._columns}, filter={self._filter!r},"
            f" limit={self._limit}, freshness={self._freshness!r})"
        )

    @property
    def schema(self) -> pa.Schema:
        """The columns of the result; at a checkpoint, those of the checkpoint. One listing."""
        if self._pinned is not None:
            return self._read(lambda reader: self._columns.schema(reader.schema))
        return self._columns.schema(self._core.schema())

    @property
    def stored(self) -> pa.Schema:
        """The columns of the result that a filter can name: stored columns, not computed ones."""
        computed = {name for name, text in self._columns.sql if name != text}
        return pa.schema([field for field in self.schema if field.name not in computed])

    @property
    def has_sql_filter(self) -> bool:
        """Whether its filter is SQL, which cannot be combined with a pyarrow expression."""
        return isinstance(self._filter, str)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """The rows, batch by batch."""
        return self.to_batches()

    def snapshot(self) -> Snapshot:
        """The cut that a read started now would see; small and serializable, for planners."""
        return self._read(lambda reader: reader.snapshot)

    def to_reader(self) -> pa.RecordBatchReader:
        """A stream of the rows; memory is bounded whatever the size of the table.

        Plans the scan and reads the first batch before it returns. If a file is collected while
        the stream is read, the stream raises `SnapshotExpired` (gc keeps files for `min_age`).
        """

        def start(reader: SnapshotReader) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
            schema, batches = self._merge(reader)
            first = next(batches, None)
            return schema, iter(()) if first is None else chain([first], batches)

        schema, batches = self._read(start, "scan")
        return pa.RecordBatchReader.from_batches(schema, unless_collected(batches, self._core.uri))

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as a stream of batches."""
        yield from self.to_reader()

    def to_table(self) -> pa.Table:
        """All rows in memory."""

        def read(reader: SnapshotReader) -> pa.Table:
            schema, batches = self._merge(reader)
            return pa.Table.from_batches(batches, schema)

        return self._read(read, "scan")

    def to_pandas(self) -> pd.DataFrame:
        """All rows as a pandas DataFrame."""
        return self.to_table().to_pandas()

    def to_polars(self) -> pl.DataFrame:
        """All rows as a polars DataFrame."""
        import polars as pl

        return pl.DataFrame(self.to_table())

    def to_dataset(self) -> ScanDataset:
        """The rows as a pyarrow Dataset, into which DuckDB and polars push columns and filters.

        Each read of it is a new, fresh scan. Not with `limit`, `offset` or `order_by`.
        """
        from weir.read.dataset import ScanDataset  # loads pandas, as pyarrow.dataset does

        self._require_unordered("a dataset")
        if self._columns.sql:
            raise InvalidInput("a dataset has no computed columns; let the engine compute them")
        return ScanDataset(self)

    def lazy(self) -> pl.LazyFrame:
        """The rows as a polars LazyFrame, which pushes columns, filters and a limit down.

        Each `collect` is a new, fresh scan. Not with `limit`, `offset` or `order_by`.
        """
        from weir.read.lazy_frame import lazy_frame

        self._require_unordered("a lazy frame")
        return lazy_frame(self)

    def loader(
        self,
        batch_size: int = 1024,
        *,
        seed: int | None = None,
        buffer_rows: int = BUFFER_ROWS,
        drop_last: bool = False,
        worker: tuple[int, int] = (0, 1),
    ) -> Loader:
        """Batches of one size for a training loop, from a snapshot taken now.

        With a `seed`, fragments come in random order and rows are shuffled in a buffer of
        `buffer_rows`; `Loader.at_epoch` reshuffles. `worker` is (index, count); see `Loader.part`.
        """
        self._require_unordered("a loader")
        return Loader(
            self._core,
            self.snapshot(),
            self._columns,
            self._filter,
            batch_size,
            seed=seed,
            buffer_rows=buffer_rows,
            drop_last=drop_last,
            worker=worker,
        )

    def _require_unordered(self, what: str) -> None:
        if self._limit is not None or self._offset or self._order:
            raise InvalidInput(
                f"{what} cannot have limit, offset or order_by; remove them from the scan, and"
                " apply them to the result"
            )

    def narrowed(
        self,
        columns: Sequence[str] | None,
        filter: Filter | None,
        batch_size: int | None,
        limit: int | None = None,
    ) -> Scan:
        """This scan with a subset of its columns and an additional filter."""
        kept = self._columns
        if columns is not None:
            # An engine that only counts rows requests no column at all.
            kept = kept.narrowed(list(columns) or self.schema.names[:1])
        return Scan(
            self._core,
            columns=kept.asked,
            filter=both(self._filter, filter),
            limit=limit,
            freshness=self._freshness,
            pinned=self._pinned,
            batch_size=batch_size or self._batch_size,
        )

    def count(self) -> int:
        """The number of rows; reads only the keys and the columns of the filter."""

        def count(reader: SnapshotReader) -> int:
            self._check(reader)
            return merge_count(
                reader.merged_levels(),
                reader.base,
                reader.schema,
                filter=self._filter,
                alive=reader.alive,
                env=self._core.env,
            )

        rows = max(0, self._read(count, "count") - self._offset)
        return rows if self._limit is None else min(rows, self._limit)

    def explain(self) -> str:
        """The sources this scan would read, newest first, as text."""
        return self._read(self._explained)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The rows as an Arrow C stream."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def _read(self, run: Callable[[SnapshotReader], T], verb: str | None = None) -> T:
        return with_snapshot(self._core, self._freshness, self._pinned, run, verb=verb)

    def _merge(self, reader: SnapshotReader) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        if self._order:
            return self._sorted(reader)
        limit = None if self._limit is None else self._limit + self._offset
        columns = self._columns
        schema, batches = self._merged(reader, columns.read(reader.schema), limit)
        if self._offset:
            batches = _without_first(batches, self._offset)
        if columns.sql:
            schema = columns.schema(reader.schema)
            batches = columns.apply(batches, self._batch_size)
        return schema, batches

    def _sorted(self, reader: SnapshotReader) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Sort in memory: the first row is known only after the last one was read."""
        shown = self._columns.schema(reader.schema)
        columns = self._check(reader)
        _, batches = self._merged(reader, columns.read(reader.schema), None)
        rows = columns.apply(batches, None)
        found = pa.Table.from_batches(rows, columns.schema(reader.schema)).sort_by(self._order)
        found = found.slice(self._offset, self._limit).select(shown.names)
        return found.schema, iter(found.to_batches(max_chunksize=self._batch_size))

    def _check(self, reader: SnapshotReader) -> Projection:
        """The columns to read, those to order by included; `InvalidInput` for one that is not
        there, or that has no order."""
        shown = self._columns.schema(reader.schema)
        extra = list(dict.fromkeys(n for n, _ in self._order if n not in shown.names))
        columns = self._columns.also(extra, reader.schema)
        schema = columns.schema(reader.schema)
        for name, how in self._order:
            try:
                no_rows(schema).sort_by([(name, how)])
            except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
                raise InvalidInput(
                    f"order_by: column {name!r} is {schema.field(name).type}, whose values have no"
                    " order; order by another column"
                ) from error
        return columns

    def _merged(
        self, reader: SnapshotReader, columns: Sequence[str] | None, limit: int | None
    ) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        return merge_scan(
            reader.merged_levels(),
            reader.base,
            reader.schema,
            columns=columns,
            filter=self._filter,
            limit=limit,
            batch_size=None if self._columns.sql else self._batch_size,
            alive=reader.alive,
            env=self._core.env,
        )

    def _filtered_how(self, reader: SnapshotReader) -> str:
        if self._filter is None:
            return ""
        if is_for_lance(self._filter, reader.schema.plain):
            return " (base: pushed into Lance; fresh rows: after the merge)"
        return " (by pyarrow: cannot be pushed into Lance; fresh rows: after the merge)"

    def _explained(self, reader: SnapshotReader) -> str:
        self._check(reader)
        lines = [
            f"scan {self._core.uri}",
            f"  freshness {self._freshness}"
            + ("" if self._pinned is None else ", at a checkpoint"),
            f"  columns   {self._columns}",
            f"  filter    {self._filter if self._filter is not None else 'none'}"
            + self._filtered_how(reader),
            f"  limit     {'none' if self._limit is None else self._limit}",
            f"  offset    {self._offset}",
            f"  order by  {', '.join(f'{name} {how}' for name, how in self._order) or 'nothing'}",
        ]
        if reader.base.expire is not None:
            rule = reader.base.expire
            lines.append(f"  expired   {rule.column!r} more than {rule.after_s:.15g} s ago: hidden")
        keyed = bool(reader.schema.primary_key)
        lines.append(
            f"  merge     newest row of each {list(reader.schema.primary_key)}"
            if keyed
            else "  merge     all rows (append-only)"
        )
        for cut in reader.snapshot.cuts:
            folded = reader.base.compacted.get(cut.shard, 0)
            lines.append(f"  shard {cut.shard} manifest {cut.manifest_version}")
            lines.append(
                f"    log entries {cut.replay_after + 1}..{cut.wal_through}"
                if cut.wal_through > cut.replay_after
                else "    log: nothing after the flushed entries"
            )
            for table in cut.newest_first:
                note = " skipped: folded into the base" if table.generation <= folded else ""
                lines.append(f"    generation {table.generation} {table.path}{note}")
        lines.append(f"  base version {reader.base.version}, {reader.base.count()} rows")
        return "\n".join(lines)


def _order(order_by: OrderBy) -> list[tuple[str, str]]:
    order: list[tuple[str, str]] = []
    given: object = [order_by] if isinstance(order_by, str) else order_by
    for one in given if isinstance(given, list | tuple) else [None]:
        match one:
            case str(name):
                order.append((name, "ascending"))
            case (str(name), "ascending" | "descending" as how):
                order.append((name, how))
            case _:
                raise InvalidInput(
                    "order_by must be a column, or pairs of a column and 'ascending' or"
                    f" 'descending', got {order_by!r}"
                )
    return order


def _without_first(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if rows >= batch.num_rows:
            rows -= batch.num_rows
            continue
        yield batch.slice(rows)
        rows = 0
