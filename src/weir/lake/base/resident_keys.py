"""Keys of the base held in memory, for lookups that skip Lance's planner.

A lookup through a scalar index costs Lance 0.6 ms on a local disk, most of it planning; one through
an index in memory costs half, and a table without a scalar index need not be read at every lookup.
For each fragment an index of its live keys is kept (16 bytes a key), keyed by the fragment's
description: data files and deletion vector. A fold changes the description of only the fragments
that it touches.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from lance.fragment import FragmentSession

from weir.env import Env
from weir.format.keys import pk_values
from weir.keys.index import KeyIndex, rows_of_keys
from weir.lake.base.blocks import RowBlocks
from weir.lake.cache import ByteCache
from weir.lake.lance_errors import lance_errors

if TYPE_CHECKING:
    from weir.lake.base.view import LanceBase

BASE_KEY_CACHE_BYTES: Final = 256 * 1024 * 1024
"""Limit on the keys held of one table's base (16 million keys); a larger base is not held."""
_KEY_BYTES: Final = 16
_SESSIONS_LIMIT: Final = 256
_FRAGMENTS_MAX: Final = 64
"""With more fragments a scalar index is as fast."""
_ROWS_PER_LOOKUP: Final = 32_768
"""Reading the keys of this many rows costs what one lookup saves by skipping a scalar index."""

_Columns = tuple[tuple[str, int], ...]
_File = tuple[str, _Columns]
"""Everything that the rows read from a fragment depend on."""


class ResidentKeys:
    """The keys of one table's base, for the versions in use. Safe to share between threads."""

    def __init__(self, env: Env, blocks: RowBlocks) -> None:
        self._keys: ByteCache[KeyIndex] = ByteCache(BASE_KEY_CACHE_BYTES, env)
        self._sessions: ByteCache[FragmentSession] = ByteCache(_SESSIONS_LIMIT, env)
        self._blocks = blocks

    def is_cheaper(self, base: LanceBase, lookups: int) -> bool:
        """Whether holding the keys beats querying Lance, after `lookups` on this version."""
        rows = base.rows
        if rows * _KEY_BYTES > BASE_KEY_CACHE_BYTES // 2:
            return False
        if not base.has_key_index:
            return True  # Lance would read every key for this one lookup too
        return len(base.identities) <= _FRAGMENTS_MAX and lookups * _ROWS_PER_LOOKUP >= rows

    def lookup(self, base: LanceBase, keys: pa.Table, wanted: Sequence[str]) -> pa.Table:
        """The rows of `keys`; reads the keys of a fragment once, then only the rows found."""
        names = base.schema.primary_key
        values = pk_values(keys, names)
        # Hashes only yield candidates, whose keys are compared with the requested ones.
        is_exact = KeyIndex.is_exact(values.type)
        extra = [] if is_exact else [name for name in names if name not in wanted]
        parts = []
        for fragment_id, described in base.identities:
            index = self._index(base, fragment_id, described)
            positions = index.find(values)
            if len(positions):
                columns = [*extra, *wanted]
                file = (described, self._columns(base, columns))
                session = self._session(base, fragment_id, file)
                with lance_errors(f"looking up keys in {base!r}"):
                    parts.append(self._blocks.take(file, len(index), positions, session.take))
        if not parts:
            return base.empty(wanted)
        found = parts[0] if len(parts) == 1 else pa.concat_tables(parts)
        if not is_exact:
            found = rows_of_keys(found, keys, names).select(list(wanted))
        return found

    def _index(self, base: LanceBase, fragment_id: int, described: str) -> KeyIndex:
        names = base.schema.primary_key

        def load() -> KeyIndex:
            batches = list(base.scan(names, fragments=[fragment_id]))
            return KeyIndex(
                pk_values(pa.Table.from_batches(batches, base.empty(names).schema), names)
            )

        key = (described, self._columns(base, names))
        return self._keys.get_or_make(key, load, lambda made: made.nbytes)

    def _session(self, base: LanceBase, fragment_id: int, file: _File) -> FragmentSession:
        return self._sessions.get_or_make(
            file,
            lambda: base.fragment(fragment_id).open_session(columns=[name for name, _ in file[1]]),
            lambda _: 1,
        )

    @staticmethod
    def _columns(base: LanceBase, names: Sequence[str]) -> _Columns:
        # A name may pass to another column while the fragment stays as it is.
        return tuple((name, base.schema.field_ids[name]) for name in names)


def identity(metadata: object) -> str:
    """A fragment's description: equal exactly when it holds the same rows."""
    return json.dumps(metadata.to_json())  # type: ignore[attr-defined]
