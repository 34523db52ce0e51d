"""Indexes of the base: made, listed and dropped, each by one commit of Lance's.

An index says nothing that its rows do not: rows that none covers (new in the base, in SSTables, in
the log) are read one by one. So a commit that conflicts with one beside it is simply repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import lance
import pyarrow as pa

from weir.errors import InvalidInput
from weir.lake.api import Base, Lake
from weir.lake.base.repeating import repeated
from weir.lake.datasets import Datasets
from weir.lake.index import METRICS, PARTITION_ROWS, PARTITIONS_MAX, is_text_type, is_vector_type
from weir.lake.lance_errors import lance_errors

ScalarKind = Literal["btree", "bitmap", "label_list", "ngram", "zonemap", "bloomfilter"]
VectorKind = Literal["ivf_flat", "ivf_sq", "ivf_pq", "ivf_hnsw_sq", "ivf_hnsw_pq"]
IndexKind = ScalarKind | VectorKind
"""The kinds of index that `Table.create_index` makes; see docs/howto/indexes.md."""
TEXT: Final = "text"
"""The kind of index that `Table.create_fts_index` makes."""
SCALARS: Final[tuple[str, ...]] = get_args(ScalarKind)
VECTORS: Final[tuple[str, ...]] = get_args(VectorKind)

FLAT_ROWS_MAX: Final = PARTITION_ROWS * PARTITIONS_MAX
"""Up to this many rows a search by default probes every partition: a flat index misses nothing."""
_BUILDS: Final = 5
"""How often an index is built, which may take long, while commits beside it are in the way."""
RESERVED: Final = "__"
"""Names of Lance's own entries, such as that of the MemWAL, begin so."""
_NAMES: Final = {"inverted": TEXT, "labellist": "label_list"}
"""Lance's names of kinds, in lower case, where weir's differ."""


@dataclass(frozen=True, slots=True)
class TableIndex:
    """An index of the table. Counts are of the base; newer rows are in no index of the base."""

    name: str
    columns: tuple[str, ...]
    kind: str
    """As `Table.create_index` takes it; "text" for a full-text index."""
    rows_indexed: int
    """Rows of the base that the index covers."""
    rows_not_indexed: int
    """Rows of the base that are read one by one, until `compact` adds them to the index."""
    nbytes: int | None
    """Bytes of its files; None if Lance does not know."""
    metric: str | None = None
    """Distance of a vector index."""
    is_borrowed: bool = False
    """True in a clone whose index is in files of the table it was cloned from."""


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """An index to make; None where Lance or weir chooses."""

    column: str
    kind: str | None = None
    name: str | None = None
    replace: bool = False
    metric: str | None = None
    partitions: int | None = None
    sub_vectors: int | None = None
    text: Mapping[str, bool | int | str | None] | None = None


class Indexes(Lake):
    """The verbs of `Lake` for indexes."""

    datasets: Datasets

    def indexes(self) -> list[TableIndex]:
        """See `Lake`."""
        return list_indexes(self.open_base())

    def create_index(self, spec: IndexSpec) -> str:
        """See `Lake`."""

        def attempt() -> str:
            base = self.open_base()
            kind = _kind(spec, base)
            name = _name(spec, kind, list_indexes(base))
            # An own handle: making an index borrows it exclusively, and moves it.
            dataset = self.datasets.changing(base.version)
            self.datasets.env.failpoint("index.opened")
            try:
                with lance_errors(f"making index {name!r} of {self.uri}"):
                    _make(dataset, spec, kind, name, base)
            except TypeError as error:  # what pylance raises for types that weir has no rule for
                raise InvalidInput(f"index {name!r} of {self.uri}: {error}") from error
            return name

        what = f"{self.uri}: index on {spec.column!r}"
        return repeated(self.datasets.env, attempt, what, most=_BUILDS)

    def drop_index(self, name: str) -> None:
        """See `Lake`."""

        def attempt() -> None:
            known = [index.name for index in self.indexes()]
            if name not in known:
                raise InvalidInput(f"{self.uri} has no index {name!r}; it has {known or 'none'}")
            dataset = self.datasets.changing()
            with lance_errors(f"dropping index {name!r} of {self.uri}"):
                dataset.drop_index(name)

        repeated(self.datasets.env, attempt, f"{self.uri}: index {name!r}")

    def optimize_indices(self) -> int:
        """See `Lake`."""
        dataset = self.datasets.changing()
        with lance_errors(f"updating the indexes of {self.uri}"):
            dataset.optimize.optimize_indices()
        return int(self.datasets.latest().version)


def list_indexes(base: Base) -> list[TableIndex]:
    """The indexes of that version, by name. No request for a base that is open."""
    rows = dict(base.fragments())
    with lance_errors(f"listing the indexes of {base.dataset.uri}"):
        described = [i for i in base.dataset.describe_indices() if not i.name.startswith(RESERVED)]
    return [_described(index, rows) for index in sorted(described, key=lambda i: str(i.name))]


def _described(index: Any, rows: Mapping[int, int]) -> TableIndex:
    covered = {int(fragment) for segment in index.segments for fragment in segment.fragment_ids}
    indexed = sum(count for fragment, count in rows.items() if fragment in covered)
    kind = str(index.index_type).lower()
    is_vector = "VectorIndexDetails" in index.type_url
    return TableIndex(
        name=index.name,
        columns=tuple(index.field_names),
        kind=_NAMES.get(kind, kind),
        rows_indexed=indexed,
        rows_not_indexed=sum(rows.values()) - indexed,
        nbytes=None if index.total_size_bytes is None else int(index.total_size_bytes),
        metric=str((index.details or {}).get("metric_type", "l2")).lower() if is_vector else None,
        is_borrowed=any(segment.base_id is not None for segment in index.segments),
    )


def _kind(spec: IndexSpec, base: Base) -> str:
    """The kind to make; `InvalidInput` when it does not fit the column."""
    schema = base.schema.plain
    if spec.column not in schema.names:
        raise InvalidInput(f"the table has no column {spec.column!r}; it has {schema.names}")
    dtype = schema.field(spec.column).type
    kind = spec.kind
    if kind is None and is_vector_type(dtype):
        kind = "ivf_flat" if base.rows <= FLAT_ROWS_MAX else "ivf_pq"
    elif kind is None:
        kind = "label_list" if _is_list(dtype) else "btree"
    if kind not in (*SCALARS, *VECTORS, TEXT):
        raise InvalidInput(f"kind must be one of {[*SCALARS, *VECTORS]}, got {kind!r}")
    wanted = _misfit(kind, dtype)
    if wanted is not None:
        raise InvalidInput(f"column {spec.column!r} is {dtype}; an index {kind!r} is for {wanted}")
    _check_vector_options(spec, kind, dtype)
    return kind


def _misfit(kind: str, dtype: pa.DataType) -> str | None:
    """What the kind is for, if not for columns of that type."""
    if kind in VECTORS:
        return None if is_vector_type(dtype) else "vectors: fixed-size lists of floats"
    if kind in (TEXT, "ngram"):
        return None if is_text_type(dtype) else "text"
    if kind == "label_list":
        return None if _is_list(dtype) else "lists of plain values"
    return "plain columns; for vectors leave the kind out" if dtype.num_fields else None


def _is_list(dtype: pa.DataType) -> bool:
    is_any = pa.types.is_list(dtype) or pa.types.is_large_list(dtype)
    return bool(is_any and not dtype.value_type.num_fields)


def _check_vector_options(spec: IndexSpec, kind: str, dtype: pa.DataType) -> None:
    given = {
        "metric": spec.metric,
        "num_partitions": spec.partitions,
        "num_sub_vectors": spec.sub_vectors,
    }
    if kind not in VECTORS:
        wrong = [name for name, value in given.items() if value is not None]
        if wrong:
            raise InvalidInput(f"{wrong} are for vector indexes; an index {kind!r} has none")
        return
    if spec.metric is not None and spec.metric not in METRICS:
        raise InvalidInput(f"metric must be one of {list(METRICS)}, got {spec.metric!r}")
    for name, value in list(given.items())[1:]:
        if value is not None and (type(value) is not int or value < 1):
            raise InvalidInput(f"{name} must be a whole number above 0, got {value!r}")
    if spec.sub_vectors is not None and not kind.endswith("_pq"):
        raise InvalidInput(f"num_sub_vectors is for ivf_pq and ivf_hnsw_pq; {kind!r} has none")
    if spec.sub_vectors is not None and dtype.list_size % spec.sub_vectors:
        raise InvalidInput(
            f"num_sub_vectors must divide the {dtype.list_size} dimensions of {spec.column!r}, got"
            f" {spec.sub_vectors}"
        )


def _name(spec: IndexSpec, kind: str, known: list[TableIndex]) -> str:
    """The name of the index to make; `InvalidInput` when it exists and is not to be replaced."""
    same = [index for index in known if index.columns == (spec.column,)]
    alike = [index for index in same if _family(index.kind) == _family(kind)]
    if spec.name is None and alike:
        named = alike[0].name
    elif spec.name is None:
        taken = {index.name for index in known}
        named = f"{spec.column}_idx"
        named = f"{spec.column}_{kind}_idx" if named in taken else named
    else:
        named = spec.name
    if not named.strip() or named.startswith(RESERVED):
        raise InvalidInput(f"{named!r} cannot be the name of an index; choose another")
    found = next((index for index in known if index.name == named), None)
    if found is None:
        return named
    told = f"there is already an index {named!r} ({found.kind} on {', '.join(found.columns)})"
    if not spec.replace:
        raise InvalidInput(f"{told}; pass replace=True to make it anew, or another name")
    if found.columns != (spec.column,):
        raise InvalidInput(f"{told}; drop it first, or choose another name")
    return named


def _family(kind: str) -> str:
    return "vector" if kind.startswith("ivf_") else kind


def _make(dataset: lance.LanceDataset, spec: IndexSpec, kind: str, name: str, base: Base) -> None:
    if kind not in VECTORS:
        lance_kind: Any = "INVERTED" if kind == TEXT else kind.upper()
        options: dict[str, Any] = dict(spec.text or {})
        dataset.create_scalar_index(
            spec.column, lance_kind, name=name, replace=spec.replace, **options
        )
        return
    vectors: dict[str, Any] = {}
    if kind.endswith("_pq"):
        size = base.schema.plain.field(spec.column).type.list_size
        vectors["num_sub_vectors"] = spec.sub_vectors or _sub_vectors(size)
    dataset.create_index(
        spec.column,
        kind.upper(),
        name=name,
        replace=spec.replace,
        metric=spec.metric or "l2",
        num_partitions=spec.partitions or max(1, base.rows // PARTITION_ROWS),
        **vectors,
    )


def _sub_vectors(dimensions: int) -> int:
    """Sub-vectors of 16 dimensions, or of fewer where that does not divide them all."""
    return next(dimensions // of for of in (16, 8, 4, 2, 1) if dimensions % of == 0)
