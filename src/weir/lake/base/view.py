"""The base table at one version: scans, counts and lookups over a Lance dataset."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

import lance
import pyarrow as pa
import pyarrow.compute as pc
from lance.fragment import FragmentMetadata, write_fragments

from weir.errors import MissingEntry
from weir.format.base_manifest import MemWalDetails
from weir.format.expiry import Expire, expire_of
from weir.format.keys import pk_values
from weir.format.schema import TableSchema, no_rows
from weir.keys.index import rows_of_keys
from weir.lake.base.fold import to_text
from weir.lake.base.folded import fold_number, folded_into, load_number
from weir.lake.files import Columns, FileLookups, KeyedFile
from weir.lake.filters import filter_batches, filter_columns, is_for_lance, lance_scanner
from weir.lake.lance_errors import lance_errors
from weir.lake.literals import key_filter
from weir.lake.live_rows import has_dense_deletes, scan_past_deletes
from weir.lake.schemas import base_schema
from weir.lake.shared import SharedDataset, as_destination
from weir.lazy import Lazy

logger = logging.getLogger("weir.lake")

SCAN_BATCH_ROWS: Final = 65_536
"""Rows per batch of a scan: large enough to hide Python's overhead, small enough to stream."""
LOOKUP_KEYS_MAX: Final = 10_000
"""Keys per index query; larger lookups are split into several queries."""
HELD_KEYS_MAX: Final = 8 * 1024 * 1024
"""The keys of a larger base are not held in memory."""
_FRAGMENTS_MAX: Final = 64
"""With more fragments a scalar index is as fast."""
_ROWS_PER_LOOKUP: Final = 32_768
"""Reading the keys of this many rows costs what one lookup saves by skipping a scalar index."""


class LanceBase:
    """One version of the base table; never changes. Safe to share between threads."""

    is_lance = True

    def __init__(
        self,
        dataset: SharedDataset,
        load_mem_wal: Callable[[], MemWalDetails | None],
        lookups: FileLookups,
    ) -> None:
        self.dataset = dataset
        self._load_mem_wal = load_mem_wal
        self._files = lookups
        self._warned_of_duplicates = False
        self._lookups = 0  # a hint; a count lost between two threads does no harm
        self._empty: dict[tuple[str, ...], pa.Table] = {}
        self._where = f"{dataset.uri} at version {dataset.version}"

    def __repr__(self) -> str:
        return f"LanceBase({self._where})"

    @property
    def version(self) -> int:
        """The version of the base dataset."""
        return self.dataset.version

    @Lazy
    def schema(self) -> TableSchema:
        """The table's schema at this version."""
        return base_schema(self.dataset)

    @Lazy
    def expire(self) -> Expire | None:
        """When rows expire, by the rule of this version. No request."""
        return expire_of(self.dataset.schema, self._where)

    @Lazy
    def compacted(self) -> Mapping[UUID, int]:
        """Per shard the highest generation folded into this version (L-2).

        Combines the marks of the MemWAL index with the note of a fold that is committed but not
        yet marked (L-7): its rows are here, so its generations count.
        """
        compacted = dict(self.marked)
        for shard, generation in folded_into(self.dataset).items():
            compacted[shard] = max(generation, compacted.get(shard, 0))
        return compacted

    @Lazy
    def fold_number(self) -> int:
        """The number of the last fold in this version. No request."""
        return fold_number(self.dataset)

    @Lazy
    def load_number(self) -> int:
        """The number of the last load in this version; 0 if there was none. No request."""
        return load_number(self.dataset)

    @property
    def marked(self) -> Mapping[UUID, int]:
        """Per shard the highest generation marked in the MemWAL index, for native readers."""
        return {} if self.mem_wal is None else self.mem_wal.compacted

    @Lazy
    def mem_wal(self) -> MemWalDetails | None:
        """The MemWAL index entry, or None for a plain Lance dataset. One read, once."""
        return self._load_mem_wal()

    def scan(
        self,
        columns: Sequence[str] | None = None,
        *,
        filter: Any = None,
        fragments: Sequence[int] | None = None,
        limit: int | None = None,
        batch_size: int | None = None,
        with_row_address: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Live rows in storage order, streamed; Lance does projection, filter and limit.

        A pyarrow expression that Lance cannot evaluate is applied here to the rows it reads.
        """
        if not is_for_lance(filter, self.dataset.schema):
            wanted = self.schema.plain.names if columns is None else list(columns)
            looked_at = filter_columns(filter, self.schema.plain.names)
            rows = self.scan(
                list(dict.fromkeys((*wanted, *looked_at))),
                fragments=fragments,
                batch_size=batch_size,
                with_row_address=with_row_address,
            )
            handed_out = [*wanted, *(["_rowaddr"] if with_row_address else [])]
            yield from filter_batches(
                rows, filter, handed_out, limit, known=self.schema.plain.names
            )
            return
        chosen = None if fragments is None else [self.fragment(i) for i in fragments]
        with lance_errors(f"scanning {self._where}"):
            if filter is None and limit is None and self._has_dense_deletes:
                yield from scan_past_deletes(
                    self.dataset,
                    columns,
                    fragments=chosen,
                    batch_size=batch_size or SCAN_BATCH_ROWS,
                    with_row_address=with_row_address,
                )
                return
            scanner = lance_scanner(
                self.dataset,
                filter,
                columns,
                with_fragments=chosen,
                limit=limit,
                batch_size=batch_size or SCAN_BATCH_ROWS,
                with_row_address=with_row_address,
                scan_in_order=True,
            )
            yield from scanner.to_batches()

    @Lazy
    def _has_dense_deletes(self) -> bool:
        return has_dense_deletes(self.dataset)

    def fragment(self, fragment_id: int) -> lance.LanceFragment:
        """One fragment, or `MissingEntry`."""
        fragment = self.dataset.get_fragment(fragment_id)
        if fragment is None:
            raise MissingEntry(
                f"{self._where} has no fragment {fragment_id}; plan again on the latest version"
            )
        return fragment

    def write_fragments(
        self, data: Any, *, rows_per_file: int, bytes_per_file: int
    ) -> list[FragmentMetadata]:
        """Write new files beside those of this version; nothing names them yet."""
        return write_fragments(
            data,
            as_destination(self.dataset),
            mode="append",
            max_rows_per_file=rows_per_file,
            max_bytes_per_file=bytes_per_file,
        )

    @Lazy
    def rows(self) -> int:
        """Number of live rows, from the manifest alone."""
        return self.count()

    def count(self, filter: Any = None) -> int:
        """Number of live rows that pass the filter; without one no data is read."""
        if not is_for_lance(filter, self.dataset.schema):
            names = filter_columns(filter, self.schema.plain.names)
            return sum(int(batch.num_rows) for batch in self.scan(names, filter=filter))
        with lance_errors(f"counting rows of {self._where}"):
            if filter is None or isinstance(filter, str):
                return int(self.dataset.count_rows(filter))
            return int(lance_scanner(self.dataset, filter, [], with_row_id=True).count_rows())

    def lookup(self, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of `keys`, in no promised order.

        Uses the key's scalar index if there is one, or keys held in memory once that is worth it
        (`weir.lake.files`). A large base without an index is read once per 10,000 keys.
        """
        wanted = self.schema.plain.names if columns is None else list(columns)
        if keys.num_rows == 0 or self.rows == 0:
            return self.empty(wanted)
        self._lookups += 1
        if self.holds_keys(self._lookups):
            held = self._files.lookup(self._keyed_files, self.schema, keys, wanted)
            found = self.empty(wanted) if held is None else held
        else:
            found = pa.concat_tables(
                self._query(keys.slice(start, LOOKUP_KEYS_MAX), wanted)
                for start in range(0, keys.num_rows, LOOKUP_KEYS_MAX)
            )
        self._warn_of_duplicates(found)  # guard: L-8
        return found

    def holds_keys(self, lookups: int) -> bool:
        """Whether holding the keys in memory beats querying Lance, after `lookups` here."""
        if self.rows > HELD_KEYS_MAX:
            return False
        if not self.has_key_index:
            return True  # Lance would read every key for this one lookup too
        few = len(self._keyed_files) <= _FRAGMENTS_MAX
        return few and lookups * _ROWS_PER_LOOKUP >= self.rows

    @Lazy
    def _keyed_files(self) -> list[KeyedFile]:
        return [self._keyed_file(fragment) for fragment in self.dataset.get_fragments()]

    def _keyed_file(self, fragment: lance.LanceFragment) -> KeyedFile:
        key, number = self.schema.primary_key, fragment.fragment_id

        def read_keys() -> pa.Table:
            return pa.Table.from_batches(self.scan(key, fragments=[number]), self.empty(key).schema)

        return KeyedFile(
            to_text(fragment.metadata),
            self._where,
            self._with_ids(key),
            read_keys,
            lambda: self.fragment(number),
            self._with_ids,
        )

    def _with_ids(self, names: Sequence[str]) -> Columns:
        return tuple((name, self.schema.field_ids[name]) for name in names)

    def _warn_of_duplicates(self, found: pa.Table) -> None:
        """Warn about two rows of one key: another program wrote them, and all are shown (L-8)."""
        key = self.schema.primary_key
        if found.num_rows < 2 or self._warned_of_duplicates or not {*key} <= {*found.column_names}:
            return
        values = pk_values(found, key)
        if pc.count_distinct(values).as_py() < len(values):
            self._warned_of_duplicates = True
            logger.warning(
                "base.key_twice table=%s version=%d: the base has several rows of a key that was"
                " looked up, and the lookup returns them all; weir doctor counts them",
                self.dataset.uri,
                self.version,
            )

    def _query(self, keys: pa.Table, wanted: list[str]) -> pa.Table:
        names = self.schema.primary_key
        # With several key columns the filter passes other keys too; they are removed below.
        extra = [name for name in names if name not in wanted] if len(names) > 1 else []
        with lance_errors(f"looking up keys in {self._where}"):
            found = self.dataset.to_table(columns=[*wanted, *extra], filter=key_filter(keys, names))
        return rows_of_keys(found, keys, names).select(wanted) if len(names) > 1 else found

    def empty(self, columns: Sequence[str]) -> pa.Table:
        """An empty table with those columns."""
        known = self._empty.get(tuple(columns))
        if known is None:
            fields = [self.schema.plain.field(name) for name in columns]
            known = self._empty[tuple(columns)] = no_rows(pa.schema(fields))
        return known

    def fragments(self) -> list[tuple[int, int]]:
        """Id and number of live rows of each fragment, from the manifest alone."""
        return [
            (fragment.fragment_id, fragment.metadata.num_rows)
            for fragment in self.dataset.get_fragments()
        ]

    def deleted_rows(self) -> int:
        """Rows that files of this version hold and that are deleted, from the manifest alone."""
        return sum(f.metadata.num_deletions for f in self.dataset.get_fragments())

    @Lazy
    def has_key_index(self) -> bool:
        """True when the first key column has a scalar index: a query then reads little."""
        key = self.schema.primary_key[:1]
        with lance_errors(f"listing the indexes of {self._where}"):
            return any(
                tuple(index.field_names) == key and index.index_type in ("BTree", "Bitmap")
                for index in self.dataset.describe_indices()
            )
