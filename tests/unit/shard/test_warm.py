"""One index over the MemTables that stay in memory after their flush."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest

from weir.env import SYSTEM
from weir.format.schema import FIELD_ID, table_schema
from weir.format.wal_entry import Fill
from weir.merge.levels import MemLevel
from weir.shard.memtable import MemTable
from weir.shard.warm import WarmKeys
from weir.types import Generation

SCHEMA = table_schema(
    pa.schema([pa.field("id", pa.int64(), nullable=False, metadata={FIELD_ID: b"0"})]), ("id",), 0
)


def memtable(generation: int, *keys: int) -> MemTable:
    table = MemTable(Generation(generation), SCHEMA, SYSTEM)
    columns = [pa.array(keys, pa.int64()), pa.repeat(False, len(keys))]
    table.append([pa.RecordBatch.from_arrays(columns, schema=SCHEMA.wal)], Fill(len(keys), 1, 8))
    return table


def test_the_newest_that_has_a_key_is_named() -> None:
    warm = WarmKeys(SYSTEM)
    first, second, third = memtable(1, 1, 2), memtable(2, 2, 3, 3), memtable(3, 9)
    assert warm.holding((), [1]) == set()
    assert warm.holding((first,), [1, 2, 3]) == {1}
    both = (second, first)
    assert warm.holding(both, [1]) == {1}
    assert warm.holding(both, [2, 3]) == {2}
    assert warm.holding(both, [4]) == set()
    assert warm.holding((third, second), [1, 2]) == {2}  # the oldest was evicted with its keys
    assert warm.holding((third,), [2, 9]) == {3}


def test_who_asks_for_an_earlier_state_looks_closer() -> None:
    warm = WarmKeys(SYSTEM)
    first, second = memtable(1, 1), memtable(2, 1, 2)
    assert warm.holding((second, first), [1]) == {2}
    assert warm.holding((first,), [5]) == {1}
    assert warm.holding((), [5]) == set()
    assert warm.holding((second, first), [5]) == set()


def test_m1_no_key_is_missed_whatever_was_asked_before() -> None:
    rng = random.Random(7)
    warm = WarmKeys(SYSTEM)
    tables: tuple[MemTable, ...] = ()
    states: list[tuple[MemTable, ...]] = []
    for generation in range(1, 60):
        new = memtable(generation, *[rng.randrange(40) for _ in range(rng.randint(1, 6))])
        tables = (new, *tables)[: rng.randint(1, 5)]
        states.append(tables)
        asked = rng.choice(states[-3:])
        keys = [rng.randrange(40) for _ in range(3)]
        holding = warm.holding(asked, keys)
        for key in keys:
            having = [t.generation for t in asked if key in t.level.all_keys()]
            assert not having or having[0] in holding


@pytest.mark.parametrize("strike", [1, 2])
def test_f16_an_interrupt_while_the_index_follows_a_flush_hides_no_key(
    monkeypatch: pytest.MonkeyPatch, strike: int
) -> None:
    """A reader that had begun before the flush missed the keys that were taken out by then."""
    warm = WarmKeys(SYSTEM)
    first, second = memtable(1, 1, 2), memtable(2, 2, 3)
    earlier = (first,)
    assert warm.holding(earlier, [1]) == {1}
    all_keys, calls = MemLevel.all_keys, 0

    def interrupted(level: MemLevel) -> Iterable[Any]:
        nonlocal calls
        calls += 1
        if calls == strike:
            raise KeyboardInterrupt
        return all_keys(level)

    monkeypatch.setattr(MemLevel, "all_keys", interrupted)
    with pytest.raises(KeyboardInterrupt):
        warm.holding((second,), [3])
    assert warm.holding(earlier, [1]) == {1}
    assert warm.holding((second,), [1, 2, 3]) == {2}
