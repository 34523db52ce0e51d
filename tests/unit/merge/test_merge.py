"""The merge over levels in memory and a real Lance base."""

from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.errors import InvalidInput
from weir.format.schema import FIELD_ID, TOMBSTONE, TableSchema, table_schema
from weir.keys.keyset import KeySet, newest_rows
from weir.merge.levels import MemLevel
from weir.merge.merge import merge_count, merge_lookup, merge_scan


def make_schema(*fields: pa.Field, key: tuple[str, ...] = ("id",)) -> TableSchema:
    with_ids = [f.with_metadata({FIELD_ID: str(i).encode()}) for i, f in enumerate(fields)]
    return table_schema(pa.schema(with_ids), key, len(fields) - 1)


SCHEMA = make_schema(
    pa.field("id", pa.int64(), nullable=False),
    pa.field("x", pa.float64()),
    pa.field("s", pa.utf8()),
)


def rows(*triples, dead=(), schema=SCHEMA):
    columns = list(zip(*triples, strict=True)) if triples else [[]] * len(schema.arrow)
    arrays = [pa.array(list(c), f.type) for c, f in zip(columns, schema.arrow, strict=True)]
    marks = pa.array([t[0] in dead for t in triples], pa.bool_())
    return pa.RecordBatch.from_arrays([*arrays, marks], schema=schema.wal)


class ListBase:
    """A base of one table, filtered by Lance like the real one."""

    version = 1
    compacted = MappingProxyType({})
    mem_wal = None

    def __init__(self, table: pa.Table, schema: TableSchema) -> None:
        self.table = table
        self.schema = schema

    def scan(self, columns=None, *, filter=None, fragments=None, limit=None, batch_size=None):
        from weir.lake.filters import filter_rows

        columns = columns or self.table.column_names
        if filter is None:
            yield from self.table.select(columns).slice(0, limit).to_batches(max_chunksize=3)
        else:
            yield from filter_rows(self.table, filter, columns)

    def count(self, filter=None):
        return sum(b.num_rows for b in self.scan(filter=filter))

    def lookup(self, keys, columns=None):
        return self.table.filter(pc.is_in(self.table["id"], value_set=keys["id"])).select(
            columns or self.table.column_names
        )


def base(*triples):
    batch = rows(*triples).select(["id", "x", "s"])
    return ListBase(pa.Table.from_batches([batch]).cast(SCHEMA.plain), SCHEMA)


def scanned(levels, base_, schema=SCHEMA, **options):
    out, batches = merge_scan(levels, base_, schema, **options)
    return sorted(pa.Table.from_batches(batches, out).to_pylist(), key=str)


LEVELS = [
    MemLevel([rows((1, -1.0, "new"), (4, 4.0, "only"))], SCHEMA),
    MemLevel([rows((1, 5.0, "mid"), (2, 0.0, None), dead={2})], SCHEMA),
]
BASE = base((1, 9.0, "old"), (2, 9.0, "old"), (3, 9.0, "old"))


def test_l2_newest_level_wins_and_tombstones_are_gone():
    assert [(r["id"], r["s"]) for r in scanned(LEVELS, BASE)] == [
        (1, "new"),
        (3, "old"),
        (4, "only"),
    ]
    assert merge_count(LEVELS, BASE, SCHEMA) == 3


@pytest.mark.parametrize("predicate", ["x > 1", pc.field("x") > 1])
def test_l3_filter_never_brings_an_old_version_back(predicate):
    # Key 1 was upserted out of the range and key 2 deleted: neither may come back.
    assert [r["id"] for r in scanned(LEVELS, BASE, filter=predicate)] == [3, 4]
    assert merge_count(LEVELS, BASE, SCHEMA, filter=predicate) == 2


def test_filter_may_use_columns_that_are_not_asked_for():
    assert scanned(LEVELS, BASE, columns=["s"], filter="x > 1") == [{"s": "old"}, {"s": "only"}]


def test_filter_cannot_see_the_tombstone_mark():
    with pytest.raises(InvalidInput, match="_tombstone"):
        scanned(LEVELS, BASE, filter=f"{TOMBSTONE} = true")


def test_limit_and_batch_size_hold():
    assert len(scanned(LEVELS, BASE, limit=2)) == 2
    assert scanned(LEVELS, BASE, limit=0) == []
    _, batches = merge_scan(LEVELS, BASE, SCHEMA, batch_size=1)
    assert {b.num_rows for b in batches} == {1}


def test_a_scan_of_fragments_gives_the_rows_that_one_of_the_levels_does_not():
    fresh = scanned(LEVELS, None)
    older = scanned(LEVELS, BASE, fragments=[0])
    assert [r["id"] for r in fresh] == [1, 4]
    assert [r["id"] for r in older] == [3]


def test_unknown_column_is_named():
    with pytest.raises(InvalidInput, match="'nope'"):
        scanned(LEVELS, BASE, columns=["nope"])


def test_lookup_gives_newest_rows_in_the_order_of_keys():
    keys = pa.table({"id": pa.array([4, 3, 2, 1, 99, 4], pa.int64())})
    found = merge_lookup(keys, LEVELS, BASE, SCHEMA, ["s"])
    assert found.to_pylist() == [{"s": "only"}, {"s": "old"}, {"s": "new"}]


def test_lookup_leaves_the_base_alone_when_every_key_is_fresh():
    keys = pa.table({"id": pa.array([1, 2], pa.int64())})
    unreadable: Any = object()
    assert merge_lookup(keys, LEVELS, unreadable, SCHEMA)["id"].to_pylist() == [1]


def test_append_only_levels_concatenate_and_drop_nothing():
    schema = make_schema(pa.field("x", pa.int64()), key=())
    batch = pa.RecordBatch.from_arrays(
        [pa.array([7, 7]), pa.array([False, False])], schema=schema.wal
    )
    levels = [MemLevel([batch], schema), MemLevel([batch], schema)]
    assert len(scanned(levels, None, schema)) == 4
    assert merge_count(levels, None, schema) == 4
    assert scanned(levels, None, schema, filter="x > 7") == []


def test_memlevel_lookup_sees_rows_appended_after_the_first_lookup():
    level = MemLevel([rows((1, 1.0, "a"))], SCHEMA)
    keys = pa.table({"id": pa.array([1, 2], pa.int64())})
    assert level.lookup(keys).num_rows == 1
    level.append([rows((2, 2.0, "b"), (1, 3.0, "c"))])
    assert sorted(level.lookup(keys)["s"].to_pylist()) == ["b", "c"]


@pytest.mark.parametrize("count", [200, 5000])
def test_memlevel_lookups_equal_a_scan_with_and_without_an_index(count):
    batches = [rows(*[(i % 70, float(i + n), str(i)) for i in range(count)]) for n in range(2)]
    level = MemLevel(batches, SCHEMA)
    keys = pa.table({"id": pa.array(range(100), pa.int64())})
    wanted = pa.Table.from_batches(level.scan()).sort_by("id").to_pylist()
    for _ in range(8):  # the first lookups compare keys, the later ones use the index
        assert level.lookup(keys).sort_by("id").to_pylist() == wanted


@given(st.lists(st.integers(0, 20), max_size=60))
def test_newest_rows_are_the_last_of_each_key(keys):
    wanted = sorted({key: i for i, key in enumerate(keys)}.values())
    assert newest_rows(pa.array(keys, pa.int64())).tolist() == wanted
    assert newest_rows(pa.chunked_array([pa.array(keys, pa.int64())])).tolist() == wanted


KEY_KINDS = {
    "int8": (pa.int8(), st.integers(-128, 127)),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1) | st.integers(0, 9)),
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 5)),
    "bool": (pa.bool_(), st.booleans()),
    "utf8": (pa.utf8(), st.text(max_size=3)),
    "large_binary": (pa.large_binary(), st.binary(max_size=2)),
}


@pytest.mark.parametrize("kind", KEY_KINDS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_keyset_equals_a_set(kind, data):
    dtype, values = KEY_KINDS[kind]
    keyset, model = KeySet(dtype), set()
    for added in data.draw(st.lists(st.lists(values, max_size=12), max_size=6)):
        asked = data.draw(st.lists(values, max_size=12))
        new = keyset.new(pa.array(asked, dtype))
        answer = [True] * len(asked) if new is None else new.tolist()
        assert answer == [key not in model for key in asked]
        keyset.add(pa.array(added, dtype))
        model |= set(added)


def test_keyset_grows_past_its_first_table():
    keys = np.arange(0, 400_000, 2)
    keyset = KeySet(pa.int64())
    for part in np.array_split(keys, 7):
        keyset.add(pa.array(part))
    asked = np.arange(400_010)
    assert np.array_equal(keyset.new(pa.array(asked)), ~np.isin(asked, keys))


def test_keyset_finds_keys_that_lost_their_slot():
    # Random keys share slots: one in twenty of these is evicted or was never stored.
    keys = np.random.default_rng(3).integers(-(2**63), 2**63 - 1, 40_000)
    keyset = KeySet(pa.int64())
    for part in np.array_split(keys, 5):
        keyset.add(pa.array(part))
    assert not keyset.new(pa.array(keys)).any()
    others = keys ^ 1
    new = keyset.new(pa.array(others))
    assert (np.ones(len(keys), bool) if new is None else new).tolist() == (
        ~np.isin(others, keys)
    ).tolist()
