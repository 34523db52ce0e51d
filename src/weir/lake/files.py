"""Lookups by key in immutable files of Lance: SSTables, and fragments of the base.

An index of a file's live keys is kept in memory (16 bytes a key). A lookup searches it and fetches
only the rows found, which takes half of what a lookup through a scalar index costs Lance (0.6 ms on
a local disk, most of it planning). Everything is kept under names that are never used for other
bytes. A fragment is named by its description, data files and deletion vector, so a fold makes only
the fragments that it touches be read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import lance
import pyarrow as pa
from lance.fragment import FragmentSession

from weir.env import Env
from weir.format.keys import pk_values
from weir.format.schema import TableSchema
from weir.keys.index import KeyIndex, Positions, rows_of_keys
from weir.keys.numbers import codes_of
from weir.keys.slots import Codes
from weir.lake.base.blocks import RowBlocks
from weir.lake.cache import ByteCache
from weir.lake.lance_errors import lance_errors

KEY_CACHE_BYTES: Final = 512 * 1024 * 1024
"""Limit on the key indexes of one table's files together (32 million keys)."""
_SESSIONS_LIMIT: Final = 768
"""Open fragments kept, one per file and choice of columns."""

Columns = tuple[tuple[str, int], ...]
"""Names in a file and field ids: a name may pass to another column while the file stays."""


@dataclass(frozen=True)
class KeyedFile:
    """One immutable file whose rows have keys."""

    name: str
    """Equal exactly for files that hold the same rows."""
    where: str
    """For messages."""
    key: Columns
    """The columns of the key."""
    read_keys: Callable[[], pa.Table]
    """Reads the keys of the live rows in order: position i is what a fragment's `take` calls i."""
    fragment: Callable[[], lance.LanceFragment]
    """The fragment that holds the rows."""
    stored: Callable[[Sequence[str]], Columns]
    """What is read of the file for columns of those names."""
    shaped: Callable[[pa.Table, Sequence[str]], pa.Table] = lambda rows, _: rows
    """What was read, as columns of those names."""


class FileLookups:
    """What lookups keep of one table's files between calls. Safe to share between threads."""

    def __init__(self, env: Env) -> None:
        self._rows = RowBlocks(env)
        self._keys: ByteCache[KeyIndex] = ByteCache(KEY_CACHE_BYTES, env, "keys")
        self._sessions: ByteCache[FragmentSession] = ByteCache(_SESSIONS_LIMIT, env)
        self._coded: tuple[pa.Table, Codes] | None = None

    def lookup(
        self,
        files: Iterable[KeyedFile],
        schema: TableSchema,
        keys: pa.Table,
        wanted: Sequence[str],
    ) -> pa.Table | None:
        """The rows of `keys` in `files`, in no promised order, or None if there are none.

        Reads the keys of a file once, then only the rows found.
        """
        names = schema.primary_key
        codes = self._codes(keys, names)
        hits = []
        for file in files:
            index = self._index(file, names)
            if len(positions := index.find_codes(codes)):
                hits.append((file, index, positions))
        if not hits:
            return None
        # Hashes only yield candidates, whose keys are compared with the requested ones.
        is_exact = len(names) == 1 and KeyIndex.is_exact(schema.arrow.field(names[0]).type)
        extra = [] if is_exact else [name for name in names if name not in wanted]
        parts = [self._take(*hit, (*extra, *wanted)) for hit in hits]
        rows = parts[0] if len(parts) == 1 else pa.concat_tables(parts)
        return rows if is_exact else rows_of_keys(rows, keys, names).select(list(wanted))

    def _index(self, file: KeyedFile, names: Sequence[str]) -> KeyIndex:
        """The index of the file's keys, which are read the first time."""
        return self._keys.get_or_make(
            (file.name, file.key),
            lambda: KeyIndex(pk_values(file.read_keys(), names)),
            lambda index: index.nbytes,
        )

    def _take(
        self, file: KeyedFile, index: KeyIndex, positions: Positions, names: Sequence[str]
    ) -> pa.Table:
        columns = file.stored(names)
        read = (file.name, columns)
        session = self._sessions.get_or_make(
            read,
            lambda: file.fragment().open_session(columns=[name for name, _ in columns]),
            lambda _: 1,
        )
        with lance_errors(f"looking up keys in {file.where}"):
            taken = self._rows.take(read, len(index), positions, session.take)
        return file.shaped(taken, names)

    def _codes(self, keys: pa.Table, names: Sequence[str]) -> Codes:
        """What a key index compares. The last codes are cached: one file after the other is
        searched for the same keys."""
        known = self._coded
        if known is None or known[0] is not keys:
            self._coded = known = (keys, codes_of(pk_values(keys, names)))
        return known[1]
