"""Loads in the way of a change feed: their rows are in no log (P-3).

A load (`weir.spark.bulk_load`, an overwrite, a replaced table) is one commit of the base, and that
version and all later ones carry its number. A feed remembers the number of the table whose changes
it reads; where the table has another one, rows came and went that no entry tells of.
"""

from __future__ import annotations

from weir.errors import SnapshotExpired
from weir.routing.core import Core


def load_number(core: Core, version: int | None = None) -> int:
    """The number of the last load in that base version, by default in the latest; 0: none.

    One listing for the latest.
    """
    return core.lake.open_base(version).load_number


def require_same_load(core: Core, known: int | None, found: int, again: str) -> None:
    """`SnapshotExpired` when a load came between two looks at a table; `again`: what to do.

    None is the number of a place from before loads were numbered: nothing is known then. A lower
    number than before is that of a base that was taken back to before a load.
    """
    if known is None or known == found:  # guard: P-3 always test_change_feed
        return
    what = (
        "its rows were replaced, or rows were loaded or deleted, without the log (INSERT OVERWRITE,"
        " mode overwrite, REPLACE TABLE, TRUNCATE, bulk_load, DELETE on an append-only table; base"
        f" version {found} or later)"
    )
    if found < known:
        what = f"the load of base version {known} was undone, by a restore to before it"
    raise SnapshotExpired(
        f"{core.uri}: {what}. The feed has no entries for that, and would leave whoever reads it"
        f" with the rows of before. It has not gone past that. {again}"
    )
