"""The shards that a writer was opened for: `Table.writer(shards=...)`.

Who owns which shards is decided outside weir, by an ordinal or a scheduler. A writer that knows its
share refuses the rows of others before it claims anything, so that two replicas never take a shard
from each other because a request went astray.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import numpy as np
import pyarrow as pa

from weir.errors import InvalidInput, NotOwner, SealedShard, WeirError
from weir.format.sharding import Identity, PerWriter, Router, Value
from weir.records.table import TableRecord
from weir.routing.core import Core
from weir.routing.shards import Shard, named_shard

_SHOWN: Final = 8
"""Shards of a writer that an error lists."""

ShardName = Shard | UUID | Value
"""How a caller names a shard: the handle, its id, its bucket or its value."""


@dataclass(frozen=True)
class OwnShards:
    """The shards that one writer takes, under the routing in which they were named."""

    core: Core
    values: Mapping[UUID, Value]
    record: TableRecord

    def require_all(
        self, shards: Iterable[UUID], batches: Sequence[pa.RecordBatch], record: TableRecord
    ) -> None:
        """`NotOwner`, which names the first row of another shard, if not all `shards` of a call
        with those rows are own ones. The usual case looks at no row."""
        if self.values.keys() >= set(shards):
            return
        router = Router(record.sharding)
        for batch in batches:
            others = [
                (int(rows[0]), self.core.shard_of(value, record), value)
                for value, rows in router.values(batch)
                if len(rows) and self.core.shard_of(value, record) not in self.values
            ]
            if others:
                row, shard, value = min(others, key=lambda other: other[0])
                names = record.primary_key or batch.schema.names[:1]
                key = batch.slice(row, 1).select(list(names)).to_pylist()[0]
                raise NotOwner(
                    f"{self.core.uri}: the row with {key} belongs to shard {value!r} ({shard}), and"
                    f" this writer takes only {self._shown()}. Nothing was written; send the call"
                    " to the owner of that shard",
                    shard=shard,
                    value=value,
                )

    def require_routing(self, record: TableRecord, batches: Sequence[pa.RecordBatch] = ()) -> None:
        """`SealedShard`, with the rows, when the record has another routing."""
        if record.routing_version != self.record.routing_version:
            raise SealedShard(self._gone(), not_written=batches)

    def resharded(self, error: WeirError) -> SealedShard:
        """The error of a call that met a reshard: its rows go to no heir by themselves."""
        told = SealedShard(
            self._gone(), not_written=error.not_written, perhaps_written=error.perhaps_written
        )
        told.__cause__ = error
        return told

    def existing(self) -> dict[UUID, Value]:
        """Those that exist; with identity sharding a shard is made by its first row. Two requests
        for each of these, and none otherwise."""
        if not isinstance(self.record.sharding, Identity):
            return dict(self.values)
        core = self.core

        def is_there(shard: UUID) -> bool:
            manifest = core.log(shard).manifests.latest()
            return manifest is not None and not manifest.dropped

        ids = list(self.values)
        found = core.env.threads.map(is_there, ids, workers=core.workers)
        return {s: self.values[s] for s, there in zip(ids, found, strict=True) if there}

    def _gone(self) -> str:
        return (
            f"{self.core.uri} was or is being resharded: {self._shown()}, which this writer was"
            " opened for, take no more rows. Close it, and open a new one with shards of the new"
            " routing: table.refresh(), then table.writer(shards=...)"
        )

    def _shown(self) -> str:
        values = [repr(value) for value in self.values.values()]
        more = f" and {len(values) - _SHOWN} more" if len(values) > _SHOWN else ""
        return f"shards [{', '.join(values[:_SHOWN])}]{more}"


def own_shards(core: Core, names: Iterable[ShardName]) -> OwnShards:
    """The named shards, under the table's current routing; `InvalidInput` for what is none of it.

    Makes and claims nothing. One list and one get; with identity sharding ids cost what
    `Table.shards` costs.
    """
    if isinstance(names, str | bytes | Mapping) or not isinstance(names, Iterable):
        raise InvalidInput(
            "shards must be a list of values, ids or Shards, such as table.writer(shards=[0, 1]),"
            f" not {names!r}"
        )
    record = core.refresh()
    if isinstance(record.sharding, PerWriter):
        raise InvalidInput(
            f"{core.uri} has a shard for each writer (PerWriter), which finds its own: leave out"
            " shards"
        )
    found: dict[UUID, Value] = {}
    for name in names:
        shard = _named(core, name)
        found[shard.id] = shard.value
    return OwnShards(core, found, record)


def _named(core: Core, name: ShardName) -> Shard:
    if isinstance(name, np.integer | np.str_ | np.bool_):
        name = name.item()  # a value of an array
    if isinstance(name, Shard):
        if name.uri != core.uri:
            raise InvalidInput(f"shards: {name!r} is a shard of another table than {core.uri}")
        name = name.id if not isinstance(core.record.sharding, Identity) else _identity(core, name)
    if not isinstance(name, UUID | int | str | None):
        raise InvalidInput(
            f"shards: {name!r} is a {type(name).__name__}; name a shard by its value, its id or"
            " its Shard"
        )
    shard = named_shard(core, name)
    if not shard.is_routed:
        raise InvalidInput(
            f"shards: {core.uri} sends no rows to shard {shard.id}: it was resharded away, or"
            " another program made it; table.shards() lists all shards"
        )
    return shard


def _identity(core: Core, shard: Shard) -> UUID | Value:
    """The value of a handle if the routing sends it there: such a shard need not exist yet."""
    return shard.value if core.route(shard.value) == shard.id else shard.id
