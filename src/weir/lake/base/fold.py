"""Folding rows into the base table: as a whole in one process, or in pieces on many.

A fold may lose a race or be abandoned at any moment before its commit (`fold_commit`): all it
leaves behind are files that no version names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
from lance import LanceOperation
from lance.fragment import FragmentMetadata

from weir.env import Env
from weir.errors import InvalidInput
from weir.format.keys import pk_values
from weir.keys.keyset import KeySet
from weir.keys.numbers import is_whole
from weir.lake.api import Base
from weir.lake.lance_errors import lance_errors
from weir.lake.whole_buffers import for_lance

INDEX_LOOKUP_ROWS_PER_KEY: Final = 20_000
"""With at least this many base rows per key, the key's index beats reading the key column.

Measured on 8 million rows in random order on a local disk, in seconds with and without the BTree:
100 keys 0.03 and 0.06, 1 000 keys 0.16 and 0.05, 100 000 keys 1.1 and 0.11. A random key costs a
page of 4 096 rows, so a few keys touch most of the index; on an object store the bytes read are the
same."""
FIND_BATCH_ROWS: Final = 131_072
"""Rows per batch in a search for keys: Lance returns few large batches faster than many small."""
FIND_WORKERS: Final = 2
ROWS_PER_FILE: Final = 1_048_576
BYTES_PER_FILE: Final = 8 * 1024**3
_ROW_BITS: Final = np.uint64(0xFFFFFFFF)

Offsets = np.ndarray[Any, np.dtype[np.uint64]]


@dataclass(frozen=True, slots=True)
class BaseFence:
    """Proof of being the newest compactor: a token, and the version of its fence."""

    token: str
    fenced_at: int


@dataclass(frozen=True, slots=True)
class VersionEdit:
    """What a fold does to a version, with fragments as JSON text to send between processes."""

    updated: tuple[str, ...] = ()
    """Fragments with new deletion vectors."""
    removed: tuple[int, ...] = ()
    """Fragments with no row left."""
    added: tuple[str, ...] = ()
    """New fragments."""

    def to_json(self) -> str:
        """As text, to be sent from a task to the committing process."""
        return json.dumps({"updated": self.updated, "removed": self.removed, "added": self.added})

    @classmethod
    def from_json(cls, text: str) -> VersionEdit:
        """The inverse of `to_json`."""
        parts = json.loads(text)
        return cls(tuple(parts["updated"]), tuple(parts["removed"]), tuple(parts["added"]))


def delete_keys(
    base: Base, keys: pa.Table, env: Env, *, known: KeySet | None = None
) -> VersionEdit:
    """Deletion vectors that hide the rows of `keys` in the whole base; commits nothing.

    Few keys are found through the key's index, many in one pass over the key columns: integers by
    weir, other types by Lance's own join. `known` is the set of the keys, if a merge has built it
    already.
    """
    if keys.num_rows == 0 or base.count() == 0:
        return VersionEdit()
    names = base.schema.primary_key
    use_index = keys.num_rows * INDEX_LOOKUP_ROWS_PER_KEY < base.count() and base.has_key_index
    if use_index or len(names) > 1 or not is_whole(base.schema.arrow.field(names[0]).type):
        return _delete_joined(base, keys, use_index=use_index)
    wanted = key_set(base, keys) if known is None else known
    return combine(
        env.threads.map(
            lambda fragment: delete_keys_in_fragment(base, fragment[0], wanted),
            base.fragments(),
            workers=FIND_WORKERS,
        )
    )


def _delete_joined(base: Base, keys: pa.Table, *, use_index: bool) -> VersionEdit:
    names = list(base.schema.primary_key)
    with lance_errors(f"finding the rows to replace in {base.dataset.uri}"):
        transaction, _ = (
            base.dataset.merge_insert(names)
            .when_matched_delete()
            .use_index(use_index)
            .execute_uncommitted(_as_stored(keys, base.dataset.schema))
        )
    operation = cast("LanceOperation.Update", transaction.operation)
    return VersionEdit(
        updated=tuple(to_text(fragment) for fragment in operation.updated_fragments),
        removed=tuple(int(i) for i in operation.removed_fragment_ids),
    )


def delete_keys_in_fragment(base: Base, fragment_id: int, keys: KeySet) -> VersionEdit:
    """`delete_keys` for one fragment: the unit of work of an executor.

    Reads the key columns of that fragment batch by batch; memory holds the set of keys.
    """
    return hide_rows(base, fragment_id, find_keys(base, fragment_id, keys))


def find_keys(base: Base, fragment_id: int, keys: KeySet) -> Offsets:
    """Offsets of the rows of `keys` in the fragment."""
    names = base.schema.primary_key
    wanted = [
        batch.column("_rowaddr").to_numpy()[keys.find(pk_values(batch, names))] & _ROW_BITS
        for batch in _key_batches(base, fragment_id)
    ]
    return np.concatenate(wanted) if wanted else np.zeros(0, np.uint64)


@dataclass(frozen=True, slots=True)
class BaseKeys:
    """Keys of base rows, and the addresses of the rows."""

    keys: pa.Array
    addresses: Offsets


def read_keys(base: Base, fragments: Iterable[int], rows_max: int) -> Iterator[BaseKeys]:
    """The keys of `fragments`, in parts of about `rows_max` rows."""
    names = base.schema.primary_key
    keys: list[pa.Array] = []
    addresses: list[Offsets] = []
    for batch in (b for fragment_id in fragments for b in _key_batches(base, fragment_id)):
        keys.append(pk_values(batch, names))
        addresses.append(batch.column("_rowaddr").to_numpy())
        if sum(map(len, keys)) >= rows_max:
            yield BaseKeys(pa.concat_arrays(keys), np.concatenate(addresses))
            keys, addresses = [], []
    if keys:
        yield BaseKeys(pa.concat_arrays(keys), np.concatenate(addresses))


def hide_addresses(base: Base, addresses: Sequence[Offsets]) -> VersionEdit:
    """Deletion vectors that hide the rows at these addresses."""
    every = np.concatenate(addresses) if addresses else np.zeros(0, np.uint64)
    of = every >> np.uint64(32)
    return combine(
        hide_rows(base, int(fragment_id), every[of == fragment_id] & _ROW_BITS)
        for fragment_id in np.unique(of)
    )


def _key_batches(base: Base, fragment_id: int) -> Iterator[pa.RecordBatch]:
    return base.scan(
        list(base.schema.primary_key),
        fragments=[fragment_id],
        with_row_address=True,
        batch_size=FIND_BATCH_ROWS,
    )


def hide_rows(base: Base, fragment_id: int, offsets: Offsets) -> VersionEdit:
    """A deletion vector that hides those rows of the fragment; commits nothing."""
    if len(offsets) == 0:
        return VersionEdit()
    with lance_errors(f"hiding rows of fragment {fragment_id} of {base.dataset.uri}"):
        left = base.fragment(fragment_id).delete_rows(offsets.tolist())
    if left is None:
        return VersionEdit(removed=(fragment_id,))
    return VersionEdit(updated=(to_text(left),))


def key_set(base: Base, keys: pa.Table) -> KeySet:
    """The keys as `delete_keys_in_fragment` takes them; made once for many fragments."""
    values = pk_values(keys, base.schema.primary_key)
    return KeySet.of([values], values.type, len(values))


def write_rows(
    base: Base,
    rows: pa.Table | Iterable[pa.RecordBatch],
    *,
    rows_per_file: int = ROWS_PER_FILE,
    bytes_per_file: int = BYTES_PER_FILE,
) -> VersionEdit:
    """Write `rows` (in the base's columns, any order of rows) as new fragments; commits nothing."""
    schema = base.dataset.schema
    if isinstance(rows, pa.Table):
        if rows.num_rows == 0:
            return VersionEdit()
        data: Any = _as_stored(rows, schema)
    else:
        data = pa.RecordBatchReader.from_batches(
            schema, (_as_stored(batch, schema) for batch in rows)
        )
    with lance_errors(f"writing new rows of {base.dataset.uri}"):
        fragments = base.write_fragments(
            data, rows_per_file=rows_per_file, bytes_per_file=bytes_per_file
        )
    return VersionEdit(
        added=tuple(to_text(fragment) for fragment in fragments if fragment.physical_rows)
    )


def fold_rows(
    base: Base,
    upserts: pa.Table,
    deletes: pa.Table,
    env: Env,
    *,
    known: KeySet | None = None,
) -> VersionEdit:
    """The changes that make `upserts` the rows of their keys and remove the keys of `deletes`.

    Runs in one process, which writes the rows while it searches for those they replace. The keys of
    both tables together are distinct; `known` holds them all, if given. Without a primary key the
    rows are appended and `deletes` is empty.
    """
    names = list(base.schema.primary_key)
    jobs: list[Callable[[], VersionEdit]] = [lambda: write_rows(base, upserts)]
    if names:
        stored = base.dataset.schema
        keys = pa.concat_tables(
            [_as_stored(part.select(names), stored) for part in (upserts, deletes)]
        )
        jobs.append(lambda: delete_keys(base, keys, env, known=known))
    elif deletes.num_rows:
        raise InvalidInput(f"{base.dataset.uri} has no primary key; its rows cannot be deleted")
    return combine(env.threads.map(lambda job: job(), jobs, workers=2))


def combine(parts: Iterable[VersionEdit]) -> VersionEdit:
    """The changes of several tasks as one."""
    collected = list(parts)
    return VersionEdit(
        updated=tuple(text for part in collected for text in part.updated),
        removed=tuple(i for part in collected for i in part.removed),
        added=tuple(text for part in collected for text in part.added),
    )


def _as_stored(rows: Any, schema: pa.Schema) -> Any:
    """Rows with the base's own fields: Lance compares nullability and metadata too."""
    if rows.schema.names != schema.names and set(rows.schema.names) >= set(schema.names):
        rows = rows.select(schema.names)
    target = pa.schema([schema.field(name) for name in rows.schema.names])
    return type(rows).from_arrays(for_lance(rows).columns, schema=target)


def to_text(fragment: FragmentMetadata) -> str:
    """A fragment as text for a `VersionEdit`; equal for the same files and deletion vector."""
    return json.dumps(fragment.to_json())
