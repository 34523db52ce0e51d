"""A table as a pyarrow Dataset, for engines that push columns and filters down into one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
from pyarrow import fs

from weir.errors import InvalidInput, WeirError
from weir.lake.filters import both, filter_batches, filter_columns
from weir.read.scan import Scan

_ELSEWHERE: Final = (
    "pyarrow cannot do this with a dataset of a weir table, whose rows are read by its scanner();"
    " give it the rows: table.scan().to_reader(), or to_table() for all of them in memory"
)


class ScanDataset(pads.UnionDataset):  # type: ignore[misc]  # pyarrow has no types
    """The rows of a scan. Every read is a new scan with the columns and the filter that the engine
    requests, on top of the columns and the filter of the original scan.

    It has a single fragment: one reader streams all rows. Whatever else pyarrow does with it, in
    native code, raises `InvalidInput`: there the dataset is a file that nobody can open.
    """

    def __init__(
        self,
        scan: Scan,
        failures: list[WeirError] | None = None,
        passing: pc.Expression | None = None,
    ) -> None:
        """Use `Scan.to_dataset`. `failures` takes what reads raise: engines make their own errors
        of them. `passing` is a filter beside that of the scan."""
        super().__init__(scan.schema, [_unreadable(scan.schema)])
        self._scan = scan
        self._failures = failures
        self._passing = passing

    def __reduce__(self) -> tuple[object, ...]:
        return ScanDataset, (self._scan, None, self._passing)

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
    ) -> pads.Scanner:
        """One read of the given columns of the rows that pass the filter; it begins with the first
        batch that is asked for."""
        if isinstance(columns, dict):
            raise InvalidInput("a dataset has no computed columns; give a list of column names")
        return self._scanner(columns, filter, batch_size)

    def _scanner(
        self,
        columns: Sequence[str] | None,
        filter: pc.Expression | None,
        batch_size: int | None,
        limit: int | None = None,
    ) -> pads.Scanner:
        passing = both(self._passing, filter)
        schema = self.schema
        if columns is not None:  # none at all for an engine that only counts rows
            schema = pa.schema([schema.field(name) for name in columns], metadata=schema.metadata)
        rows = self.batches(schema.names, passing, batch_size, limit)
        return pads.Scanner.from_batches(rows, schema=schema)

    def batches(
        self,
        names: Sequence[str],
        passing: pc.Expression | None,
        batch_size: int | None,
        limit: int | None,
    ) -> Iterator[pa.RecordBatch]:
        """Those columns of the rows that pass, at most `limit`; streamed by a new scan."""
        with self._noted():
            if passing is None or not self._scan.has_sql_filter:
                scan = self._scan.narrowed(names, passing, batch_size, limit)
                for batch in scan.to_reader():
                    yield batch if names else batch.select([])
                return
            # Lance applies the filter in SQL, and pyarrow its own to the rows that pass.
            looked_at = filter_columns(passing, self.schema.names)
            scan = self._scan.narrowed([*dict.fromkeys((*names, *looked_at))], None, batch_size)
            yield from filter_batches(scan.to_reader(), passing, names, limit)

    @contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except WeirError as error:
            if self._failures is not None:
                self._failures.append(error)
            raise

    def get_fragments(self, filter: pc.Expression | None = None) -> Iterator[_Fragment]:
        """A single fragment: DataFusion reads by fragment and passes the filter to each scanner."""
        del filter
        return iter([_Fragment(self)])

    def filter(self, expression: pc.Expression) -> ScanDataset:
        """The dataset of the rows that pass."""
        return ScanDataset(self._scan, self._failures, both(self._passing, expression))

    def count_rows(self, filter: pc.Expression | None = None, **_: Any) -> int:
        """How many rows there are."""
        passing = both(self._passing, filter)
        if passing is None or not self._scan.has_sql_filter:
            return self._scan.narrowed(None, passing, None).count()
        return sum(batch.num_rows for batch in self.batches([], passing, None, None))

    def head(self, num_rows: int, columns: Sequence[str] | None = None, **kwargs: Any) -> pa.Table:
        """The first `num_rows` rows read, in no particular order; no others are read."""
        filter, size = kwargs.get("filter"), kwargs.get("batch_size")
        return self._scanner(columns, filter, size, limit=num_rows).to_table()


class _Fragment:
    def __init__(self, dataset: ScanDataset) -> None:
        self._dataset = dataset

    def scanner(self, schema: pa.Schema | None = None, **kwargs: Any) -> pads.Scanner:
        """The scanner of the whole dataset; `schema` is the dataset's own."""
        del schema
        return self._dataset.scanner(**kwargs)


class _Unreadable(fs.FileSystemHandler):  # type: ignore[misc]
    """A file system whose every use says that the rows are elsewhere."""

    def get_type_name(self) -> str:
        return "weir"

    def normalize_path(self, path: str) -> str:
        return path

    def _refuse(self, *_: object) -> Any:
        raise InvalidInput(_ELSEWHERE)

    get_file_info = get_file_info_selector = open_input_file = open_input_stream = _refuse
    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = _refuse
    move = copy_file = open_output_stream = open_append_stream = _refuse


def _unreadable(schema: pa.Schema) -> pads.Dataset:
    """A dataset for pyarrow's native code, which crashes without one of its own."""
    form = pads.IpcFileFormat()
    fragment = form.make_fragment("rows", filesystem=fs.PyFileSystem(_Unreadable()))
    return pads.FileSystemDataset([fragment], schema, form)
