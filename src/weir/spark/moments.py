"""Where a feed begins or ends, given as a moment: a checkpoint or a time."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from uuid import UUID

import weir
from weir.errors import CheckpointNotFound, InvalidInput, SnapshotExpired
from weir.format import paths
from weir.log.shard_log import ShardLog
from weir.records.checkpoints import Checkpoint
from weir.routing.core import CONCURRENCY, Core
from weir.spark.options import START
from weir.types import Position
from weir.upkeep import checkpoint as checkpoints


def one_start(options: Mapping[str, str]) -> None:
    """`InvalidInput` when the options name two places to begin at."""
    given = sorted(name for name in START if name.lower() in options)
    if len(given) > 1:
        raise InvalidInput(
            f"options {given[0]} and {given[1]} both set where to start: give one of them"
        )


def checkpoint_named(table: weir.Table, name: str, option: str) -> Checkpoint:
    """The checkpoint of that name; `CheckpointNotFound` explains what a version is here."""
    try:
        return checkpoints.find(table.core, name)
    except CheckpointNotFound as absent:
        raise CheckpointNotFound(
            f"{option} is {name!r}: {absent}. A version is the name of a checkpoint; commits have"
            " no numbers. startingVersion of a stream may also be earliest or latest"
        ) from None


def time_of(text: str, option: str) -> dt.datetime:
    """Parse a time with an offset, or milliseconds since 1970 as in Kafka."""
    if text.isdigit():
        return dt.datetime.fromtimestamp(int(text) / 1000, dt.UTC)
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInput(
            f"{option} is {text!r}, not an ISO 8601 time or milliseconds since 1970 ({error})"
        ) from None
    if found.tzinfo is None:
        raise InvalidInput(
            f"{option} is {text!r}, without an offset, and a data source does not know the"
            f" session's time zone. Write {in_utc(text)!r}, or the offset you mean"
        )
    return found


def in_utc(text: str) -> str:
    """How to write a time or a date that has no offset, if UTC is meant; an example otherwise."""
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        return "2026-01-31T12:00:00+00:00"
    return found.replace(tzinfo=dt.UTC).isoformat()


def positions_since(core: Core, moment: dt.datetime, *, loss: bool) -> dict[UUID, int]:
    """In each log the position before the first entry that was put at or after `moment`.

    Times are of the store's clock. A moved or cloned entry has the time of the move or clone: a
    feed may begin earlier than asked, never later. The times of collected entries are unknown:
    raises `SnapshotExpired` if `moment` may be among them, unless `loss` is accepted. Some requests
    a shard.
    """

    def one(shard: UUID) -> int:
        log = core.log(shard)
        floor = int(log.floors().wal)
        found = _before(log, floor, int(log.tip()), moment.timestamp())
        if found == floor and floor and not loss:
            raise SnapshotExpired(
                f"{log}: entries up to position {floor} were collected and may be newer than"
                f" {moment}. Use startingOffsets snapshot or earliest, or set failOnDataLoss=false"
                " to start after them"
            )
        return found

    ids = core.all_shard_ids()
    return dict(zip(ids, core.env.threads.map(one, ids, workers=CONCURRENCY), strict=True))


def _before(log: ShardLog, low: int, high: int, moment: float) -> int:
    """The last position in `[low, high]` whose entry is older than `moment`, by binary search."""
    while low < high:
        middle = (low + high + 1) // 2
        where = log.segment(middle).site.wal
        meta = where.head(paths.wal_path(log.shard, Position(middle)))
        if meta is None or meta.last_modified < moment:
            low = middle
        else:
            high = middle - 1
    return low
