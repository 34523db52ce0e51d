"""L-1, L-2 for all kinds of queries: against brute force over the newest rows of all levels.

One table with rows in the base (indexed), the base (not indexed), an SSTable and the log, some of
them superseded, some deleted.
"""

from collections import Counter

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.query import BooleanQuery, FullTextOperator, MatchQuery, Occur, PhraseQuery

import weir
from tests.support.tables import compact_with_pylance
from weir import Boolean, Match, Phrase

DIM = 4
WORDS = ["fox", "dog", "cat", "hen", "owl", "the"]
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("x", pa.int64()),
        pa.field("text", pa.utf8()),
        pa.field("vec", pa.list_(pa.float32(), DIM)),
    ]
)


def rows(ids, seed):
    made = []
    for i in ids:
        rng = np.random.default_rng([i, seed])
        text = " ".join(rng.choice(WORDS, rng.integers(1, 8)))
        vector = rng.normal(size=DIM).astype("f4").tolist()
        made.append({"id": i, "x": i % 3, "text": text if i % 17 else None, "vec": vector})
    return made


def fill(table, positions):
    """Rows in every level; returns the newest of each key."""
    truth = {}

    def put(writer, ids, seed):
        made = rows(ids, seed)
        writer.put(made)
        truth.update((row["id"], row) for row in made)

    with table.writer() as writer:
        put(writer, range(60), 0)
        writer.flush()
    compact_with_pylance(table)
    dataset = lance.dataset(table.uri)
    dataset.create_scalar_index("text", "INVERTED", name="words", with_position=positions)
    dataset.create_index("vec", "IVF_FLAT", name="near", num_partitions=2)
    with table.writer() as writer:
        put(writer, range(50, 80), 1)
        writer.flush()
        compact_with_pylance(table)  # rows that the base's indexes do not cover
        put(writer, range(70, 100), 2)
        writer.delete([3, 75])
        writer.flush()
    writer = table.writer()
    put(writer, range(90, 120), 3)
    put(writer, range(5, 10), 4)
    writer.delete([11, 95])
    for gone in (3, 75, 11, 95):
        truth.pop(gone)
    return writer, truth


@pytest.fixture(scope="module", params=[True, False], ids=["positions", "no positions"])
def filled(request, tmp_path_factory):
    uri = str(tmp_path_factory.mktemp("t") / "t")
    table = weir.create(uri, SCHEMA, primary_key="id")
    writer, truth = fill(table, request.param)
    yield table, truth, writer
    writer.close()


QUERIES = [
    "fox",
    Match("fox owl", operator="and"),
    Phrase("fox owl"),
    Phrase("owl"),
    Phrase("hen the cat"),
    Phrase("hen hen"),
    Boolean(must=["fox"], should=["owl"], must_not=["dog"]),
    Boolean(should=[Phrase("cat dog"), Match("hen owl", operator="and")]),
    Boolean(must=["cat"], must_not=[Phrase("fox cat")]),
    Boolean(must=[Boolean(should=["fox", "hen"]), "owl"], should=[Phrase("dog cat")]),
]


def matches(query, text):
    """A plain reimplementation; "the" is a stop word that leaves its position empty."""
    words = (text or "").split()
    if isinstance(query, str | Match):
        operator = "or" if isinstance(query, str) else query.operator
        wanted = (query if isinstance(query, str) else query.text).split()
        return (any if operator == "or" else all)(word in words for word in wanted)
    if isinstance(query, Phrase):
        wanted = query.text.split()
        return any(
            all(want in ("the", got) for want, got in zip(wanted, words[at:], strict=False))
            for at in range(len(words) - len(wanted) + 1)
        )
    must = all(matches(one, text) for one in query.must)
    should = bool(query.must) or any(matches(one, text) for one in query.should)
    return must and should and not any(matches(one, text) for one in query.must_not)


@pytest.mark.parametrize("query", QUERIES, ids=repr)
def test_l1_words_find_what_they_say_in_every_level(filled, query):
    table, truth, _ = filled
    expected = sorted(i for i, row in truth.items() if matches(query, row["text"]))
    found = table.search("text", query, k=1000)
    assert sorted(found["id"].to_pylist()) == expected
    assert expected, "the query finds nothing: it proves nothing"
    scores = found["_score"].to_pylist()
    assert scores == sorted(scores, reverse=True)
    few = table.search("text", query, k=4, columns=["id"])
    assert few["_score"].to_pylist() == pytest.approx(scores[:4], rel=1e-5)
    passing = [i for i in expected if truth[i]["x"] == 1]
    narrowed = table.search("text", query, k=1000, filter="x = 1")
    assert sorted(narrowed["id"].to_pylist()) == passing
    # Equal texts score alike wherever they are.
    by_text = {}
    for row in found.to_pylist():
        score = by_text.setdefault(row["text"], row["_score"])
        assert score == pytest.approx(row["_score"], rel=1e-5)


def as_lance(query):
    if isinstance(query, str):
        return MatchQuery(query, "text")
    if isinstance(query, Match):
        return MatchQuery(query.text, "text", operator=FullTextOperator(query.operator.upper()))
    if isinstance(query, Phrase):
        return PhraseQuery(query.text, "text")
    kinds = (
        (Occur.MUST, query.must),
        (Occur.SHOULD, query.should),
        (Occur.MUST_NOT, query.must_not),
    )
    return BooleanQuery([(how, as_lance(one)) for how, many in kinds for one in many])


def test_words_mean_and_score_what_they_do_in_lance(tmp_path):
    """The same rows in one level, searched by Lance, and in the log, searched by weir."""
    made = [row for row in rows(range(80), 9) if row["text"]]
    flushed = weir.create(str(tmp_path / "flushed"), SCHEMA, primary_key="id")
    with flushed.writer() as writer:
        writer.put(made)
        writer.flush()
    flushed.compact()
    lance.dataset(flushed.uri).create_scalar_index(
        "text", "INVERTED", name="words", with_position=True
    )
    fresh = weir.create(str(tmp_path / "fresh"), SCHEMA, primary_key="id")
    with fresh.writer() as writer:
        writer.put(made)
        for query in [*QUERIES, "fox fox owl"]:
            dataset = lance.dataset(flushed.uri)
            found = dataset.to_table(columns=["id"], full_text_query=as_lance(query), limit=1000)
            truth = dict(zip(found["id"].to_pylist(), found["_score"].to_pylist(), strict=True))
            for table in (flushed, fresh):
                ours = table.search("text", query, k=1000)
                scores = dict(zip(ours["id"].to_pylist(), ours["_score"].to_pylist(), strict=True))
                assert scores == pytest.approx(truth, rel=1e-4), (table.uri, query)


def brute(truth, query):
    values = np.array([row["vec"] for row in truth.values()], np.float64)
    distances = ((values - np.asarray(query, np.float64)) ** 2).sum(axis=1)
    order = np.argsort(distances, kind="stable")
    ids = np.array(list(truth))
    return ids[order].tolist(), distances[order]


def test_l1_offset_and_range_are_parts_of_the_whole_ranking(filled):
    table, truth, _ = filled
    query = [0.1, -0.2, 0.3, 0.0]
    ids, distances = brute(truth, query)
    for offset, k in ((0, 7), (5, 7), (100, 50), (1000, 3)):
        found = table.search("vec", query, k=k, offset=offset, columns=["id"])
        assert found["id"].to_pylist() == ids[offset : offset + k]
    for lower, upper in ((None, 2.0), (1.5, None), (1.0, 4.0), (0.0, 0.0), (1e9, None)):
        inside = [
            i
            for i, d in zip(ids, distances, strict=True)
            if (lower is None or d >= lower) and (upper is None or d < upper)
        ]
        found = table.search("vec", query, k=8, distance_range=(lower, upper), columns=["id"])
        assert found["id"].to_pylist() == inside[:8]
        found = table.search("vec", query, k=500, offset=2, distance_range=(lower, upper))
        assert found["id"].to_pylist() == inside[2:]
    words = table.search("text", "fox", k=100)["_score"].to_pylist()
    part = table.search("text", "fox", k=5, offset=3)["_score"].to_pylist()
    assert part == pytest.approx(words[3:8], rel=1e-5)


def test_l1_a_batch_is_each_of_its_queries(filled):
    table, truth, writer = filled
    queries = np.random.default_rng(1).normal(size=(5, DIM)).astype("f4")
    found = table.search("vec", queries, k=6)
    assert Counter(found["query_index"].to_pylist()) == dict.fromkeys(range(5), 6)
    for number, query in enumerate(queries):
        mine = [row["id"] for row in found.to_pylist() if row["query_index"] == number]
        assert mine == brute(truth, query)[0][:6]
    assert table.search("vec", queries.tolist(), k=6) == found
    words = table.search("text", ["fox", Phrase("cat dog"), "nowhere"], k=3)
    single = table.search("text", "fox", k=3)
    mine = words.filter(pa.compute.field("query_index") == 0)
    assert mine["_score"].to_pylist() == single["_score"].to_pylist()
    assert 2 not in words["query_index"].to_pylist()
    (own,) = writer.shard_writers().values()
    assert own.search("vec", queries, k=6, columns=["id"])["id"] == found["id"]


def test_l2_a_hybrid_search_fuses_ranks_by_key(filled):
    table, truth, _ = filled
    query, words, k = [0.5, 0.1, -0.3, 0.2], Boolean(must=["fox"], should=["owl"]), 8
    weights = {"vec": 2.0, "text": 1.0}
    by_vector = table.search("vec", query, k=100)["id"].to_pylist()
    by_text = table.search("text", words, k=100)["id"].to_pylist()
    score = Counter()
    for column, ids in (("vec", by_vector), ("text", by_text)):
        for rank, i in enumerate(ids):
            score[i] += weights[column] / (60 + rank + 1)
    best = sorted(score.values(), reverse=True)
    found = table.hybrid_search({"vec": query, "text": words}, k=k, weights=weights)
    assert found["_relevance_score"].to_pylist() == pytest.approx(best[:k], rel=1e-6)
    for row in found.to_pylist():
        assert row["_relevance_score"] == pytest.approx(score[row["id"]], rel=1e-6)
        assert {name: row[name] for name in ("id", "x", "text", "vec")} == truth[row["id"]]
    later = table.hybrid_search({"vec": query, "text": words}, k=3, weights=weights, offset=5)
    assert later["id"].to_pylist() == found["id"].to_pylist()[5:8]
    narrowed = table.hybrid_search({"vec": query, "text": words}, filter="x = 1", columns=["x"])
    assert set(narrowed["x"].to_pylist()) == {1}
    assert narrowed.column_names == ["x", "_relevance_score"]


@pytest.mark.parametrize(
    ("queries", "options", "message"),
    [
        ({"vec": [0.0] * DIM}, {}, "two columns or more"),
        ("fox", {}, "takes a dict"),
        ({"vec": [[0.0] * DIM], "text": "fox"}, {}, "one query for 'vec'"),
        ({"vec": [0.0] * DIM, "text": "fox"}, {"weights": {"x": 1}}, "weights name 'x'"),
        ({"vec": [0.0] * DIM, "text": "fox"}, {"weights": {"vec": -1}}, "zero or more"),
        ({"vec": [0.0] * DIM, "text": "fox"}, {"depth": 0}, "depth"),
        ({"vec": [0.0] * DIM, "text": "fox"}, {"k": 0}, "k must be"),
    ],
)
def test_what_cannot_be_fused_says_why(filled, queries, options, message):
    with pytest.raises(weir.InvalidInput, match=message):
        filled[0].hybrid_search(queries, **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Match("fox", operator="xor"), "'or' or 'and'"),
        (lambda: Phrase(3), "takes text"),
        (lambda: Boolean(must_not=["fox"]), "must or should"),
        (lambda: Boolean(must=[3]), "takes text, Match, Phrase or Boolean"),
    ],
)
def test_a_query_that_says_nothing_is_refused(make, message):
    with pytest.raises(weir.InvalidInput, match=message):
        make()


TAKEN = {
    "_distance": lambda table: table.search("vec", [0.0, 1.0]),
    "_score": lambda table: table.search("text", "fox"),
    "_relevance_score": lambda table: table.hybrid_search({"vec": [0.0, 1.0], "text": "fox"}),
    "query_index": lambda table: table.search("text", ["fox", "dog"]),
}


@pytest.mark.parametrize("level", ["log", "base"])
@pytest.mark.parametrize("name", TAKEN)
def test_a_column_of_the_name_that_a_search_adds_is_refused_in_words(tmp_path, name, level):
    """In memory the result had two columns of that name; Lance failed for reasons of its own."""
    taken = pa.field(name, pa.int64())
    text, vec = pa.field("text", pa.utf8()), pa.field("vec", pa.list_(pa.float32(), 2))
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), text, vec, taken])
    table = weir.create(str(tmp_path / "t"), schema, primary_key="id")
    with table.writer() as writer:
        writer.put([{"id": 1, "text": "fox", "vec": [0.0, 1.0], name: 7}])
    if level == "base":
        table.compact(fold_wal=True)
    with pytest.raises(weir.InvalidInput, match=rf"rename_column\('{name}'"):
        TAKEN[name](table)
    table.rename_column(name, "mine")
    assert TAKEN[name](table).column("mine")[0].as_py() == 7


def test_append_only_rankings_have_no_key_to_fuse_by(tmp_path):
    table = weir.create(str(tmp_path / "t"), SCHEMA)
    with pytest.raises(weir.InvalidInput, match="needs a primary key"):
        table.hybrid_search({"vec": [0.0] * DIM, "text": "fox"})
