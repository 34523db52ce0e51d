"""L-1, L-2, L-3 for searches: the newest rows, all of them, against brute force."""

import math
from collections import Counter
from dataclasses import replace

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import weir
from tests.support.tables import compact_with_pylance
from weir.env import Env, Limits
from weir.lake.index import released_generation
from weir.read.common import PART_ROWS
from weir.search.lance_texts import tokens_of
from weir.search.text import Analyzer

DIM = 4
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("x", pa.int64()),
        pa.field("text", pa.utf8()),
        pa.field("vec", pa.list_(pa.float32(), DIM)),
    ]
)
WORDS = ["fox", "dog", "cat", "hen", "owl", "bee"]


def make(uri, buckets=1, key="id", **options):
    sharding = weir.Bucket("id", buckets) if buckets > 1 else weir.Unsharded()
    return weir.create(str(uri), SCHEMA, primary_key=key, sharding=sharding, **options)


def row(i, seed=0, x=0):
    """A row derived from its key and a seed; some rows have no text or vector."""
    rng = np.random.default_rng([i, seed])
    words = " ".join(rng.choice(WORDS, rng.integers(1, 7)))
    vector = rng.normal(size=DIM).astype(np.float32)
    return {
        "id": i,
        "x": x,
        "text": None if rng.random() < 0.1 else words,
        "vec": None if rng.random() < 0.1 else vector.tolist(),
    }


def distance(vector, query, metric):
    v, q = np.asarray(vector, np.float64), np.asarray(query, np.float64)
    if metric == "l2":
        return float(((v - q) ** 2).sum())
    dot = float(v @ q)
    return 1 - dot if metric == "dot" else 1 - dot / math.sqrt((v @ v) * (q @ q))


def nearest(rows, query, k, metric="l2", passes=lambda _: True):
    found = [
        (distance(r["vec"], query, metric), r["id"])
        for r in rows
        if r["vec"] is not None and passes(r)
    ]
    return [i for _, i in sorted(found)[:k]]


def index_base(table, *, metric="l2", vector="IVF_FLAT", **options):
    dataset = lance.dataset(table.uri)
    dataset.create_scalar_index("text", "INVERTED", name="words", with_position=False)
    dataset.create_index("vec", vector, name="near", metric=metric, **options)


def bm25(texts_of_levels, terms):
    """A function that scores a text by the statistics of all levels together."""
    docs = [text.split() for level in texts_of_levels for text in level if text is not None]
    count, average = len(docs), sum(map(len, docs)) / len(docs)
    df = {term: sum(term in doc for doc in docs) for term in terms}

    def score(text):
        words = text.split()
        times = Counter(words)
        norm = 1.2 * (0.25 + 0.75 * len(words) / average)
        return sum(
            math.log(1 + (count - df[t] + 0.5) / (df[t] + 0.5)) * times[t] * 2.2 / (times[t] + norm)
            for t in terms
            if times[t]
        )

    return score


# -- any history -----------------------------------------------------------------------------------

IDS = st.lists(st.integers(0, 30), min_size=1, max_size=12, unique=True)
STEPS = st.one_of(
    st.tuples(st.just("put"), IDS, st.integers(0, 3)),
    st.tuples(st.just("delete"), IDS),
    st.tuples(st.sampled_from(["flush", "compact", "index", "reopen"])),
)


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    steps=st.lists(STEPS, min_size=1, max_size=9),
    k=st.sampled_from([1, 3, 10, 100]),
    metric=st.sampled_from(["l2", "cosine", "dot"]),
    seed=st.integers(0, 99),
)
def test_l1_a_search_is_brute_force_over_the_newest_rows(tmp_path_factory, steps, k, metric, seed):
    table = make(tmp_path_factory.mktemp("t") / "t", buckets=1 + seed % 2)
    truth, indexed = {}, False
    writer = table.writer()
    for step in steps:
        if step[0] == "put":
            rows = [row(i, step[2] + 1, x=(i + step[2]) % 4) for i in step[1]]
            writer.put(rows)
            truth.update((r["id"], r) for r in rows)
        elif step[0] == "delete":
            writer.delete(step[1])
            for i in step[1]:
                truth.pop(i, None)
        elif step[0] == "flush":
            writer.flush()
        elif step[0] == "compact":
            compact_with_pylance(table)
        elif step[0] == "reopen":
            writer.close()
            writer = table.writer()
        elif not indexed and table.scan(filter="vec IS NOT NULL", freshness="base").count():
            index_base(table, metric=metric, num_partitions=1)
            indexed = True
    query = np.random.default_rng(seed).normal(size=DIM).astype(np.float32)
    for filter, passes in ((None, lambda _: True), ("x > 1", lambda r: r["x"] > 1)):
        found = table.search("vec", query, k=k, filter=filter, metric=metric)
        assert found["id"].to_pylist() == nearest(truth.values(), query, k, metric, passes)
        for got in found.to_pylist():
            assert got["vec"] == truth[got["id"]]["vec"]
            expected = distance(got["vec"], query, metric)
            assert got["_distance"] == pytest.approx(expected, rel=1e-4, abs=1e-4)
        check_words(table, truth, ["fox", "owl"], k, filter, passes)
    writer.close()


def check_words(table, truth, terms, k, filter, passes):
    """Each match is found once; equal texts score alike; k limits the result to the best k."""
    everything = table.search("text", " ".join(terms), k=1000, filter=filter).to_pylist()
    matching = {
        r["id"]
        for r in truth.values()
        if r["text"] and passes(r) and set(terms) & {*r["text"].split()}
    }
    assert sorted(r["id"] for r in everything) == sorted(matching)
    scores = {}
    for got in everything:
        assert got["text"] == truth[got["id"]]["text"]
        words = Counter(got["text"].split())
        alike = (words["fox"], words["owl"], words.total())
        assert scores.setdefault(alike, got["_score"]) == pytest.approx(got["_score"], rel=1e-6)
    few = table.search("text", " ".join(terms), k=k, filter=filter, columns=["id"])
    best = [r["_score"] for r in everything][:k]
    assert few["_score"].to_pylist() == pytest.approx(best, rel=1e-6)


# -- one rule each ---------------------------------------------------------------------------------


def at(i, *vector, x=0, text="fox"):
    return {"id": i, "x": x, "text": text, "vec": list(vector)}


ORIGIN = [0.0] * DIM


@pytest.mark.parametrize("indexed", [False, True])
def test_l2_a_vector_that_moved_away_is_not_found_where_it_was(tmp_path, indexed):
    table = make(tmp_path / "t")
    with table.writer() as writer:
        writer.put([at(i, i, 0, 0, 0) for i in range(40)])
        writer.flush()
        compact_with_pylance(table)
        if indexed:
            index_base(table, num_partitions=1)
        # The 30 nearest rows of the base are all stale: the search must continue past them.
        writer.put([at(i, 100 + i, 0, 0, 0) for i in range(30)])
        assert table.search("vec", ORIGIN, k=3)["id"].to_pylist() == [30, 31, 32]
        writer.flush()
        assert table.search("vec", ORIGIN, k=3)["id"].to_pylist() == [30, 31, 32]
        writer.delete([30])
        assert table.search("vec", ORIGIN, k=3)["id"].to_pylist() == [31, 32, 33]
        writer.put([at(30, 0.5, 0, 0, 0)])
        assert table.search("vec", ORIGIN, k=3)["id"].to_pylist() == [30, 31, 32]


@pytest.mark.parametrize("predicate", ["x > 5", pc.field("x") > 5])
@pytest.mark.parametrize("level", ["tail", "sstable", "base"])
def test_l3_an_old_version_never_comes_back_through_a_filter(tmp_path, predicate, level):
    table = make(tmp_path / "t")
    with table.writer() as writer:
        writer.put([at(1, 1, 0, 0, 0, x=9), at(2, 2, 0, 0, 0, x=9)])
        if level != "tail":
            writer.flush()
        if level == "base":
            compact_with_pylance(table)
            index_base(table, num_partitions=1)
        writer.put([at(1, 1, 0, 0, 0, x=1)])  # the nearest row no longer passes the filter
        assert table.search("vec", ORIGIN, filter=predicate)["id"].to_pylist() == [2]
        assert table.search("text", "fox", filter=predicate)["id"].to_pylist() == [2]


def test_scores_of_all_levels_compare(tmp_path):
    """BM25 by the statistics of base, SSTable and tail together, wherever a row is."""
    table = make(tmp_path / "t")
    rng = np.random.default_rng(0)

    def texts(ids, words):
        return {i: " ".join(rng.choice(words, rng.integers(1, 9))) for i in ids}

    # "owl" is common in one level and rare in another: local weights would mislead.
    base = texts(range(60), [*WORDS, *["owl"] * 6])
    flushed = texts(range(100, 160), [*WORDS, *["fox"] * 6])
    tail = texts(range(200, 230), WORDS)

    def rows(texts):
        return [at(i, i, 0, 0, 0, text=text) for i, text in texts.items()]

    with table.writer() as writer:
        writer.put(rows(base))
        writer.flush()
        compact_with_pylance(table)
        index_base(table, num_partitions=1)
    with table.writer() as writer:  # reopened: this writer maintains the new indexes
        writer.put(rows(flushed))
        writer.flush()
        writer.put(rows(tail))
        levels = [list(level.values()) for level in (base, flushed, tail)]
        score = bm25(levels, ["fox", "owl"])
        expected = sorted((score(t) for level in levels for t in level if score(t)), reverse=True)
        for k in (1, 5, 20, 200):
            found = table.search("text", "fox owl", k=k)
            assert found["_score"].to_pylist() == pytest.approx(expected[:k], rel=1e-5)
            # Without the tail, the newest level is one that Lance could search alone.
            part = bm25(levels[:2], ["fox", "owl"])
            fewer = sorted((part(t) for lv in levels[:2] for t in lv if part(t)), reverse=True)
            found = table.search("text", "fox owl", k=k, freshness="flushed")
            assert found["_score"].to_pylist() == pytest.approx(fewer[:k], rel=1e-5)
            own = next(iter(writer.shard_writers().values())).search("text", "fox owl", k=k)
            assert own["_score"].to_pylist() == pytest.approx(expected[:k], rel=1e-5)


def test_recall_where_the_base_is_approximate(tmp_path):
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("vec", pa.list_(pa.float32(), 32))])
    table = weir.create(str(tmp_path / "t"), schema, primary_key="id")
    rng = np.random.default_rng(3)
    centres = rng.normal(size=(40, 32)) * 4

    def vectors(count):
        return (centres[rng.integers(0, 40, count)] + rng.normal(size=(count, 32))).astype("f4")

    def rows(first, values):
        ids = pa.array(np.arange(first, first + len(values)))
        return pa.table([ids, pa.FixedSizeListArray.from_arrays(values.ravel(), 32)], schema=schema)

    stored = vectors(6000)
    with table.writer() as writer:
        writer.put(rows(0, stored))
        writer.flush()
        compact_with_pylance(table)
        lance.dataset(table.uri).create_index(
            "vec", "IVF_PQ", name="near", num_partitions=16, num_sub_vectors=8
        )
        moved = vectors(1000)
        stored[2000:3000] = moved
        writer.put(rows(2000, moved[:500]))
        writer.flush()
        writer.put(rows(2500, moved[500:]))
        hits = 0
        for query in vectors(30):
            true = np.argsort(((stored - query) ** 2).sum(axis=1))[:10]
            hits += len(set(true) & set(table.search("vec", query, k=10)["id"].to_pylist()))
            exact = table.search("vec", query, k=10, exact=True)["id"].to_pylist()
            assert sorted(exact) == sorted(true)
        assert hits / 300 >= 0.95


@pytest.mark.parametrize(("bytes_compared", "recall"), [(0, 0.8), (16 << 20, 1.0)])
def test_recall_on_random_vectors_with_nothing_said(tmp_path, monkeypatch, bytes_compared, recall):
    """The worst case for a quantized index, whether or not the table is small enough to skip it."""
    monkeypatch.setattr("weir.search.plan.EXACT_BYTES", bytes_compared)
    rng = np.random.default_rng(5)
    stored = rng.normal(size=(8_000, 32)).astype("f4")
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("vec", pa.list_(pa.float32(), 32))])
    table = weir.create(str(tmp_path / "t"), schema, primary_key="id")
    vectors = pa.FixedSizeListArray.from_arrays(stored.ravel(), 32)
    with table.writer() as writer:
        writer.put(pa.table([pa.array(np.arange(8_000)), vectors], schema=schema))
        writer.flush()
    compact_with_pylance(table)
    lance.dataset(table.uri).create_index(
        "vec", "IVF_PQ", name="near", num_partitions=80, num_sub_vectors=4
    )
    queries = rng.normal(size=(20, 32)).astype("f4")
    found = table.search("vec", queries, k=10, columns=["id"])
    hits = 0
    for number, query in enumerate(queries):
        true = np.argsort(((stored - query) ** 2).sum(axis=1))[:10]
        ids = found.filter(pc.field("query_index") == number)["id"].to_pylist()
        hits += len(set(true.tolist()) & set(ids))
    assert hits / 200 >= recall
    if not bytes_compared:
        assert table.search("vec", queries, k=10, columns=["id"], nprobes=20).equals(found)
        assert table.search("vec", queries, k=10, columns=["id"], refine_factor=10).equals(found)
    told = table.search("vec", queries[0], k=10, nprobes=1, refine_factor=1, columns=["id"])
    assert told.num_rows == 10


def test_l1_rows_the_base_has_not_indexed_yet_are_found(tmp_path):
    table = make(tmp_path / "t")
    with table.writer() as writer:
        writer.put([at(i, 10 + i, 0, 0, 0) for i in range(20)])
        writer.flush()
        compact_with_pylance(table)
        index_base(table, num_partitions=1)
        writer.put([at(100, 1, 0, 0, 0, text="owl"), at(3, 2, 0, 0, 0, text="owl")])
        writer.flush()
        compact_with_pylance(table)

        def check():
            assert table.search("vec", ORIGIN, k=3)["id"].to_pylist() == [100, 3, 0]
            assert sorted(table.search("text", "owl")["id"].to_pylist()) == [3, 100]
            assert table.search("text", "fox", k=100).num_rows == 19

        assert lance.dataset(table.uri).stats.index_stats("words")["num_unindexed_rows"] == 2
        check()
        table.core.lake.optimize_indices()
        assert lance.dataset(table.uri).stats.index_stats("words")["num_unindexed_rows"] == 0
        check()


def test_append_only_rows_are_all_found(tmp_path):
    table = make(tmp_path / "t", key=None)
    with table.writer() as writer:
        writer.put([at(1, 1, 0, 0, 0), at(1, 2, 0, 0, 0)])
        writer.flush()
        writer.put([at(1, 3, 0, 0, 0)])
        found = table.search("vec", ORIGIN)
        assert found["_distance"].to_pylist() == [1, 4, 9]
        assert table.search("text", "fox").num_rows == 3


def test_freshness_says_how_far_a_search_looks(tmp_path):
    table = make(tmp_path / "t")
    with table.writer() as writer:
        for i in (3, 2, 1):
            writer.put([at(i, i, 0, 0, 0)])
            if i == 3:
                writer.flush()
                compact_with_pylance(table)
            elif i == 2:
                writer.flush()
        for freshness, first in (("durable", 1), ("flushed", 2), ("base", 3)):
            assert table.search("vec", ORIGIN, freshness=freshness)["id"][0].as_py() == first
            assert table.search("text", "fox", freshness=freshness).num_rows == 4 - first


def test_a_writer_finds_its_own_rows_of_its_own_shard(tmp_path):
    table = make(tmp_path / "t", buckets=2)
    config = weir.WriterConfig(durable_write=False, max_wal_flush_interval=60)
    with table.writer() as writer:
        writer.put([at(i, i, 0, 0, 0) for i in range(20)])
        writer.flush()
        compact_with_pylance(table)
    first, second = (set(), set())
    for part, bucket in ((first, 0), (second, 1)):
        with table.shard(bucket).writer() as writer:
            part.update(writer.search("vec", ORIGIN, k=100)["id"].to_pylist())
    assert first | second == set(range(20))
    assert not first & second
    with table.shard(0).writer(config) as writer:
        mine = min(first)
        writer.put([at(mine, 0.5, 0, 0, 0)])
        assert writer.search("vec", [0.5, 0, 0, 0])["_distance"][0].as_py() == 0  # M-1: buffered


@pytest.mark.parametrize(
    ("column", "query", "options", "message"),
    [
        ("nothing", "fox", {}, "no column"),
        ("x", 3, {}, "needs text"),
        ("text", [1.0], {}, "takes words"),
        ("vec", [1.0], {}, "vectors of 4"),
        ("vec", "fox", {}, "vector of numbers"),
        ("vec", [math.nan] * DIM, {}, "not finite"),
        ("vec", ORIGIN, {"k": 0}, "k must be"),
        ("vec", ORIGIN, {"metric": "near"}, "metric"),
        ("vec", ORIGIN, {"columns": ["y"]}, "no column 'y'"),
        ("vec", ORIGIN, {"freshness": "new"}, "freshness"),
        ("vec", ORIGIN, {"nprobes": 0}, "nprobes"),
        ("vec", ORIGIN, {"offset": -1}, "offset"),
        ("vec", ORIGIN, {"distance_range": 3}, "distance_range"),
        ("vec", [ORIGIN, [1.0]], {}, "of the same length"),
        ("vec", [], {}, "shape"),
        ("text", ["fox", 3], {}, "takes words"),
        ("text", "fox", {"distance_range": (0, 10)}, "distance_range is about"),
        ("text", "fox", {"metric": "l2"}, "metric is about"),
        ("text", "fox", {"nprobes": 3}, "nprobes is about"),
        ("text", "fox", {"refine_factor": 3}, "refine_factor is about"),
        ("text", "fox", {"exact": True}, "exact is about"),
        ("vec", ORIGIN, {"filter": pc.utf8_length(pc.field("text")) > 1}, "write it in SQL"),
        ("text", "fox", {"filter": pc.field("p", "a") > 1}, "write it in SQL"),
    ],
)
def test_what_cannot_be_searched_says_why(tmp_path, column, query, options, message):
    table = make(tmp_path / "t")
    with pytest.raises(weir.InvalidInput, match=message):
        table.search(column, query, **options)


@pytest.mark.parametrize("level", ["log", "SSTable", "base"])
def test_l3_a_search_takes_and_refuses_the_same_expressions_in_every_level(tmp_path, level):
    """Also beside a column that Lance has no name for in an expression."""
    schema = SCHEMA.append(pa.field("took", pa.duration("us")))
    table = weir.create(str(tmp_path / "t"), schema, primary_key="id")
    with table.writer() as writer:
        writer.put([at(1, 1, 0, 0, 0, text="fox"), at(2, 2, 0, 0, 0, text="fox")])
        if level != "log":
            writer.flush()
        if level == "base":
            table.compact()
        for column, query in (("vec", ORIGIN), ("text", "fox")):
            found = table.search(column, query, filter=pc.field("id") > 1)
            assert found["id"].to_pylist() == [2]
            with pytest.raises(weir.InvalidInput, match="write it in SQL"):
                table.search(column, query, filter=pc.field("took").is_null())


def test_m2_index_settings_that_do_not_fit_leave_no_trace(tmp_path):
    table = make(tmp_path / "t")
    wrong = weir.WriterConfig(index_configs=(weir.IndexConfig("i", "y", "btree"),))
    with pytest.raises(weir.InvalidInput, match="no column 'y'"):
        table.shard(None).writer(wrong)
    assert table.shard(None).manifest().writer_epoch == 0


def test_words_of_stop_alone_find_nothing(tmp_path):
    table = make(tmp_path / "t")
    with table.writer() as writer:
        writer.put([at(1, 1, 0, 0, 0, text="the fox")])
        assert table.search("text", "the").num_rows == 0
        assert table.search("text", "Foxes").num_rows == 1


def test_l2_a_deleted_text_key_is_not_found_in_its_own_tombstone(tmp_path):
    schema = pa.schema([pa.field("name", pa.utf8()), pa.field("x", pa.int64())])
    table = weir.create(str(tmp_path / "t"), schema, primary_key="name")
    config = weir.WriterConfig(index_configs=(weir.IndexConfig("words", "name", "text"),))
    with table.shard(None).writer(config) as writer:
        writer.put([{"name": "red fox", "x": 1}, {"name": "grey fox", "x": 2}])
        writer.delete(["red fox"])
        assert table.search("name", "fox")["x"].to_pylist() == [2]
        writer.flush()
        assert table.search("name", "fox")["x"].to_pylist() == [2]


def test_sstables_stay_until_every_index_that_counts_has_caught_up(tmp_path):
    table = make(tmp_path / "t")
    with table.writer() as writer:
        writer.put([at(1, 1, 0, 0, 0)])
        writer.flush()
        compact_with_pylance(table)
    shard = table.shard(None).id
    base = table.core.lake.open_base()
    assert released_generation(base, shard) == 1
    base.__dict__["mem_wal"] = replace(base.mem_wal, index_catchup={"near": {shard: 0}, "x": {}})
    assert released_generation(base, shard) == 0
    table.gc(min_age=0)
    assert [s.generation for s in table.shard(None).manifest().sstables] == [1]
    base.__dict__["mem_wal"] = replace(base.mem_wal, index_catchup={})
    table.gc(min_age=0)
    assert table.shard(None).manifest().sstables == ()


def test_l1_searches_are_the_same_on_every_store(store_kind):
    uri = store_kind.uri_factory()
    table = weir.create(uri, SCHEMA, primary_key="id", storage_options=store_kind.storage_options)
    texts = {i: " ".join(WORDS[: 1 + i % 5]) for i in range(30)}
    with table.writer() as writer:
        writer.put([at(i, i, 0, 0, 0, text=texts[i]) for i in range(10)])
        writer.flush()
    table.compact()
    dataset = table.core.lake.open_base().dataset
    dataset.create_scalar_index("text", "INVERTED", name="words", with_position=False)
    dataset.create_index("vec", "IVF_FLAT", name="near", num_partitions=1)
    table = weir.open(uri, storage_options=store_kind.storage_options)
    dataset = table.core.lake.open_base().dataset
    (words,) = [index for index in dataset.describe_indices() if index.name == "words"]
    assert tokens_of(dataset, words.segments[0]) == sum(len(texts[i].split()) for i in range(10))
    with table.writer() as writer:
        writer.put([at(i, i, 0, 0, 0, text=texts[i]) for i in range(10, 20)])
        writer.flush()
        writer.put([at(i, i, 0, 0, 0, text=texts[i]) for i in range(20, 30)])
        assert table.search("vec", ORIGIN, k=25)["id"].to_pylist() == list(range(25))
        score = bm25([list(texts.values())], ["dog", "owl"])
        expected = sorted((score(t) for t in texts.values() if score(t)), reverse=True)
        found = table.search("text", "dog owl", k=8)["_score"].to_pylist()
        assert found == pytest.approx(expected[:8], rel=1e-5)


def test_words_are_cut_as_the_base_index_cuts_them_in_every_level(tmp_path):
    table = make(tmp_path / "t")
    with table.writer() as writer:
        writer.put([at(1, 1, 0, 0, 0, text="Fox"), at(2, 2, 0, 0, 0, text="foxes")])
        writer.flush()
        compact_with_pylance(table)
    lance.dataset(table.uri).create_scalar_index(
        "text", "INVERTED", name="words", with_position=False, stem=False, lower_case=False
    )
    with table.writer() as writer:
        writer.put([at(3, 3, 0, 0, 0, text="Fox"), at(4, 4, 0, 0, 0, text="fox")])
        writer.flush()
        writer.put([at(5, 5, 0, 0, 0, text="Fox"), at(6, 6, 0, 0, 0, text="Foxes")])
        assert sorted(table.search("text", "Fox")["id"].to_pylist()) == [1, 3, 5]


@pytest.mark.parametrize("key", ["id", None])
def test_text_without_an_index_is_read_and_cut_into_words_once(tmp_path, monkeypatch, key):
    cut, block = [], Analyzer.block

    def counted(self, texts, numbers=None):
        cut.append(len(texts))
        return block(self, texts, numbers)

    table = make(tmp_path / "t", key=key)
    with table.writer() as writer:
        writer.put([at(i, *ORIGIN, text=f"word w{i}") for i in range(PART_ROWS + 1)])
        writer.flush()
        writer.put([at(9_999, *ORIGIN, text="word")])
        monkeypatch.setattr(Analyzer, "block", counted)
        found = table.search("text", "w7 w9", k=5)
        assert sorted(found["text"].to_pylist()) == ["word w7", "word w9"]
        assert sum(cut) == PART_ROWS + 2
        cut.clear()
        batch = ["w3", "nothing", weir.Match("word w5", "and"), "w7 w9"]
        found = table.search("text", batch, k=5, filter="id <> 7")
        each = [table.search("text", query, k=5, filter="id <> 7") for query in batch]
    assert found["text"].to_pylist() == ["word w3", "word w5", "word w9"]
    assert found["query_index"].to_pylist() == [0, 2, 3]
    assert found["_score"].to_pylist() == [s for one in each for s in one["_score"].to_pylist()]
    assert sum(cut) == 4 * (PART_ROWS + 1) + PART_ROWS + 1  # once for the batch, once for each


def test_l10_a_long_tail_is_searched_for_words_in_pieces(tmp_path):
    table = make(tmp_path / "t")
    with table.writer() as writer:
        for i in range(12):
            writer.put([at(i, *ORIGIN, x=i, text=f"word w{i}")])
        writer.delete([4])
        reader = weir.open(table.uri, env=Env(limits=Limits(read_bytes=2000)))
        assert sorted(reader.search("text", "word", k=50)["id"].to_pylist()) == [
            i for i in range(12) if i != 4
        ]
        passing = reader.search("text", "word w3", k=50, filter="x > 2 AND x < 6")
        assert passing["id"].to_pylist() == [3, 5]
        assert passing["x"].to_pylist() == [3, 5]
