"""Indexes over rows in memory: Lance's words, exact distances, each row indexed once."""

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.config import WriterConfig
from weir.env import SYSTEM
from weir.lake.index import IndexInfo
from weir.search import memory as indexes
from weir.search.memory import FreshIndexes, GrowingIndex, WriterIndexes, memory_of
from weir.search.text import Analyzer, TextStats, join_blocks
from weir.search.vector import exact_distances, rough_distances, slack, vector_block

TEXTS = st.lists(
    st.one_of(
        st.none(),
        st.text(max_size=40),
        st.lists(
            st.sampled_from(
                [
                    "The",
                    "running",
                    "Foxes",
                    "x-ray",
                    "don't",
                    "café",
                    "naïve_Name",
                    "a1b2",
                    "日本語",
                ]
            ),
            max_size=8,
        ).map(" ".join),
    ),
    max_size=12,
)
SETTINGS = [
    {},
    {"stem": False, "remove_stop_words": False},
    {"lower_case": False, "ascii_folding": False, "stem": False},
    {"base_tokenizer": "whitespace", "stem": False},
    {"base_tokenizer": "ngram", "min_ngram_length": 3, "max_ngram_length": 4},
    {"base_tokenizer": "raw"},
    {"language": "German"},
    {"max_token_length": 4},
    {"custom_stop_words": ["foxes"], "stem": False},
]


@pytest.mark.parametrize("options", SETTINGS, ids=str)
@settings(max_examples=25, deadline=None)
@given(texts=TEXTS)
def test_words_are_cut_as_lance_cuts_them(options, texts):
    analyzer = Analyzer(options, SYSTEM)
    block = analyzer.block(pa.array(texts, pa.utf8()))
    names = {number: token for token, number in analyzer._ids.items()}
    for row, text in enumerate(texts):
        words = [] if text is None else lance.tokenize(text, **options)
        expected = sorted(token.text for token in words)
        here = block.docs == row
        found = [
            names[token]
            for token, count in zip(block.tokens[here], block.counts[here], strict=True)
            for _ in range(count)
        ]
        assert sorted(found) == expected
        assert block.lengths[row] == len(expected)
    assert block.num_docs == sum(text is not None for text in texts)


def test_joined_blocks_are_the_block_of_all_rows():
    analyzer = Analyzer({}, SYSTEM)
    texts = ["fox owl", None, "owl owl", "", "hen fox fox"]
    parts = [analyzer.block(pa.array(texts[a:b], pa.utf8())) for a, b in ((0, 2), (2, 3), (3, 5))]
    joined, whole = join_blocks(parts), analyzer.block(pa.array(texts))
    for name in ("tokens", "docs", "counts", "lengths"):
        assert getattr(joined, name).tolist() == getattr(whole, name).tolist()
    assert (joined.rows, joined.num_docs) == (whole.rows, whole.num_docs)


def test_a_term_of_the_query_comes_with_a_text_that_has_it_alone():
    analyzer = Analyzer({}, SYSTEM)
    terms = analyzer.terms("the Running foxes, foxes x-ray")
    assert list(terms) == ["run", "fox", "x", "ray"]
    for term, alone in terms.items():
        assert analyzer.tokens(alone) == [term]


def test_scores_are_those_of_lance(tmp_path):
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(["fox", "owl", "hen"], rng.integers(1, 30))) for _ in range(200)]
    dataset = lance.write_dataset(pa.table({"text": texts}), str(tmp_path / "t"))
    dataset.create_scalar_index("text", "INVERTED", with_position=False)
    analyzer = Analyzer({}, SYSTEM)
    block = analyzer.block(pa.array(texts))
    terms = {term: analyzer.token_id(term) for term in ("fox", "owl")}
    rows, counts = block.matches(list(terms.values()))
    scores = block.stats(terms).parts(list(terms), counts, block.lengths[rows]).sum(axis=1)
    scanner = dataset.scanner(columns=["_score"], full_text_query="fox owl", with_row_id=True)
    found = scanner.to_table()
    lances = dict(zip(found["_rowid"].to_pylist(), found["_score"].to_pylist(), strict=True))
    assert dict(zip(rows.tolist(), scores, strict=True)) == pytest.approx(lances, rel=1e-5)


def test_statistics_add_up():
    one = TextStats(2, 10, {"fox": 1})
    both = one.plus(TextStats(3, 5, {"fox": 2, "owl": 1}))
    assert (both.num_docs, both.total_tokens, dict(both.df)) == (5, 15, {"fox": 3, "owl": 1})
    assert TextStats().idf("fox") == 0


@pytest.mark.parametrize("metric", ["l2", "cosine", "dot"])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("width", [4, 256, 4096])
def test_rough_distances_are_as_near_as_they_say(metric, scale, width):
    rng = np.random.default_rng(1)
    values = (rng.normal(size=(200, width)) * scale + 10 * scale).astype("f4")
    block = vector_block(pa.FixedSizeListArray.from_arrays(values.ravel(), width))
    query = values[7] + np.float32(scale * 1e-3)
    rough = rough_distances(block, query, metric)
    exact = exact_distances(values, query, metric)
    assert np.abs(rough - exact).max() <= slack(block, query, metric)


def test_rows_without_a_vector_have_no_distance():
    array = pa.array([[1.0, 0.0], None, [0.0, 1.0]], pa.list_(pa.float32(), 2))
    block = vector_block(array.slice(1))
    query = np.array([1, 0], "f4")
    for metric in ("l2", "cosine", "dot"):
        rough = rough_distances(block, query, metric)
        assert np.isnan(rough).tolist() == [True, False]


class Made:
    """Counts the rows that are indexed."""

    def __init__(self):
        self.rows = 0

    def __call__(self, arrays):
        values = [value for array in arrays for value in array.to_pylist()]
        self.rows += len(values)
        return Piece(values)


class Piece:
    def __init__(self, values):
        self.values = values
        self.rows = self.nbytes = len(values)


def test_each_row_is_taken_in_once_and_blocks_stay_few():
    made = Made()
    grown = GrowingIndex(made, lambda pieces: Piece([v for p in pieces for v in p.values]), SYSTEM)
    arrays = []
    for i in range(200):
        arrays.append(pa.array([i, -i]))
        blocks = grown.blocks(arrays)
        assert [v for block in blocks for v in block.values] == [
            v for a in arrays for v in a.to_pylist()
        ]
    assert made.rows == 400
    assert len(blocks) < 10
    # A reader that saw fewer rows gets the same blocks and knows how many rows are its own.
    assert grown.blocks(arrays[:3]) == blocks
    assert made.rows == 400


def test_large_batches_of_vectors_stay_where_they_are():
    rng = np.random.default_rng(0)
    sizes = [1, 300, 2, 3, 400, 300, 1]  # of 32 numbers: from 256 rows a batch is not copied
    matrices = [rng.normal(size=(n, 32)).astype("f4") for n in sizes]
    arrays = [pa.FixedSizeListArray.from_arrays(m.ravel(), 32) for m in matrices]
    whole = np.concatenate(matrices)
    fresh = FreshIndexes(SYSTEM)
    fresh.vectors(arrays[:4])
    blocks = fresh.vectors(arrays)
    found = [part for block in blocks for part in block.parts]
    assert np.array_equal(np.concatenate(found), whole)
    kept = [p for p in found if any(np.shares_memory(p, m) for m in matrices)]
    assert {len(p) for p in kept} >= {300, 400}
    query = whole[5]
    rough = np.concatenate([rough_distances(block, query, "l2") for block in blocks])
    assert np.allclose(rough, ((whole - query) ** 2).sum(axis=1), atol=1e-3)
    start = 0
    for block in blocks:
        numbers = np.array([0, block.rows // 2, block.rows - 1])
        assert np.array_equal(block.vectors(numbers), whole[start + numbers])
        start += block.rows


def test_a_tail_that_grew_is_indexed_from_where_it_ended(monkeypatch):
    fresh = FreshIndexes(SYSTEM)
    made = []
    monkeypatch.setattr(indexes, "vector_block", lambda a: made.append(len(a)) or vector_block(a))

    def vectors(n):
        return pa.FixedSizeListArray.from_arrays(np.ones(2 * n, "f4"), 2)

    entries = [vectors(5), vectors(3)]
    fresh.vectors(entries)
    # The same memory in new array objects, as in a new snapshot.
    again = [entries[0].slice(0), entries[1].slice(0), vectors(4)]
    fresh.vectors(again)
    assert made == [8, 4]
    # A different first entry, as after a flush: everything is indexed again.
    assert sum(block.rows for block in fresh.vectors(again[1:])) == 7
    assert made == [8, 4, 7]


def test_rows_that_only_begin_alike_are_indexed_anew():
    fresh = FreshIndexes(SYSTEM)
    one, two, three = (
        pa.FixedSizeListArray.from_arrays(np.full(4, value, "f4"), 2) for value in (1, 2, 3)
    )
    fresh.vectors([one, two])
    blocks = fresh.vectors([one, three])
    assert np.concatenate([b.parts[0] for b in blocks]).tolist() == [[1, 1]] * 2 + [[3, 3]] * 2


def test_memory_tells_arrays_apart():
    array = pa.array(["a", "b", "c"])
    assert memory_of(array) == memory_of(array.slice(0))
    assert memory_of(array) != memory_of(array.slice(1))
    assert memory_of(pa.nulls(2)) is None


class Level:
    """The part of a level that an index needs."""

    def __init__(self):
        self.batches = []

    def put(self, texts):
        self.batches.append(pa.record_batch({"text": pa.array(texts)}))
        return len(texts)


def writer_indexes(**config):
    info = IndexInfo("words", "text", "text")
    return WriterIndexes(SYSTEM, WriterConfig(**config), [info], "test")


def taken(kept):
    return [grown.taken for grown, _ in kept.fresh._column_indexes._entries.values()]


def test_synchronous_puts_share_the_work():
    kept, level = writer_indexes(), Level()
    kept.rows_added(level, level.put(["fox"] * 1000))
    assert taken(kept) == []
    kept.rows_added(level, level.put(["owl"] * 100))
    assert taken(kept) == [2]
    assert kept._thread is None
    kept.published(level)
    assert taken(kept) == []


def test_asynchronous_rows_are_taken_in_behind_the_put():
    kept, level = writer_indexes(sync_indexed_write=False, async_index_buffer_rows=10), Level()
    kept.rows_added(level, level.put(["fox"] * 3))
    kept.rows_added(level, level.put(["owl"] * 9))
    for _ in range(10_000):
        if taken(kept):
            break
        SYSTEM.clock.sleep(0.001)
    assert taken(kept) == [2]
    kept.stop()
    assert not kept._thread.is_alive()


def test_asynchronous_rows_wait_no_longer_than_told():
    kept = writer_indexes(sync_indexed_write=False, async_index_interval=0.001)
    level = Level()
    kept.rows_added(level, level.put(["fox"]))
    for _ in range(10_000):
        if taken(kept):
            break
        SYSTEM.clock.sleep(0.001)
    assert taken(kept) == [1]
    kept.stop()
