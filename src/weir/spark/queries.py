"""Refuse a stream whose `appId` already numbers the batches of another query (P-6).

With the option `appId` the token of a batch is (appId, batch number). A query started with a new
checkpoint location counts from 0 again: without this check its batches would be skipped silently
until their numbers pass the old ones.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from weir.errors import InvalidInput
from weir.records.apps import query_of, take_app
from weir.routing.core import CONCURRENCY, Core
from weir.shard.tokens import Tokens

_KNOWN_MAX: Final = 10_000


def require_own_numbers(core: Core, app: str, query: str, batch: int) -> None:
    """`InvalidInput` unless batches of `app` are numbered by `query`, or by no query yet.

    One get the first time in a process. The very first batch of `app` also reads the tokens of
    every shard, once: batch jobs with `appId` leave tokens, and no such record.
    """
    key = (core.record.table_id, app, query)
    if key in _KNOWN:
        return
    owner = query_of(core.store, app)
    if owner is None:
        highest = _highest(core, app)
        if highest > batch:
            raise InvalidInput(
                f"{core.uri}: batch {highest} of appId {app!r} is already written, and query"
                f" {query} is at batch {batch}: {_ADVICE}"
            )
        owner = take_app(core.store, app, query)
    if owner != query:  # guard: P-6
        raise InvalidInput(
            f"{core.uri}: appId {app!r} belongs to query {owner}, and this is query {query}:"
            f" {_ADVICE}"
        )
    if len(_KNOWN) >= _KNOWN_MAX:
        _KNOWN.clear()
    _KNOWN.add(key)


def _highest(core: Core, app: str) -> int:
    def look(shard: UUID) -> int:
        recorded = Tokens(core.table_site(shard)).load(app)
        return -1 if recorded is None else recorded

    return max(core.env.threads.map(look, core.shard_ids(), workers=CONCURRENCY), default=-1)


_ADVICE: Final = (
    "its batches would be skipped as already written. A new checkpoint location starts a new query,"
    " which numbers its batches from 0. Give it an appId of its own, or none. Nothing was written"
)
_KNOWN: set[tuple[UUID, str, str]] = set()
