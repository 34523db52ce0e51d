"""Types that all packages share.

The integers of the protocol, each its own type so that a type checker notices when two are swapped;
and the forms in which users may pass rows, keys, filters and vectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field
from datetime import date, datetime
from decimal import Decimal
from typing import ClassVar, NewType, Protocol, TypeAlias
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from weir.errors import InvalidInput

Epoch = NewType("Epoch", int)
"""The fencing token in the shard manifest, one higher at every claim of the shard."""

Position = NewType("Position", int)
"""A place in the log: 1 is the first entry, 0 means 'nothing yet'."""

Generation = NewType("Generation", int)
"""The number of an SSTable, given to the MemTable it is flushed from; starts at 1."""

Version = NewType("Version", int)
"""The number of a shard manifest, as in its file name; starts at 1."""


class ArrowStream(Protocol):
    """Anything that hands out Arrow batches: a Table, a reader, a pandas or polars DataFrame."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The Arrow PyCapsule interface."""
        ...


class ArrowArray(Protocol):
    """Anything that hands out one Arrow batch or array."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        """The Arrow PyCapsule interface."""
        ...


class DataclassRow(Protocol):
    """A dataclass: its fields are columns."""

    __dataclass_fields__: ClassVar[dict[str, Field[object]]]


class NamedRow(Protocol):
    """A named tuple: its fields are columns."""

    def _asdict(self) -> Mapping[str, object]: ...


class ModelRow(Protocol):
    """A pydantic model: its fields are columns."""

    def model_dump(self) -> Mapping[str, object]:
        """The model as a dict."""
        ...


Row: TypeAlias = Mapping[str, object] | DataclassRow | NamedRow | ModelRow
"""One row: a dict, or an object with named fields."""

Rows: TypeAlias = (
    ArrowStream | ArrowArray | npt.NDArray[np.void] | Row | Iterable[Row | ArrowStream | ArrowArray]
)
"""Rows of a table: anything Arrow-shaped, a structured numpy array, one row, or several of them."""

Key: TypeAlias = int | str | bytes | tuple[object, ...] | list[object]
"""The key of one row: its value, or a tuple in key order."""

Keys: TypeAlias = ArrowStream | ArrowArray | Iterable[object]
"""Keys of rows: values, tuples in key order, dicts, or anything Arrow-shaped."""

Filter: TypeAlias = str | pc.Expression
"""SQL text as in Lance, or a pyarrow expression."""

Param: TypeAlias = str | bytes | int | float | bool | date | datetime | Decimal | UUID | None
"""A value that SQL can be given."""

Params: TypeAlias = Mapping[str, Param]
"""Values of the parameters of SQL: `"user = $u"` takes `{"u": user}`."""

Columns: TypeAlias = Sequence[str] | Mapping[str, str]
"""Names of columns; or names and the SQL that computes each, as Lance's scanners take it."""

Vector: TypeAlias = Sequence[float] | npt.NDArray[np.floating]
"""A query of a vector search."""


def require_names(columns: Columns | None) -> None:
    """`InvalidInput` unless it is a list of names of columns, or None: all of them."""
    if columns is not None and (isinstance(columns, str | Mapping) or not list(columns)):
        raise InvalidInput(f"columns must be a list of at least one column, got {columns!r}")


def require_whole(name: str, value: object, least: int) -> None:
    """`InvalidInput` unless it is a whole number, and not too small."""
    if type(value) is not int or value < least:
        raise InvalidInput(f"{name} must be a whole number, {least} or more, got {value!r}")
