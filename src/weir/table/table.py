"""`Table`: the facade users hold. Each verb lives in a module of its own."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import pyarrow as pa

from weir.config import WriterConfig
from weir.durations import Duration
from weir.errors import InvalidInput
from weir.format.manifest import ShardManifest
from weir.format.sharding import Identity, Sharding, Unsharded, Value
from weir.read.changes import Bookmark, Changes
from weir.read.scan import Scan, get_rows
from weir.read.search import search
from weir.read.snapshot import Freshness, Pinned, Snapshot, take_snapshot
from weir.read.stats import TableStats, collect_stats
from weir.records.checkpoints import Checkpoint, require_whole
from weir.routing.core import Core
from weir.routing.shards import Shard
from weir.routing.writer import TableWriter


class Table:
    """A table on object storage. Made by `weir.create`, `weir.open` or `weir.enable`.

    Safe to share between threads. Holds no lock and claims nothing; only writers do.
    """

    def __init__(self, core: Core) -> None:
        """Use `weir.open`."""
        self.core = core

    def __repr__(self) -> str:
        return (
            f"Table({self.uri!r}, primary_key={list(self.primary_key)}, sharding={self.sharding})"
        )

    # -- what it is ------------------------------------------------------------------------------

    @property
    def uri(self) -> str:
        """Where the table is."""
        return self.core.uri

    @property
    def schema(self) -> pa.Schema:
        """The columns, as of the latest base version. One listing."""
        return self.core.schema().plain

    @property
    def primary_key(self) -> tuple[str, ...]:
        """Names of the key columns, in key order; empty for an append-only table."""
        return self.core.record.primary_key

    @property
    def sharding(self) -> Sharding:
        """How rows find their shard."""
        return self.core.record.sharding

    @property
    def wal_uri(self) -> str | None:
        """The second store that holds the log, or None when it is beside the data."""
        return self.core.record.wal_uri

    @property
    def writer_defaults(self) -> WriterConfig:
        """What every writer starts from."""
        return self.core.record.writer_defaults

    def shards(self) -> list[Shard]:
        """Every shard, those of the routing first.

        One listing, and two requests for each shard the record does not list (identity sharding,
        shards of other programs).
        """
        routed = {route.shard: route for route in self.core.record.routing}
        ids = self.core.shard_ids()
        strange = [shard for shard in ids if shard not in routed]

        def latest(shard: UUID) -> ShardManifest | None:
            return self.core.tails.manifests(self.core.beside(shard)).latest()

        found = dict(
            zip(strange, self.core.env.threads.map(latest, strange, workers=16), strict=True)
        )
        shards = []
        for shard in ids:
            if shard in routed:
                shards.append(Shard(self.core, shard, routed[shard].value))
            elif found[shard] is not None:
                value = self.core.value_of(shard, found[shard])
                own = self.core.is_routed(shard, found[shard]) and isinstance(
                    self.sharding, Identity
                )
                shards.append(Shard(self.core, shard, value, is_routed=own))
        return shards

    def shard(self, id_or_value: UUID | Value) -> Shard:
        """The shard with that id, bucket or value of the identity column, made if need be.

        Raises `InvalidInput` naming what there is when there is no such shard.
        """
        if isinstance(id_or_value, UUID):
            for shard in self.shards():
                if shard.id == id_or_value:
                    return shard
            raise InvalidInput(f"{self.uri} has no shard {id_or_value}")
        for route in self.core.record.routing:
            same_kind = type(route.value) is type(id_or_value)
            if same_kind and route.value == id_or_value:
                return Shard(self.core, route.shard, route.value)
        if isinstance(self.sharding, Unsharded) and id_or_value == 0:
            return self.shard(None)
        if isinstance(self.sharding, Identity) and isinstance(id_or_value, int | str):
            column = self.schema.field(self.sharding.column)
            try:
                value: Value = pa.scalar(id_or_value, column.type).as_py()
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
                raise InvalidInput(f"column {column.name!r} is {column.type}: {error}") from error
            return Shard(self.core, self.core.ensure_shard(value), value)
        raise InvalidInput(
            f"{self.uri} is sharded by {self.sharding} and has no shard {id_or_value!r}"
        )

    def stats(self) -> TableStats:
        """Per shard: epoch, WAL tip, lag, generations, sizes, pins.

        About ten requests a shard, and up to 32 more for the sizes of unflushed entries.
        """
        return collect_stats(self.core)

    # -- writing ---------------------------------------------------------------------------------

    def writer(self, config: WriterConfig | None = None) -> TableWriter:
        """A writer that routes rows to shards and opens (claims) each shard at its first row."""
        return TableWriter(self.core, config)

    # -- reading ---------------------------------------------------------------------------------

    def scan(
        self,
        columns: Sequence[str] | None = None,
        filter: Any = None,
        limit: int | None = None,
        freshness: Freshness = "durable",
        checkpoint: Pinned | str | None = None,
        *,
        batch_size: int | None = None,
    ) -> Scan:
        """A read of the newest row of each key; nothing is read until the scan is asked for rows.

        `filter` is SQL text as in Lance, or a pyarrow expression; it sees newest rows only (L-3).
        `freshness`: "base", "flushed" (+ SSTables) or "durable" (+ every acknowledged row).
        `checkpoint`: the table as a checkpoint pinned it. See `take_snapshot` for the requests.
        """
        return Scan(
            self.core,
            columns=columns,
            filter=filter,
            limit=limit,
            freshness=freshness,
            pinned=self._pinned(checkpoint),
            batch_size=batch_size,
        )

    def get(
        self,
        keys: Any,
        columns: Sequence[str] | None = None,
        freshness: Freshness = "durable",
        checkpoint: Pinned | str | None = None,
    ) -> pa.Table:
        """The newest rows of `keys`, in the order of `keys`, each once; a missing one is left out.

        `keys`: values, tuples in key order, dicts, or Arrow. Only shards, SSTables and index pages
        that can hold one of them are read.
        """
        return get_rows(
            self.core,
            keys,
            columns=columns,
            freshness=freshness,
            pinned=self._pinned(checkpoint),
        )

    def changes(
        self,
        since: Bookmark | str | None = None,
        follow: bool = False,  # noqa: FBT001, FBT002  the contract's spelling
        *,
        poll: float = 0.1,
        stop: Callable[[], bool] = lambda: False,
    ) -> Changes:
        """The log of all shards as an iterator of `Change`, from `since` (a `Bookmark`) on.

        None starts at the oldest entry that still exists. With `follow` it waits for more until
        `stop()` is true. Raises `SnapshotExpired` when entries after the bookmark were collected.
        """
        return Changes(self.core, since, follow=follow, poll=poll, stop=stop)

    def snapshot(self, freshness: Freshness = "durable") -> Snapshot:
        """A consistent cut, as planners of other engines need it."""
        return take_snapshot(self.core, freshness)

    def search(
        self,
        column: str,
        query: Any,
        k: int = 10,
        filter: Any = None,
        columns: Sequence[str] | None = None,
        freshness: Freshness = "durable",
        checkpoint: Pinned | str | None = None,
        **options: Any,
    ) -> pa.Table:
        """The `k` rows nearest to a vector, or best for words of text, nearest first.

        With `_distance` or `_score` as last column. `options`: `metric`, `nprobes`,
        `refine_factor`, `exact`; see `weir.read.search.search`.
        """
        return search(
            self.core,
            column,
            query,
            k=k,
            filter=filter,
            columns=columns,
            freshness=freshness,
            pinned=self._pinned(checkpoint),
            **options,
        )

    # -- upkeep ----------------------------------------------------------------------------------

    def checkpoint(
        self, scope: str = "all", name: str | None = None, ttl: Duration | None = None
    ) -> Any:
        """Pin the table as it is: scope "all" flushes first, "durable" takes it as it stands."""
        return _upkeep("checkpoint").create(self, scope=scope, name=name, ttl=ttl)

    def checkpoints(self) -> Any:
        """The checkpoints that stand."""
        return _upkeep("checkpoint").checkpoints(self)

    def delete_checkpoint(self, checkpoint: Any) -> None:
        """Let go of a checkpoint; one that is gone already is fine."""
        _upkeep("checkpoint").delete(self, checkpoint)

    def refresh_checkpoint(self, checkpoint: Any, ttl: Duration | None = None) -> Any:
        """Let a checkpoint live `ttl` from now on, never shorter than before."""
        return _upkeep("checkpoint").refresh(self, checkpoint, ttl=ttl)

    def clone(
        self, destination: str, checkpoint: Any = None, wal_uri: str | None = None, **options: Any
    ) -> Table:
        """A table of its own at `destination`, from a checkpoint."""
        copy: Table = _upkeep("clone").clone(
            self, destination, checkpoint=checkpoint, wal_uri=wal_uri, **options
        )
        return copy

    def release_clone(self, uri: str) -> list[UUID]:
        """Let go of what a clone that was deleted still holds here; see `gc`'s report (C-15)."""
        released: list[UUID] = _upkeep("clone").release_clone(self, uri)
        return released

    def compact(self, **options: Any) -> Any:
        """Fold SSTables and WAL-only logs into the base table."""
        return _upkeep("compact.run").compact(self, **options)

    def gc(
        self,
        min_age: Duration = "15m",
        fence_retention: Duration = "7d",
        dry_run: bool = False,  # noqa: FBT001, FBT002  the contract's spelling
        **options: Any,
    ) -> Any:
        """Delete what nothing refers to any more; returns a `GcReport`."""
        return _upkeep("gc.collect").gc(
            self, min_age=min_age, fence_retention=fence_retention, dry_run=dry_run, **options
        )

    def restore(self, checkpoint: Any, **options: Any) -> Any:
        """Roll the table back to a checkpoint."""
        return _upkeep("restore").restore(self, checkpoint, **options)

    def reshard(self, sharding: Sharding, **options: Any) -> Any:
        """Change how rows find their shard."""
        return _upkeep("reshard").reshard(self, sharding, **options)

    def _pinned(self, checkpoint: Pinned | str | None) -> Pinned | None:
        if checkpoint is None or not isinstance(checkpoint, str | UUID):
            if isinstance(checkpoint, Checkpoint):
                require_whole(checkpoint)
            return checkpoint
        found: Pinned = _upkeep("checkpoint").find(self, checkpoint)
        return found


def _upkeep(module: str) -> Any:
    """A module of the layer above, loaded when its verb is called: the one look upwards."""
    return importlib.import_module(f"weir.upkeep.{module}")
