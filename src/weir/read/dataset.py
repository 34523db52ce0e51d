"""A table as a pyarrow Dataset, for engines that push columns and filters down into one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from weir.errors import InvalidInput, WeirError
from weir.read.scan import Scan


class ScanDataset(pads.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """The rows of a scan. Every read is a new scan with the columns and the filter that the engine
    requests, on top of the columns and the filter of the original scan.

    It has a single fragment: one reader streams all rows.
    """

    def __init__(self, scan: Scan, failures: list[WeirError] | None = None) -> None:
        """Use `Scan.to_dataset`. `failures` takes what reads raise: engines make their own errors
        of them."""
        self._scan = scan
        self._failures = failures

    def __reduce__(self) -> tuple[object, ...]:
        return ScanDataset, (self._scan,)

    def __repr__(self) -> str:
        return f"ScanDataset({self._scan!r})"

    @property
    def schema(self) -> pa.Schema:
        """The columns. One listing."""
        return self._scan.schema

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        batch_size: int | None = None,
        **_: Any,
    ) -> _Scanner:
        """A read of the given columns of the rows that pass the filter."""
        if isinstance(columns, dict):
            raise InvalidInput("a dataset has no computed columns; give a list of column names")
        narrowed = self._scan.narrowed(columns, filter, batch_size)
        counts = columns is not None and not list(columns)
        return _Scanner(narrowed, self._failures, counts=counts)

    def get_fragments(self, filter: pc.Expression | None = None) -> Iterator[_Fragment]:
        """A single fragment: DataFusion reads by fragment and passes the filter to each scanner."""
        del filter
        return iter([_Fragment(self)])

    def to_table(self, *args: Any, **kwargs: Any) -> pa.Table:
        """All rows in memory; arguments as `scanner` takes them."""
        return self.scanner(*args, **kwargs).to_table()

    def to_batches(self, *args: Any, **kwargs: Any) -> Iterator[pa.RecordBatch]:
        """The rows as a stream; arguments as `scanner` takes them."""
        return self.scanner(*args, **kwargs).to_batches()

    def count_rows(self, filter: pc.Expression | None = None, **_: Any) -> int:
        """How many rows there are."""
        return self._scan.narrowed(None, filter, None).count()

    def head(self, num_rows: int, **kwargs: Any) -> pa.Table:
        """The first `num_rows` rows read, in no particular order."""
        return self.scanner(**kwargs).head(num_rows)


class _Fragment:
    def __init__(self, dataset: ScanDataset) -> None:
        self._dataset = dataset

    def scanner(self, schema: pa.Schema | None = None, **kwargs: Any) -> _Scanner:
        """The scanner of the whole dataset; `schema` is the dataset's own."""
        del schema
        return self._dataset.scanner(**kwargs)


class _Scanner(pads.Scanner):  # type: ignore[misc]
    def __init__(self, scan: Scan, failures: list[WeirError] | None, *, counts: bool) -> None:
        self._scan = scan
        self._failures = failures
        self._counts = counts

    @property
    def projected_schema(self) -> pa.Schema:
        """The columns of the result; none when the engine only counts rows."""
        return pa.schema([]) if self._counts else self._scan.schema

    @property
    def dataset_schema(self) -> pa.Schema:
        """The columns of the scan, which was narrowed already."""
        return self._scan.schema

    def to_reader(self) -> pa.RecordBatchReader:
        """A stream of the rows."""
        with self._noted():
            reader = self._scan.to_reader()
        if self._counts:
            schema, batches = self.projected_schema, (batch.select([]) for batch in reader)
        else:
            schema, batches = reader.schema, iter(reader)
        return pa.RecordBatchReader.from_batches(schema, self._watched(batches))

    def _watched(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with self._noted():
            yield from batches

    @contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except WeirError as error:
            if self._failures is not None:
                self._failures.append(error)
            raise

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, batch by batch."""
        yield from self.to_reader()

    def to_table(self) -> pa.Table:
        """All rows in memory."""
        found = self._scan.to_table()
        return found.select([]) if self._counts else found

    def head(self, num_rows: int) -> pa.Table:
        """The first `num_rows` rows read, in no particular order; no others are read."""
        few = self._scan.narrowed(None, None, None, limit=num_rows)
        return _Scanner(few, self._failures, counts=self._counts).to_table()

    def count_rows(self) -> int:
        """How many rows there are."""
        return self._scan.count()
