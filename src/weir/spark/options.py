"""The options of the data source: which there are, and a word for those there are not."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Final

from weir.errors import InvalidInput
from weir.spark.places import STORAGE

PLACE: Final = frozenset({"path", "storageOptionsFrom", "walUri"})
READ: Final = PLACE | {
    "checkpoint",
    "columns",
    "filter",
    "freshness",
    "metadataColumns",
    "splitRows",
    "timeZone",
}
FEED: Final = PLACE | {
    "consumer",
    "consumerTtl",
    "deletes",
    "maxBytesPerTrigger",
    "maxEntriesPerTrigger",
    "metadataColumns",
    "startingOffsets",
}
WRITE: Final = PLACE | {
    "appId",
    "buckets",
    "deleteColumn",
    "layout",
    "maxEntryBytes",
    "mergeSchema",
    "overwrite",
    "primaryKey",
    "shardBy",
    "txnVersion",
}

_SPARK: Final = frozenset(
    {"checkpointlocation", "location", "owner", "outputmode", "provider", "queryname"}
)
"""What Spark itself puts among the options."""

_ELSEWHERE: Final = {
    "versionasof": "read at a checkpoint by its name, option checkpoint",
    "timestampasof": "read at a checkpoint by its name, option checkpoint",
    "readchangefeed": "the change feed is spark.readStream.format('weir'), or weir.spark.changes",
    "replacewhere": "use weir.spark.delete_where, then append",
    "partitionoverwritemode": "mode overwrite replaces the whole table",
}


def check_options(options: Mapping[str, str], known: frozenset[str], what: str) -> None:
    """`InvalidInput` for an option that `what` does not have, with the nearest that it has.

    An option that is not known would be passed over in silence, and rows be wrong: somebody asked
    for a version, and got another.
    """
    names = {name.lower(): name for name in known}
    for given in options:
        low = given.lower()
        if low in names or low in _SPARK or low.startswith((STORAGE, "option.", "weir.")):
            continue
        if low in _ELSEWHERE:
            raise InvalidInput(f"{what} has no option {given!r}: {_ELSEWHERE[low]}")
        near = difflib.get_close_matches(low, names, n=1, cutoff=0.6)
        hint = f"did you mean {names[near[0]]}?" if near else f"it has {', '.join(sorted(known))}"
        raise InvalidInput(f"{what} has no option {given!r}; {hint}")
