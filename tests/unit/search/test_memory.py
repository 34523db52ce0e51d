"""Indexes over rows in memory: Lance's words, exact distances, each row indexed once."""

import threading

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weir
from weir.config import WriterConfig
from weir.env import SYSTEM
from weir.format.schema import table_schema
from weir.lake.index import IndexInfo
from weir.merge.levels import MemLevel
from weir.search import text as text_module
from weir.search.memory import TextIndex, WriterIndexes
from weir.search.text import Analyzer, TextStats, join_blocks
from weir.search.vector import (
    exact_distances,
    rough_distances,
    slack,
    vector_block,
    vectors_of,
)

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
    names = {number: token for token, number in block.numbers.items()}
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
    numbers = {}
    cuts = ((0, 2), (2, 3), (3, 5))
    parts = [analyzer.block(pa.array(texts[a:b], pa.utf8()), numbers) for a, b in cuts]
    joined, whole = join_blocks(parts), analyzer.block(pa.array(texts))
    for name in ("tokens", "docs", "counts", "lengths"):
        assert getattr(joined, name).tolist() == getattr(whole, name).tolist()
    assert (joined.rows, joined.num_docs) == (whole.rows, whole.num_docs)


def test_words_are_forgotten_while_another_thread_looks_them_up(monkeypatch):
    monkeypatch.setattr(text_module, "VOCABULARY_MAX", 10)

    class Beside(Analyzer):
        """Another thread fills and clears the cache while this one tokenizes."""

        struck = False

        def _tokenize_plain(self, words):
            if not self.struck:
                self.struck = True
                many = pa.array([f"w{i}" for i in range(20)])
                thread = threading.Thread(target=lambda: [self.block(many), self.block(many[:1])])
                thread.start()
                thread.join()
            return super()._tokenize_plain(words)

    analyzer = Beside({}, SYSTEM)
    analyzer.struck = True
    analyzer.block(pa.array(["common"]))
    analyzer.struck = False
    block = analyzer.block(pa.array(["common new"]))
    assert block.stats(["common", "new"]).df == {"common": 1, "new": 1}
    for n in range(20):
        analyzer.block(pa.array([f"u{n}x{i}" for i in range(10)]))
    held = [len(kept) for kept in vars(analyzer).values() if isinstance(kept, dict)]
    assert max(held) <= 20 + 10, "words and tokens of rows that are gone are not kept"


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
    terms = ["fox", "owl"]
    rows, counts = block.matches(terms)
    scores = block.stats(terms).parts(terms, counts, block.lengths[rows]).sum(axis=1)
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


def test_m1_a_row_whose_rough_distance_overflows_is_measured_exactly():
    """Squares of float32 vary less than the vectors that have them."""
    for scale in (1e-25, 1e-12, 1e10, 1e25):
        rows = [[scale, 0.0], [scale, scale], [0.0, scale], [1.0, 3.0]]
        block = vector_block(pa.array(rows, pa.list_(pa.float32(), 2)))
        query = np.array([2 * scale, 0], "f4")
        for metric in ("l2", "cosine", "dot"):
            rough = rough_distances(block, query, metric)
            exact = exact_distances(block.vectors(np.arange(4)), query, metric)
            is_sure = ~np.isneginf(rough)
            near = np.abs(rough[is_sure] - exact[is_sure])
            assert (near <= slack(block, query, metric)).all(), (scale, metric)


@pytest.mark.parametrize("scale", [1e-25, 1e-12, 1.0, 1e10])
def test_cosine_ranks_by_direction_whatever_the_lengths(tmp_path, scale):
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), ("e", pa.list_(pa.float32(), 2))]
    )
    table = weir.create(str(tmp_path / "t"), schema, primary_key="id")
    with table.writer() as writer:
        near = [{"id": 1, "e": [scale, 0.0]}, {"id": 2, "e": [scale, scale / 2]}]
        writer.put([*near, *({"id": 3 + i, "e": [1.0, 1.0 + i]} for i in range(40))])
        found = table.search("e", [2 * scale, 0.0], k=2, metric="cosine")
    assert found["id"].to_pylist() == [1, 2]


def test_vectors_of_doubles_are_compared_as_doubles(tmp_path):
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), ("e", pa.list_(pa.float64(), 2))]
    )
    table = weir.create(str(tmp_path / "t"), schema, primary_key="id")
    with table.writer() as writer:
        writer.put([{"id": i, "e": [1e6 + i * 1e-3, 0.0]} for i in range(30)])
        query = [1e6 + 7e-3, 0.0]
        for metric in ("l2", None):
            found = table.search("e", query, k=1, metric=metric)
            assert found["id"].to_pylist() == [7]
    table.compact()
    assert table.search("e", query, k=1)["id"].to_pylist() == [7]


def test_rows_without_a_vector_have_no_distance():
    array = pa.array([[1.0, 0.0], None, [0.0, 1.0]], pa.list_(pa.float32(), 2))
    block = vector_block(array.slice(1))
    query = np.array([1, 0], "f4")
    for metric in ("l2", "cosine", "dot"):
        rough = rough_distances(block, query, metric)
        assert np.isnan(rough).tolist() == [True, False]


SCHEMA = table_schema(
    pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False, metadata={"lance:field_id": "0"}),
            pa.field("text", pa.string(), metadata={"lance:field_id": "1"}),
        ]
    ),
    ["id"],
    1,
)


def batch(texts):
    ids = pa.array(range(len(texts)), pa.int64())
    gone = pa.array([False] * len(texts))
    return pa.record_batch([ids, pa.array(texts, pa.string()), gone], schema=SCHEMA.wal)


class Counted(Analyzer):
    """Counts the rows that are indexed."""

    rows = 0

    def block(self, texts, numbers=None):
        self.rows += len(texts)
        return super().block(texts, numbers)


def test_each_row_is_taken_in_once_and_blocks_stay_few():
    analyzer = Counted({}, SYSTEM)
    level = MemLevel((), SCHEMA)
    for i in range(200):
        level.append([batch([f"fox{i}", "owl"])])
        arrays = [b.column("text") for b in level.batches]
        blocks = TextIndex.of(level.now(), "text", analyzer, SYSTEM).blocks(arrays)
        assert sum(block.rows for block in blocks) == 2 * i + 2
    assert analyzer.rows == 400
    assert len(blocks) < 10
    whole = Analyzer({}, SYSTEM).block(pa.concat_arrays(arrays))
    assert sum(len(block.docs) for block in blocks) == len(whole.docs)
    # A reader that saw fewer rows gets the same blocks and knows how many rows are its own.
    assert TextIndex.of(level, "text", analyzer, SYSTEM).blocks(arrays[:3]) == blocks
    assert analyzer.rows == 400


def test_an_index_goes_with_its_level():
    analyzer = Counted({}, SYSTEM)
    for _ in range(2):
        level = MemLevel([batch(["fox"])], SCHEMA)
        index = TextIndex.of(level, "text", analyzer, SYSTEM)
        assert TextIndex.of(level.now(), "text", analyzer, SYSTEM) is index
        index.blocks([b.column("text") for b in level.batches])
    assert analyzer.rows == 2
    level.forget_derived()
    assert TextIndex.of(level, "text", analyzer, SYSTEM) is not index


def test_large_batches_of_vectors_stay_where_they_are():
    rng = np.random.default_rng(0)
    sizes = [1, 300, 2, 3, 400, 300, 1]  # of 32 numbers: from 256 rows a batch is not copied
    matrices = [rng.normal(size=(n, 32)).astype("f4") for n in sizes]
    arrays = [pa.FixedSizeListArray.from_arrays(m.ravel(), 32) for m in matrices]
    whole = np.concatenate(matrices)
    block = vectors_of(arrays)
    assert np.array_equal(np.concatenate(block.parts), whole)
    kept = [p for p in block.parts if any(np.shares_memory(p, m) for m in matrices)]
    assert {len(p) for p in kept} >= {300, 400}
    query = whole[5]
    rough = rough_distances(block, query, "l2")
    assert np.allclose(rough, ((whole - query) ** 2).sum(axis=1), atol=1e-3)
    numbers = np.array([0, 1, block.rows // 2, block.rows - 1])
    assert np.array_equal(block.vectors(numbers), whole[numbers])


@pytest.mark.parametrize("is_sync", [True, False])
def test_synchronous_puts_share_the_work(is_sync):
    config = WriterConfig(sync_indexed_write=is_sync)
    kept = WriterIndexes(SYSTEM, config, [IndexInfo("words", "text", "text")], "test")
    level = MemLevel((), SCHEMA)
    index = TextIndex.of(level, "text", kept.cache.analyzer({}), SYSTEM)
    taken = []
    for count in (1000, 100):
        level.append([batch(["fox"] * count)])
        kept.rows_added(level, count)
        taken.append(index.taken)
    assert taken == ([0, 2] if is_sync else [0, 0])
