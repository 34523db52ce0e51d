"""An index of the keys in the MemTables that stay in memory after their flush.

Writes that look first look up keys that are mostly in none of these MemTables; searching each one
would take longer with every flush.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weir.env import Env
from weir.shard.memtable import MemTable
from weir.types import Generation


class WarmKeys:
    """One index over those MemTables. Safe to share between threads.

    Built on first use, and brought up to date when the set of MemTables changes.
    """

    def __init__(self, env: Env) -> None:
        self._lock = env.threads.lock()
        self._tables: tuple[MemTable, ...] = ()
        self._newest: dict[Any, Generation] = {}
        """The newest generation that has each key."""

    def holding(self, tables: tuple[MemTable, ...], keys: Sequence[Any]) -> set[Generation]:
        """The generations among `tables`, which are newest first, that may have the newest rows of
        those keys."""
        with self._lock:
            if tables is not self._tables and not self._follow(tables):
                return {table.generation for table in tables}
            newest = self._newest
            if newest.keys().isdisjoint(keys):
                return set()
            return {newest[key] for key in keys if key in newest}

    def _follow(self, tables: tuple[MemTable, ...]) -> bool:
        """Drop the oldest MemTables, and add the newer ones. False for an earlier state, which a
        reader took before a flush had finished."""
        before = self._tables
        if before and (not tables or tables[0].generation < before[0].generation):
            return False
        self._tables = ()  # F-16: after an interrupt in here nobody relies on half an index
        if not before:
            self._newest.clear()
        for table in before:
            if table not in tables:
                for key in table.level.all_keys():
                    if self._newest.get(key) == table.generation:
                        del self._newest[key]
        for table in reversed(tables):
            if table not in before:
                self._newest.update(dict.fromkeys(table.level.all_keys(), table.generation))
        self._tables = tables
        return True
