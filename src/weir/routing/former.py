"""Batches that were applied, in whole or in part, before the table was resharded (P-2, P-6).

Tokens are kept by shard, and resharding makes new shards without any. So the rows of a batch are
looked up where the former routings put them, and those that such a shard took in are skipped. Those
shards are sealed: their tokens never change, and a handle reads them once.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

import pyarrow as pa

from weir.env import Env
from weir.format import paths
from weir.format.manifest import Status
from weir.format.sharding import Router, Sharding, shard_id
from weir.routing.core import CONCURRENCY, Core
from weir.shard.tokens import Tokens

_KNOWN_MAX: Final = 10_000


class SealedTokens:
    """What a handle has read of the sealed shards: it never changes."""

    def __init__(self, env: Env) -> None:
        """Use `Core.attached`."""
        self.highest: dict[tuple[UUID, str], int] = {}
        """The highest batch number of an application in a shard; -1 if there is none."""


class FormerShards:
    """The batches that shards of former routings took in."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._former = core.record.former

    def unapplied(
        self, app: str, version: int, batches: list[pa.RecordBatch]
    ) -> list[pa.RecordBatch]:
        """The rows that none of them took under that token."""
        if app.startswith(paths.JOB_APP):
            return batches  # a job writes under one routing only
        for number, sharding in self._former:
            batches = [
                part
                for batch in batches
                for part in _unapplied(self._core, sharding, number, app, version, batch)
            ]
        return batches

    def last_version(self, app: str) -> int:
        """The highest batch number of `app` in any of them, -1 if there is none. Which of them had
        rows that go to one heir cannot be told, so it is the same for all heirs."""
        if app.startswith(paths.JOB_APP):
            return -1

        def highest(shard: UUID) -> int:
            manifest = self._core.log(shard).manifests.latest()
            if manifest is None or manifest.status is not Status.SEALED:
                return -1
            return _highest(self._core, shard, app)

        found = self._core.env.threads.map(highest, self._core.shard_ids(), workers=CONCURRENCY)
        return max(found, default=-1)


def former_shards(core: Core) -> FormerShards | None:
    """The shards of former routings; None when there was none."""
    return FormerShards(core) if core.record.former else None


def _unapplied(
    core: Core,
    sharding: Sharding,
    number: int,
    app: str,
    version: int,
    batch: pa.RecordBatch,
) -> list[pa.RecordBatch]:
    column = Router(sharding).column_name
    if column is not None and column not in batch.schema.names:
        return [batch]  # the column is gone: its shard cannot be known
    dtype = None if column is None else batch.schema.field(column).type
    return [
        part
        for value, part in Router(sharding).split(batch)
        if _highest(core, shard_id(sharding, value, number, dtype), app) < version
    ]


def _highest(core: Core, shard: UUID, app: str) -> int:
    known = core.attached.of(SealedTokens).highest
    if (shard, app) not in known:
        if len(known) >= _KNOWN_MAX:
            known.clear()
        recorded = Tokens(core.table_site(shard)).load(app)
        known[shard, app] = -1 if recorded is None else recorded
    return known[shard, app]
