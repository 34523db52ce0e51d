"""The few rows that each of many shards holds, as one level.

A merge takes a step for each level. A thousand shards with twenty rows each are a thousand tails
and SSTables, each of which costs more to open than to read: they are kept together in memory.

Keeps
  L-2  what is kept of a shard are its newest levels, later rows later. No key is in two shards of
       one routing, so the order among shards says nothing
  L-5  a read sees the rows of its own cut: a level that grew since, or moved on, is not used for it
What is kept is bounded; a shard with more than a few rows has levels of its own.
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
"""What a shard may add at most: its tail, and each of its SSTables."""
PART_ROWS: Final = 2_000
PART_ENTRIES: Final = 512
COMMON_BYTES: Final = 32 << 20
"""What all shards may add at most."""
_ATTEMPTS: Final = 3
_LOOSE_BATCHES: Final = 1_024
"""Batches that are appended before all are joined into one."""


class Want(NamedTuple):
    """What a cut has of one shard in the common level."""

    after: int
    generation: int
    sstables: tuple[str, ...]
    """Oldest first."""
    through: int

    def follows(self, other: Want) -> bool:
        """True when nothing but entries came since."""
        return self[:3] == other[:3] and self.through >= other.through


Batches = tuple[pa.RecordBatch, ...]
"""Rows of one shard in the order they were put, WAL shape."""
Parts = Mapping[UUID, tuple[Want, Batches | None]]
"""What is held of each shard; None: it was found too large to be."""


@dataclass(frozen=True)
class _State:
    schema: TableSchema
    parts: Parts
    level: MemLevel
    view: MemView
    """The level as these parts made it."""
    wanted: Mapping[UUID, Want] = field(default_factory=dict)
    """What was asked for when it was made: who asks for the same again need not compare."""

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
        wanted: Mapping[UUID, Want],
        load: Callable[[Sequence[UUID]], Sequence[Batches | None]],
    ) -> tuple[MemView, frozenset[UUID]]:
        """The rows of those shards, and which are not in it: too large, as `load` said by None.
        It is asked for what is not held. `wanted` does not change any more.

        Of those and of no other shard: what was held of another may be older than its levels, which
        come after this one (L-2).
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
            extra = None if state is None or others else _grown(held, parts, stale)
            with self._lock:
                if self._state is not found:
                    continue  # another read moved it on
                made = _next(state, schema, parts, extra, self._env)
                made = self._state = replace(made, wanted=wanted)
                return made.view, made.left_out
        made = _next(None, schema, parts, None, self._env)
        return made.view, made.left_out


def _is_held(held: Parts, shard: UUID, want: Want) -> bool:
    part = held.get(shard)
    return part is not None and part[0] == want


def _grown(held: Parts, parts: Parts, stale: Sequence[UUID]) -> list[pa.RecordBatch] | None:
    """What is to be appended; None when more than that changed."""
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
    # One batch: to join a thousand takes longer than to read them, and happens once.
    level = MemLevel([pa.concat_batches(every)] if every else (), schema, env)
    return _State(schema, parts, level, level.now())
