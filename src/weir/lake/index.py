"""Indexes of the table: which ones writers keep, and how an SSTable gets them.

The table's own choice is in the MemWAL index entry: all, a list, or none. An index of an SSTable
has the name of the base's index, so a plan over an SSTable reads like a plan over the base.

Keeps
  M-4  indexes are built before anything names the SSTable. One that cannot be built is left out,
       never waited for: rows without an index are searched one by one, with the same result
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import UUID

import lance
import pyarrow as pa

from weir.config import IndexConfig
from weir.errors import InvalidInput
from weir.format.schema import TableSchema
from weir.lake.api import Base
from weir.lake.lance_errors import lance_errors
from weir.lake.shared import SharedDataset

logger = logging.getLogger("weir.lake")

Dataset = SharedDataset
"""The base or an SSTable, as searches hold it."""

_KINDS: Final = {"BTree": "btree", "Bitmap": "bitmap", "Inverted": "text"}
METRICS: Final = ("l2", "cosine", "dot")
PARTITIONS_MAX: Final = 20
"""Partitions that pylance's LSM planner probes by default: up to that many it misses nothing."""
PARTITION_ROWS: Final = 5_000
TEXT_OPTIONS: Final = (
    "base_tokenizer",
    "language",
    "max_token_length",
    "lower_case",
    "stem",
    "remove_stop_words",
    "custom_stop_words",
    "ascii_folding",
    "min_ngram_length",
    "max_ngram_length",
    "prefix_only",
    "split_identifiers",
    "split_on_numerics",
    "preserve_original",
    "index_operators",
)
"""Settings of an inverted index that determine its words; `lance.tokenize` knows them too."""


@dataclass(frozen=True)
class IndexInfo:
    """An index of the table, or one that a writer is configured to keep."""

    name: str
    column: str
    kind: str
    """"btree", "bitmap", "vector" or "text"."""
    metric: str = "l2"
    text: Mapping[str, Any] = field(default_factory=dict)
    """Settings of a text index, as Lance names them; empty means Lance's defaults."""
    is_flat: bool = False
    """A vector index that keeps the vectors as they are: its distances are exact."""
    fragments: frozenset[int] = frozenset()
    """Fragments of its dataset that it covers."""
    ahead_of: frozenset[str] = frozenset()
    """Columns with an index, of any kind, that lacks a fragment that this text index covers."""

    @property
    def analyzer(self) -> dict[str, Any]:
        """The settings that determine the words."""
        return {key: self.text[key] for key in TEXT_OPTIONS if key in self.text}


def dataset_indexes(dataset: SharedDataset) -> list[IndexInfo]:
    """The indexes of a dataset that weir can keep or search; others are left out."""
    with lance_errors(f"listing the indexes of {dataset.uri}"):
        described = dataset.describe_indices()
    found = []
    for index in described:
        kind = _KINDS.get(index.index_type)
        details = index.details or {}
        if kind is None and "VectorIndexDetails" in index.type_url:
            kind = "vector"
        if kind is None or len(index.field_names) != 1:
            continue
        metric = str(details.get("metric_type", "l2")).lower()
        text = dict(details) if kind == "text" else {}
        covered = _covered(index)
        found.append(
            IndexInfo(
                index.name,
                index.field_names[0],
                kind,
                metric,
                text,
                is_flat=index.index_type == "IVF_FLAT",
                fragments=covered,
                ahead_of=_behind(dataset, described, covered) if kind == "text" else frozenset(),
            )
        )
    return found


def _covered(described: Any) -> frozenset[int]:
    return frozenset(int(f) for segment in described.segments for f in segment.fragment_ids)


def _behind(
    dataset: SharedDataset, described: Sequence[Any], covered: frozenset[int]
) -> frozenset[str]:
    """Columns with an index that lacks a fragment of `covered`; Lance lists removed ones too."""
    lacking = [index for index in described if not covered <= _covered(index)]
    if not lacking:
        return frozenset()
    live = covered & {fragment.fragment_id for fragment in dataset.get_fragments()}
    return frozenset(
        name.split(".")[0]  # of a field in a struct: the column
        for index in lacking
        if not live <= _covered(index)
        for name in index.field_names
    )


def base_indexes(base: Base) -> list[IndexInfo]:
    """The indexes of the base that weir can keep or search."""
    return dataset_indexes(base.dataset) if base.is_lance else []


def index_of(indexes: Sequence[IndexInfo], column: str, kind: str) -> IndexInfo | None:
    """The index of that kind on the column, or None."""
    return next((i for i in indexes if i.column == column and i.kind == kind), None)


def released_generation(base: Base, shard: UUID) -> int:
    """The last generation of a shard that no reader needs as an SSTable.

    Its rows are in the base, and in every index that reports its progress (`index_catchup`). Until
    an index has caught up, a native reader that relies on it alone reads the SSTables.
    """
    folded = base.compacted.get(shard, 0)
    details = base.mem_wal
    behind = () if details is None else details.index_catchup.values()
    return min([folded, *(progress[shard] for progress in behind if shard in progress)])


def maintained_indexes(
    base: Base, configs: Sequence[IndexConfig], schema: TableSchema
) -> tuple[IndexInfo, ...]:
    """The indexes a writer keeps: `configs`, or the table's own choice if there are none.

    Raises `InvalidInput` for a configuration that does not fit the table.
    """
    known = base_indexes(base)
    if not known and not configs:
        return ()
    if configs:
        by_column = {(index.column, index.kind): index for index in known}
        return tuple(_configured(c, by_column.get((c.column, c.kind)), schema) for c in configs)
    details = base.mem_wal
    if details is None:
        return ()
    wanted = set(details.maintained_indexes)
    chosen = [i for i in known if details.maintain_all or i.name in wanted]
    return tuple(i for i in chosen if _misfit(i, schema) is None)


def _configured(config: IndexConfig, existing: IndexInfo | None, schema: TableSchema) -> IndexInfo:
    info = IndexInfo(config.name, config.column, config.kind, config.metric)
    if existing is not None and config.kind == "text":
        info = replace(info, text=existing.text)
    misfit = _misfit(info, schema)
    if misfit is not None:
        raise InvalidInput(f"index_configs: {misfit}")
    if existing is not None and config.kind == "vector" and existing.metric != config.metric:
        raise InvalidInput(
            f"index_configs: {config.name!r} has metric {config.metric}, but the table's index on"
            f" {config.column!r} has {existing.metric}; use the same metric"
        )
    return info


def _misfit(info: IndexInfo, schema: TableSchema) -> str | None:
    """Why the index does not fit this table, or None."""
    if info.column not in schema.plain.names:
        return f"the table has no column {info.column!r}; it has {schema.plain.names}"
    dtype = schema.plain.field(info.column).type
    if info.kind == "vector":
        if info.metric not in METRICS:
            return (
                f"the metric of {info.name!r} must be one of {list(METRICS)}, got {info.metric!r}"
            )
        if not is_vector_type(dtype):
            return f"column {info.column!r} is {dtype}; a vector is a fixed-size list of floats"
        return None
    if info.kind == "text":
        return None if is_text_type(dtype) else f"column {info.column!r} is {dtype}, not text"
    if info.kind not in ("btree", "bitmap"):
        return f"kind {info.kind!r} is not one of btree, bitmap, vector, text"
    return f"column {info.column!r} is nested; index a plain column" if dtype.num_fields else None


def is_vector_type(dtype: pa.DataType) -> bool:
    """Whether a column of that type can be searched by vector."""
    return bool(pa.types.is_fixed_size_list(dtype) and pa.types.is_floating(dtype.value_type))


def is_text_type(dtype: pa.DataType) -> bool:
    """Whether a column of that type can be searched for words."""
    return bool(pa.types.is_string(dtype) or pa.types.is_large_string(dtype))


def index_builder(
    indexes: Sequence[IndexInfo], *, label: str
) -> Callable[[lance.LanceDataset], None] | None:
    """A function that builds `indexes` in a finished SSTable, or None when there are none."""
    if not indexes:
        return None

    def build(dataset: lance.LanceDataset) -> None:
        for index in indexes:
            try:
                _build(dataset, index)
            except (OSError, RuntimeError, ValueError) as error:
                # M-4: for example a column without a single value. Searches do without the index.
                logger.warning("index.not_built %s index=%s reason=%s", label, index.name, error)

    return build


def _build(dataset: lance.LanceDataset, index: IndexInfo) -> None:
    if index.kind == "vector":
        # Flat: an SSTable has at most max_memtable_rows rows, and training a quantizer for them
        # takes a hundred times as long as this (docs/guides/search.md).
        partitions = min(PARTITIONS_MAX, max(1, dataset.count_rows() // PARTITION_ROWS))
        dataset.create_index(
            index.column,
            "IVF_FLAT",
            name=index.name,
            metric=index.metric,
            num_partitions=partitions,
        )
        return
    if index.kind == "text":
        options: dict[str, Any] = index.analyzer
        options["with_position"] = bool(index.text.get("with_position", False))
        dataset.create_scalar_index(index.column, "INVERTED", name=index.name, **options)
        return
    kind: Any = index.kind.upper()
    dataset.create_scalar_index(index.column, kind, name=index.name)
