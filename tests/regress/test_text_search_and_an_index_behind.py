"""A filtered text search left out rows that the text index had and the index of the filter's column
did not have yet: Lance, asked for indexed rows alone, filters by that index alone."""

import lance
import pyarrow as pa
import pytest

import weir

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("v", pa.utf8()),
        pa.field("n", pa.int64()),
    ]
)
QUERIES = ["black", weir.Match("red black", operator="and"), weir.Phrase("red black")]


def put(table, *numbers):
    with table.writer() as writer:
        writer.put([{"id": number, "v": "red black", "n": 1} for number in numbers])


def made(uri, kind):
    """The index on `n` has row 1, the text index rows 1 and 2, and row 3 is in no index."""
    table = weir.create(uri, SCHEMA, primary_key="id")
    put(table, 1)
    table.compact()
    table.create_index("n", kind)
    put(table, 2)
    table.compact(indexes=False, rewrite=False)
    table.create_fts_index("v", with_position=True)
    put(table, 3)
    table.compact(indexes=False, rewrite=False)
    return table


def found(table, query):
    return sorted(table.search("v", query, filter="n = 1")["id"].to_pylist())


@pytest.mark.parametrize("kind", ["btree", "bitmap", "zonemap", "bloomfilter"])
def test_l1_a_filter_by_an_index_that_is_behind_hides_no_row(tmp_path, kind):
    table = made(str(tmp_path / "t.lance"), kind)
    assert [found(table, query) for query in QUERIES] == [[1, 2, 3]] * len(QUERIES)
    put(table, 4)
    assert [found(table, query) for query in QUERIES] == [[1, 2, 3, 4]] * len(QUERIES)


def test_an_index_of_a_field_in_a_struct_that_is_behind_hides_no_row(tmp_path):
    schema = SCHEMA.append(pa.field("s", pa.struct([pa.field("x", pa.int64())])))
    table = weir.create(str(tmp_path / "t.lance"), schema, primary_key="id")
    for number in (1, 2):
        with table.writer() as writer:
            writer.put([{"id": number, "v": "black", "n": 1, "s": {"x": 1}}])
        table.compact(indexes=False, rewrite=False)
        if number == 1:
            lance.dataset(table.uri).create_scalar_index("s.x", "BTREE")
    table.create_fts_index("v")
    assert sorted(table.search("v", "black", filter="s.x = 1")["id"].to_pylist()) == [1, 2]
