"""What a view of a table with several shards may show: all rows of the routings before one, and a
prefix of the log of each shard of that routing (R, C-11)."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import pyarrow as pa

from simulator.oracles import Judge
from simulator.truth import Row, State, Violation, fold_rows, index_rows
from weir.format.bucket import bucket
from weir.format.sharding import Bucket, Identity, Sharding, Value, shard_id


def lows(judge: Judge) -> dict[UUID, int]:
    """The position acknowledged in each shard: no read that begins now may show less."""
    return {shard: truth.acked for shard, truth in judge.shards.items()}


def tips(judge: Judge) -> dict[UUID, int]:
    """The whole log of each shard."""
    return {shard: truth.tip for shard, truth in judge.shards.items()}


def viewed_table(judge: Judge, rows: list[Row], low: Mapping[UUID, int]) -> int:
    """Raise unless some routing allows the view; returns the number of that routing."""
    judge.counts["views"] += 1
    found = index_rows(rows, keyed=judge.keyed)
    reasons = []
    for number in range(len(judge.routings)):
        reason = _misfit(judge, number, found, low)
        if reason is None:
            return number
        reasons.append(f"routing {number}: {reason}")
    raise Violation("R", "; ".join(reasons))


def viewed_under(judge: Judge, rows: list[Row], low: Mapping[UUID, int], version: int) -> None:
    """Raise unless that routing allows the view (K-10)."""
    judge.counts["views"] += 1
    found = index_rows(rows, keyed=judge.keyed)
    number = next(i for i, r in enumerate(judge.routings) if r.routing_version == version)
    reason = _misfit(judge, number, found, low)
    if reason is not None:
        raise Violation("K", f"no moment of routing {version}: {reason}")


def _misfit(judge: Judge, number: int, found: State, low: Mapping[UUID, int]) -> str | None:
    record = judge.routings[number]
    keys = {r[0] for truth in judge.shards.values() for e in truth.log.values() for r in e.rows}
    later = [
        shard_of(other.sharding, key, other.routing_version)
        for other in judge.routings[number + 1 :]
        for key in keys
    ]
    if any(low.get(shard, 0) for shard in later):
        return "rows of a later one were acknowledged before"
    base = complete(judge, number)
    shards = {shard_of(record.sharding, key, record.routing_version) for key in keys}
    for shard in sorted(shards, key=str):

        def mine(state: State, shard: UUID = shard) -> State:
            return {
                ident: row
                for ident, row in state.items()
                if shard_of(record.sharding, row[0], record.routing_version) == shard
            }

        if not fits(judge, shard, mine(base), mine(found), low.get(shard, 0)):
            return f"shard {str(shard)[:4]} shows {mine(found)}, no prefix from {low.get(shard, 0)}"
    return None


def fits(judge: Judge, shard: UUID, base: State, found: State, low: int) -> bool:
    """True when `found` is what `base` and a prefix of the shard's log give, from `low` on."""
    truth = judge.truth(shard)
    state = base
    if not low and state == found:
        return True
    for position in range(1, truth.tip + 1):
        state = fold_rows(state, truth.log[position].rows, keyed=judge.keyed)
        if position >= low and state == found:
            return True
    return False


def complete(judge: Judge, number: int) -> State:
    """The table when the routings before that one were complete, and that one was empty."""
    state: State = {}
    for record in judge.routings[:number]:
        for shard, truth in judge.shards.items():
            for position in sorted(truth.log):
                rows = truth.log[position].rows
                if rows and shard_of(record.sharding, rows[0][0], record.routing_version) == shard:
                    state = fold_rows(state, rows, keyed=judge.keyed)
    return state


_KNOWN: dict[tuple[Sharding, int, int], UUID] = {}


def shard_of(sharding: Sharding, key: int, version: int) -> UUID:
    """The shard that takes the rows of a key."""
    known = _KNOWN.get((sharding, key, version))
    if known is None:
        value: Value = key if isinstance(sharding, Identity) else None
        if isinstance(sharding, Bucket):
            value = int(bucket(pa.array([key], pa.int64()), sharding.num)[0])
        known = _KNOWN[sharding, key, version] = shard_id(sharding, value, version)
    return known
