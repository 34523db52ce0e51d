"""Pages of a search: each row once, in an order that does not depend on the page."""

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weir

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("text", pa.utf8()),
        pa.field("vec", pa.list_(pa.float32(), 4)),
    ]
)
PAGE = 10


def rows(first, last):
    """Many rows of equal score, and many at an equal distance."""
    for i in range(first, last):
        words = " ".join(["fox", "dog", "cat"][: 1 + i % 3])
        yield {"id": i, "text": words, "vec": [float(i % 7), 0.0, 0.0, 0.0]}


@pytest.fixture(params=["indexed", "indexed, with fresh rows", "scanned"])
def table(request, tmp_path):
    made = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id")
    with made.writer() as writer:
        writer.put(list(rows(0, 120)))
    made.compact(fold_wal=True)
    if request.param != "scanned":
        dataset = lance.dataset(made.uri)
        dataset.create_scalar_index("text", "INVERTED", name="words", with_position=False)
    if request.param == "indexed, with fresh rows":
        with made.writer() as writer:
            writer.put(list(rows(100, 200)))
    return made


def pages(search, page=PAGE):
    found = []
    while part := search(k=page, offset=len(found)).column("id").to_pylist():
        found += part
    return found


def test_l1_pages_of_a_text_search_show_each_match_once(table):
    def search(**page):
        return table.search("text", "fox", **page)

    whole = search(k=500).column("id").to_pylist()
    assert sorted(whole) == sorted(r["id"] for r in table.scan().to_table().to_pylist())
    for page in (1, PAGE, 33):
        assert pages(search, page) == whole


def test_l1_pages_of_a_vector_search_show_each_row_once(table):
    def search(**page):
        return table.search("vec", [0.0] * 4, **page)

    assert pages(search) == search(k=500).column("id").to_pylist()


def test_l1_pages_of_a_hybrid_search_show_each_row_once(table):
    def search(**page):
        return table.hybrid_search({"text": "fox cat", "vec": [3.0, 0, 0, 0]}, **page)

    found = pages(search)
    assert sorted(found) == sorted(r["id"] for r in table.scan().to_table().to_pylist())
    two = [search(k=25, offset=at).column("id").to_pylist() for at in (0, 25)]
    assert found[:50] == [*two[0], *two[1]]


def test_l1_a_hybrid_search_of_a_given_depth_ends_with_it(table):
    found = pages(lambda **p: table.hybrid_search({"text": "fox", "vec": [0.0] * 4}, depth=20, **p))
    assert len(found) == len(set(found))
    assert 20 <= len(found) <= 40


def test_l1_equal_vectors_beyond_the_first_request_are_paged(tmp_path):
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id")
    rng = np.random.default_rng(1)
    with table.writer() as writer:
        writer.put([{"id": int(i), "vec": [1.0] * 4} for i in rng.permutation(300)])
    table.compact(fold_wal=True)
    found = pages(lambda **page: table.search("vec", [1.0] * 4, **page), 7)
    assert sorted(found) == list(range(300))


INDEXES = {
    "IVF_FLAT": {"num_partitions": 8},
    "IVF_PQ": {"num_partitions": 8, "num_sub_vectors": 2},
    "IVF_HNSW_SQ": {"num_partitions": 2},
}


@pytest.mark.parametrize("key", ["id", None], ids=["keyed", "append-only"])
@pytest.mark.parametrize("kind", INDEXES)
def test_l1_pages_by_an_approximate_index_show_each_row_once(tmp_path, monkeypatch, kind, key):
    """Such an index finds better rows when it is asked for more, so one ranking as long as a page
    needs would move rows between the pages."""
    monkeypatch.setattr("weir.search.plan.EXACT_BYTES", 0)
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key=key)
    vectors = np.random.default_rng(1).normal(size=(1500, 4)).astype(np.float32)
    vectors[::3] = np.round(vectors[::3])  # many at an equal distance
    with table.writer() as writer:
        writer.put([{"id": i, "vec": vector.tolist()} for i, vector in enumerate(vectors[:1300])])
        table.compact(fold_wal=True)
        lance.dataset(table.uri).create_index("vec", kind, metric="l2", **INDEXES[kind])
    with table.writer() as writer:
        writer.put([{"id": 1300 + i, "vec": v.tolist()} for i, v in enumerate(vectors[1300:])])
    query = [0.3, -0.2, 0.1, 0.0]

    def search(**page):
        return table.search("vec", query, nprobes=3, refine_factor=1, **page)

    found = [row for at in range(0, 600, 20) for row in search(k=20, offset=at)["id"].to_pylist()]
    assert len(found) == len(set(found)) == 600
    assert found[:20] == search(k=20)["id"].to_pylist()


ROW = st.tuples(st.sampled_from(["fox", "fox dog", "dog"]), st.integers(0, 3))


@settings(max_examples=8, deadline=None)
@given(
    levels=st.lists(st.lists(ROW, max_size=60), min_size=1, max_size=3),
    folded=st.integers(0, 2),
    indexed=st.booleans(),
    page=st.integers(1, 40),
)
def test_l1_pages_of_any_search_of_any_levels_show_each_row_once(
    tmp_path_factory, levels, folded, indexed, page
):
    """Levels that replace rows of each other, with few different scores and distances."""
    table = weir.create(str(tmp_path_factory.mktemp("t")), SCHEMA, primary_key="id")
    expected = {}
    with table.writer() as writer:
        for number, level in enumerate(levels):
            put = [
                {"id": i + 20 * number, "text": words, "vec": [float(at), 0, 0, 0]}
                for i, (words, at) in enumerate(level)
            ]
            if not put:
                continue
            writer.put(put)
            expected |= {row["id"]: row for row in put}
            if number < folded:
                writer.flush()
                table.compact()
                if indexed:
                    dataset = lance.dataset(table.uri)
                    dataset.create_scalar_index("text", "INVERTED", name="words", replace=True)
        query = [1.0, 0, 0, 0]
        foxes = {key for key, row in expected.items() if "fox" in row["text"]}
        for search, keys in (
            (lambda **p: table.search("text", "fox", **p), foxes),
            (lambda **p: table.search("vec", query, **p), set(expected)),
            (lambda **p: table.hybrid_search({"text": "fox", "vec": query}, **p), set(expected)),
        ):
            assert sorted(pages(search, page)) == sorted(keys)
