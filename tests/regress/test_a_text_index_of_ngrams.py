"""Over an index of n-grams Lance takes rows with any n-gram for matches of `and` and of a phrase.
When the base was the only level its answer was taken as it was, and a put elsewhere changed it."""

import pyarrow as pa
import pytest

import weir

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.utf8())])
TEXTS = {1: "alpha beta", 2: "alpha gamma", 3: "delta"}
ANSWERS = [
    (weir.Match("alpha delta"), [1, 2, 3]),
    (weir.Match("alpha delta", operator="and"), []),
    (weir.Match("alpha beta", operator="and"), [1]),
    (weir.Phrase("alpha gamma"), [2]),
    (weir.Phrase("gamma alpha"), []),
    (
        weir.Boolean(
            must=[weir.Match("alpha")], must_not=[weir.Match("alpha beta", operator="and")]
        ),
        [2],
    ),
    (weir.Boolean(must=[weir.Match("alpha")], must_not=[weir.Phrase("alpha gamma")]), [1]),
]


def put(table: weir.Table, texts: dict[int, str]) -> None:
    with table.writer() as writer:
        writer.put([{"id": key, "v": text} for key, text in texts.items()])


def answers(table: weir.Table) -> list[list[int]]:
    return [sorted(table.search("v", query, k=9)["id"].to_pylist()) for query, _ in ANSWERS]


@pytest.mark.parametrize("with_position", [True, False])
def test_l1_a_search_by_ngrams_finds_the_same_rows_wherever_they_are(tmp_path, with_position):
    table = weir.create(tmp_path / "t", SCHEMA, primary_key="id")
    put(table, TEXTS)
    table.compact()
    table.create_fts_index("v", base_tokenizer="ngram", with_position=with_position)
    expected = [found for _, found in ANSWERS]
    assert answers(table) == expected
    put(table, {4: "other"})
    assert answers(table) == expected
    table.compact()
    assert answers(table) == expected
