"""One level for the few rows that each of many shards holds.

A merge takes a step for each level. A thousand shards with twenty rows each have a thousand tails
and SSTables, each of which costs more to open than to read, so they are kept together in memory.

Keeps
  L-2  of each shard its newest levels are kept, newer rows after older ones. No key is in two
       shards of one routing, so the order of the shards does not matter
  L-5  a read sees the rows of its own cut: a level that has since grown or moved on is not used
The level is bounded in size; a shard with more than a few rows has levels of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, NamedTuple
from uuid import UUID

import pyarrow as pa

from weir.env import Env
from weir.format.schema import TableSchema
from weir.merge.levels import MemLevel, MemView
from weir.merge.tail_levels import is_same_schema

PART_BYTES: Final = 256 << 10
"""Limit for each part that a shard adds: its tail, and each of its SSTables."""
PART_ROWS: Final = 2_000
PART_ENTRIES: Final = 512
COMMON_BYTES: Final = 32 << 20
"""Limit for all shards together."""
_ATTEMPTS: Final = 3
_LOOSE_BATCHES: Final = 1_024
"""Batches that are appended before all of them are joined into one."""


class CommonPart(NamedTuple):
    """The part of a shard's cut that is in the common level."""

    after: int
    generation: int
    sstables: tuple[str, ...]
    """Oldest first."""
    through: int

    def follows(self, other: CommonPart) -> bool:
        """True when only log entries were added since `other`."""
        return self[:3] == other[:3] and self.through >= other.through


Batches = tuple[pa.RecordBatch, ...]
"""Rows of one shard in the order they were put, WAL shape."""
Parts = Mapping[UUID, tuple[CommonPart, Batches | None]]
"""What is held of each shard; None means that it was found to be too large."""


@dataclass(frozen=True)
class _State:
    schema: TableSchema
    parts: Parts
    level: MemLevel
    view: MemView
    """The level with exactly these parts."""
    wanted: Mapping[UUID, CommonPart] = field(default_factory=dict)
    """The request it was made for: a read that passes the same object need not compare."""

    @cached_property
    def left_out(self) -> frozenset[UUID]:
        """Shards that are too large."""
        return frozenset(shard for shard, (_, rows) in self.parts.items() if rows is None)


class CommonLevel:
    """The common level of one table handle. Safe to share between threads.

    The lock guards the state as a whole; rows are loaded outside of it.
    """

    def __init__(self, env: Env) -> None:
        self._env = env
        self._lock = env.threads.lock()
        self._state: _State | None = None

    def view(
        self,
        schema: TableSchema,
        wanted: Mapping[UUID, CommonPart],
        load: Callable[[Sequence[UUID]], Sequence[Batches | None]],
    ) -> tuple[MemView, frozenset[UUID]]:
        """The rows of the shards in `wanted`, and the shards left out because they are too large.

        `load` reads the shards that are not held; it returns None for one that is too large. The
        caller must not change `wanted` afterwards. The rows of any other shard are left out: what
        was held of it may be older than its own levels, which come after this one (L-2).
        """
        for _ in range(_ATTEMPTS):
            found = state = self._state
            if state is not None and not is_same_schema(state.schema, schema):
                state = None
            if state is not None and state.wanted is wanted:
                return state.view, state.left_out
            held = {} if state is None else state.parts
            stale = [shard for shard, want in wanted.items() if not _is_held(held, shard, want)]
            if state is not None and not stale and len(held) == len(wanted):
                with self._lock:
                    if self._state is state:
                        self._state = replace(state, wanted=wanted)
                return state.view, state.left_out
            others = any(shard not in wanted for shard in held)
            parts = {shard: part for shard, part in held.items() if shard in wanted}
            loaded = dict(zip(stale, load(stale), strict=True))
            parts.update((shard, (wanted[shard], loaded[shard])) for shard in stale)
            extra = None if state is None or others else _batches_to_append(held, parts, stale)
            with self._lock:
                if self._state is not found:
                    continue  # another read replaced the state
                made = _next(state, schema, parts, extra, self._env)
                made = self._state = replace(made, wanted=wanted)
                return made.view, made.left_out
        made = _next(None, schema, parts, None, self._env)
        return made.view, made.left_out


def _is_held(held: Parts, shard: UUID, want: CommonPart) -> bool:
    part = held.get(shard)
    return part is not None and part[0] == want


def _batches_to_append(
    held: Parts, parts: Parts, stale: Sequence[UUID]
) -> list[pa.RecordBatch] | None:
    """The batches to append; None when appending is not enough."""
    extra: list[pa.RecordBatch] = []
    for shard in stale:
        want, batches = parts[shard]
        before, known = held.get(shard, (want, ()))
        if batches is None or known is None or not want.follows(before):
            return None
        extra += batches[len(known) :]
    return extra


def _next(
    state: _State | None,
    schema: TableSchema,
    parts: Parts,
    extra: list[pa.RecordBatch] | None,
    env: Env,
) -> _State:
    if state is not None and extra is not None and state.level.count < _LOOSE_BATCHES:
        state.level.append(extra)
        return _State(schema, parts, state.level, state.level.now())
    every = [batch for _, batches in parts.values() for batch in batches or ()]
    # Joined once, here: joining a thousand batches takes longer than reading them.
    level = MemLevel([pa.concat_batches(every)] if every else (), schema, env)
    return _State(schema, parts, level, level.now())
