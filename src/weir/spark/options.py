"""The options of the data source: their names, synonyms of other systems, and refused ones."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Final, cast

import weir
from weir.errors import InvalidInput
from weir.shard.request_builder import (
    MISSING,
    ON_CONFLICT,
    VERBS,
    Missing,
    OnConflict,
    WriteSpec,
    check_choice,
)
from weir.spark.places import STORAGE, flag

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
STATEMENT: Final = READ | {"statementId"}
"""Options of what an UPDATE, DELETE or MERGE reads of its target, and its own."""
START: Final = frozenset({"startingOffsets", "startingTimestamp", "startingVersion"})
BETWEEN: Final = PLACE | {
    "endingTimestamp",
    "endingVersion",
    "readChangeFeed",
    "startingTimestamp",
    "startingVersion",
}
"""Options of a batch read of changes."""
FEED: Final = (
    PLACE
    | START
    | {
        "consumer",
        "consumerTtl",
        "deletes",
        "failOnDataLoss",
        "maxBytesPerTrigger",
        "maxEntriesPerTrigger",
        "metadataColumns",
        "readChangeFeed",
    }
)
CREATE: Final = frozenset({"buckets", "primaryKey", "shardBy", "walUri", "writerDefaults"})
"""Options of a write, and properties of CREATE TABLE, that say how to create the table."""
WRITE: Final = (
    PLACE
    | CREATE
    | {
        "appId",
        "deleteColumn",
        "layout",
        "maxEntryBytes",
        "mergeSchema",
        "missing",
        "onConflict",
        "overwrite",
        "partitionOverwriteMode",
        "replaceWhere",
        "statementId",
        "txnVersion",
        "weir.write",
        "when",
    }
)

SYNONYMS: Final = {
    "group.id": "consumer",
    "kafka.group.id": "consumer",
    "maxfilespertrigger": "maxEntriesPerTrigger",
    "maxoffsetspertrigger": "maxEntriesPerTrigger",
    "readchangedata": "readChangeFeed",
    "txnappid": "appId",
}
"""Names that Delta and Kafka have for options of weir. An entry of a log corresponds to a file in
Delta and to an offset in Kafka."""

SKIPS: Final = ("skipChangeCommits", "ignoreDeletes")
"""Delta's names for `deletes=skip`."""

_SPARK: Final = frozenset(
    {"checkpointlocation", "location", "owner", "outputmode", "provider", "queryname"}
)
"""Options that Spark itself adds."""

_ELSEWHERE: Final = {
    "versionasof": "use the option checkpoint, with the name of a checkpoint",
    "timestampasof": "use the option checkpoint, with the name of a checkpoint",
    "ignorechanges": "updates are always returned as rows; to skip deletes use deletes=skip",
    "endingoffsets": "a batch read with readChangeFeed has endingVersion and endingTimestamp",
    "minpartitions": "a micro-batch has one task for each shard; reshard for more",
    "subscribe": "a feed reads one table; pass its path to load",
    "starttimestamp": "use startingTimestamp",
}


def canonical_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options by weir's names, in lower case; `InvalidInput` for one given by two names."""
    found: dict[str, str] = {}
    for given, value in options.items():
        name = SYNONYMS.get(given.lower(), given).lower()
        if found.setdefault(name, value) != value:
            meant = SYNONYMS.get(given.lower(), given)
            raise InvalidInput(
                f"option {meant} is given twice with different values, once as {given!r}; give it"
                " once"
            )
    for skips in SKIPS:
        if flag(found, skips):
            found.setdefault("deletes", "skip")
        found.pop(skips.lower(), None)
    return found


def check_options(options: Mapping[str, str], known: frozenset[str], what: str) -> None:
    """`InvalidInput` for an option that `what` does not have; suggests the nearest one.

    Ignoring an unknown option silently could return wrong rows: those of another version than the
    one requested.
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


def require_changeable(table: weir.Table, options: Mapping[str, str], what: str | None) -> None:
    """`InvalidInput` unless the options name the table as it is now, and a table with a key if the
    write is `what`: an update or another change of rows that are there."""
    if what is not None and not table.primary_key:
        raise InvalidInput(
            f"{table.uri} is append-only: {what} needs a primary key to identify rows"
        )
    if options.get("checkpoint") or options.get("weir.asof"):
        raise InvalidInput(
            f"{table.uri}: a checkpoint is read-only. To write, remove VERSION or TIMESTAMP AS OF,"
            " or the option checkpoint"
        )


def write_spec_of(options: Mapping[str, str]) -> WriteSpec | None:
    """How a write depends on existing rows: `weir.write`, `when`, `missing`, `onConflict`.

    None for a plain put. An option that does not go with the others is refused.
    """
    verb = options.get("weir.write", "put").lower()
    check_choice(verb, VERBS, "option weir.write")
    for name, goes_with in (("when", "put"), ("missing", "update"), ("onConflict", "insert")):
        if name.lower() in options and verb != goes_with:
            raise InvalidInput(f"option {name} goes with weir.write = {goes_with}, not {verb}")
    when = options.get("when")
    missing = options.get("missing", "error").lower()
    on_conflict = options.get("onconflict", "error").lower()
    check_choice(missing, MISSING, "option missing")
    check_choice(on_conflict, ON_CONFLICT, "option onConflict")
    if verb == "put" and when is None:
        return None
    if "deletecolumn" in options and verb != "put":
        raise InvalidInput(f"option deleteColumn goes with weir.write = put, not {verb}")
    return WriteSpec(verb, when, cast("Missing", missing), cast("OnConflict", on_conflict))
