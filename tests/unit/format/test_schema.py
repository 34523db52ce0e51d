"""Table schemas, and the alignment of rows written under an older schema."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.errors import InvalidInput, SchemaMismatch
from weir.format.schema import FIELD_ID, TOMBSTONE, align_batch, field_id, table_schema


def with_id(number, name, dtype, *, nullable=True, **metadata):
    extra = {k.encode(): v.encode() for k, v in metadata.items()}
    return pa.field(name, dtype, nullable, {FIELD_ID: str(number).encode(), **extra})


KEY = with_id(11, "key", pa.string(), nullable=False)
NESTED = pa.schema(
    [
        with_id(0, "id", pa.int64(), nullable=False, own="kept"),
        with_id(
            1,
            "point",
            pa.struct([with_id(2, "x", pa.int32(), nullable=False), with_id(3, "y", pa.string())]),
            nullable=False,
        ),
        with_id(4, "tags", pa.list_(with_id(5, "item", pa.string()))),
        with_id(6, "vector", pa.list_(pa.float32(), 2)),
        with_id(7, "big", pa.large_list(with_id(8, "item", pa.int8()))),
        with_id(
            9,
            "map",
            pa.map_(
                with_id(11, "key", pa.string(), nullable=False), with_id(12, "value", pa.int8())
            ),
        ),
    ],
    metadata={b"table": b"facts"},
)
TABLE = table_schema(NESTED, ["id"], 12)


def test_wal_shape_makes_non_key_columns_nullable_and_adds_the_tombstone():
    wal = TABLE.wal
    assert wal.names == [*NESTED.names, TOMBSTONE]
    assert wal.metadata == {b"table": b"facts"}
    assert not wal.field("id").nullable
    assert wal.field("point").nullable
    assert not wal.field("point").type.field("x").nullable, "children keep what they declare"
    assert wal.field(TOMBSTONE).equals(
        pa.field(TOMBSTONE, pa.bool_(), nullable=False), check_metadata=True
    )
    for name in NESTED.names:
        assert wal.field(name).metadata == NESTED.field(name).metadata
        assert wal.field(name).type.equals(NESTED.field(name).type, check_metadata=True)


def test_plain_shape_has_no_field_ids_at_any_depth():
    assert "field_id" not in TABLE.plain.to_string(show_field_metadata=True)
    assert TABLE.plain.field("id").metadata == {b"own": b"kept"}
    assert TABLE.plain.metadata == {b"table": b"facts"}
    assert TABLE.plain.equals(NESTED), "equal but for metadata"


def test_key_schema_is_in_key_order():
    columns = pa.schema([with_id(0, "a", pa.int64()), with_id(1, "b", pa.string())])
    assert table_schema(columns, ["b", "a"], 1).key_schema.names == ["b", "a"]
    assert table_schema(columns, [], 1).key_schema.names == []
    assert table_schema(columns, ["b"], 1).field_ids == {"a": 0, "b": 1}


@pytest.mark.parametrize(
    ("fields", "key", "highest", "reason"),
    [
        ([with_id(0, "a", pa.int8()), with_id(1, "a", pa.int8())], [], 1, "occurs twice"),
        ([with_id(0, "_tombstone", pa.bool_())], [], 0, "reserved"),
        ([with_id(0, "a", pa.int8())], ["b"], 0, "not a column"),
        ([with_id(0, "a", pa.int8())], ["a", "a"], 0, "twice"),
        ([pa.field("a", pa.int8())], [], 0, "carries no"),
        ([with_id(0, "a", pa.int8()), with_id(0, "b", pa.int8())], [], 1, "field id 0"),
        ([with_id(3, "a", pa.int8())], [], 2, "highest id 2"),
        ([with_id(0, "a", pa.struct([with_id(0, "x", pa.int8())]))], [], 2, "field id 0"),
    ],
)
def test_schemas_that_cannot_be_held_are_refused(fields, key, highest, reason):
    with pytest.raises(InvalidInput, match=reason):
        table_schema(pa.schema(fields), key, highest)


@pytest.mark.parametrize("raw", [b"", b"-1", b"x", b"1.5"])
def test_a_field_id_that_is_no_number_is_none(raw):
    assert field_id(pa.field("a", pa.int8(), metadata={FIELD_ID: raw})) is None


ROWS = pa.RecordBatch.from_pydict(
    {
        "id": [1, 2, 3],
        "point": [{"x": 1, "y": "a"}, {"x": 2, "y": None}, {"x": 3, "y": "c"}],
        "tags": [["t"], None, []],
        "vector": [[1, 2], None, [5, 6]],
        "big": [[1], [], None],
        "map": [[], None, [("k", 1)]],
    },
    schema=NESTED,
)


def test_equal_schemas_return_the_batch_itself():
    assert align_batch(ROWS, NESTED) is ROWS


def test_rows_without_ids_are_paired_by_name_whatever_the_order():
    rows = pa.record_batch(
        {name: ROWS.column(name) for name in reversed(NESTED.names)},
    )
    plain = rows.cast(pa.schema([TABLE.plain.field(n) for n in reversed(NESTED.names)]))
    got = align_batch(plain, NESTED)
    assert got.schema.equals(NESTED, check_metadata=True)
    assert got.to_pylist() == ROWS.to_pylist()
    got.validate(full=True)


def _schema(*fields):
    return pa.schema(list(fields))


OLD = pa.record_batch(
    [pa.array([1, 2]), pa.array(["a", "b"]), pa.array([1.0, 2.0])],
    schema=_schema(
        with_id(0, "id", pa.int64()), with_id(1, "name", pa.string()), with_id(2, "x", pa.float64())
    ),
)


@pytest.mark.parametrize(
    ("target", "want"),
    [
        (
            _schema(with_id(0, "id", pa.int64()), with_id(1, "title", pa.string())),
            {"id": [1, 2], "title": ["a", "b"]},
        ),
        (
            _schema(with_id(0, "id", pa.int64()), with_id(3, "new", pa.int8())),
            {"id": [1, 2], "new": [None, None]},
        ),
        # Dropped and added again under the old name: a new id, so another column.
        (
            _schema(with_id(0, "id", pa.int64()), with_id(3, "x", pa.float64())),
            {"id": [1, 2], "x": [None, None]},
        ),
        # Two columns that swapped names.
        (
            _schema(with_id(0, "x", pa.int64()), with_id(2, "id", pa.float64())),
            {"x": [1, 2], "id": [1.0, 2.0]},
        ),
        (_schema(pa.field("name", pa.string())), {"name": ["a", "b"]}),
    ],
)
@pytest.mark.parametrize("as_table", [False, True])
def test_added_renamed_dropped_and_swapped_columns(target, want, as_table):
    source = pa.Table.from_batches([OLD, OLD.slice(1)]) if as_table else OLD
    got = align_batch(source, target)
    assert type(got) is type(source)
    assert got.schema.equals(target, check_metadata=True)
    expected = {n: v + v[1:] for n, v in want.items()} if as_table else want
    assert got.to_pydict() == expected


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (_schema(with_id(1, "name", pa.large_string())), "'name' holds string.*large_string"),
        (_schema(with_id(0, "id", pa.int32())), "'id' holds int64"),
        (_schema(with_id(9, "must", pa.int8(), nullable=False)), "'must' is missing"),
    ],
)
def test_what_cannot_be_aligned_is_schema_mismatch_naming_the_column(target, reason):
    with pytest.raises(SchemaMismatch, match=reason):
        align_batch(OLD, target)


def test_nulls_in_a_column_that_may_not_be_null_are_refused():
    rows = pa.record_batch({"id": pa.array([1, None])})
    with pytest.raises(SchemaMismatch, match="holds nulls"):
        align_batch(rows, _schema(with_id(0, "id", pa.int64(), nullable=False)))


@pytest.mark.parametrize("start", [0, 1, 2])
@pytest.mark.parametrize("large", [False, True])
def test_nested_fields_are_paired_by_id_too_also_in_slices(start, large):
    make = pa.large_list if large else pa.list_
    old_item = pa.struct([with_id(3, "a", pa.int32()), with_id(4, "b", pa.string())])
    new_item = pa.struct([with_id(5, "c", pa.int8()), with_id(3, "renamed", pa.int32())])
    old = _schema(with_id(0, "s", pa.struct([with_id(1, "l", make(with_id(2, "item", old_item)))])))
    new = _schema(with_id(0, "s", pa.struct([with_id(1, "l", make(with_id(2, "item", new_item)))])))
    values = [
        {"s": {"l": [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]}},
        {"s": None},
        {"s": {"l": None}},
        {"s": {"l": [None, {"a": 3, "b": None}]}},
    ]
    want = [
        {"s": {"l": [{"c": None, "renamed": 1}, {"c": None, "renamed": 2}]}},
        {"s": None},
        {"s": {"l": None}},
        {"s": {"l": [None, {"c": None, "renamed": 3}]}},
    ]
    got = align_batch(pa.RecordBatch.from_pylist(values, schema=old).slice(start), new)
    got.validate(full=True)
    assert got.to_pylist() == want[start:]
    assert got.schema.equals(new, check_metadata=True)


@given(st.permutations(range(5)), st.sets(st.integers(0, 4)), st.lists(st.integers(-9, 9)))
def test_any_order_and_subset_of_columns_comes_back_by_id(order, missing, values):
    names = [f"c{i}" for i in range(5)]
    target = _schema(*(with_id(i, f"new{i}", pa.int64()) for i in range(5)))
    kept = [i for i in order if i not in missing]
    source = pa.table(
        [pa.array([v * (i + 1) for v in values], pa.int64()) for i in kept],
        schema=_schema(*(with_id(i, names[i], pa.int64()) for i in kept)),
    )
    if not kept:
        return
    got = align_batch(source, target).to_pydict()
    for i in range(5):
        want = [None] * len(values) if i in missing else [v * (i + 1) for v in values]
        assert got[f"new{i}"] == want
