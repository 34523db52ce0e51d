"""`create_index`, `create_fts_index`, `indexes` and `drop_index`: answers never change by them."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest

import weir
from weir import aio
from weir.env import Env
from weir.errors import CommitConflict, InvalidInput

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("n", pa.int64()),
        pa.field("word", pa.string()),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("vec", pa.list_(pa.float32(), 8)),
    ]
)


def row(number: int, word: str = "old") -> dict[str, object]:
    vector = np.random.default_rng(number).random(8, np.float32)
    tags = ["even" if number % 2 == 0 else "odd"]
    return {"id": number, "n": number, "word": f"{word} {number}", "tags": tags, "vec": vector}


def put(table: weir.Table, *rows: dict[str, object]) -> None:
    with table.writer() as writer:
        writer.put(list(rows))


@pytest.fixture
def table(tmp_path: Path) -> weir.Table:
    made = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id")
    put(made, *(row(number) for number in range(300)))
    made.compact()
    return made


def answers(table: weir.Table) -> list[object]:
    """What searches and filters find, over the base, SSTables and the log."""
    near = table.search("vec", row(7)["vec"], k=5, nprobes=100)
    return [
        near["id"].to_pylist(),
        sorted(table.search("word", "fresh", k=10)["id"].to_pylist()),
        sorted(table.scan(["id"], "n = 7 or n = 1000").to_table()["id"].to_pylist()),
        table.count("array_has_any(tags, ['odd'])"),
        table.count("word = 'old 7' or word = 'fresh 8'"),
    ]


def versions(table: weir.Table) -> int:
    return int(lance.dataset(table.uri).version)


def test_the_kind_is_chosen_by_the_column_and_rows_are_counted(table: weir.Table) -> None:
    assert [table.create_index(name) for name in ("n", "word", "tags", "vec")] == [
        "n_idx",
        "word_idx",
        "tags_idx",
        "vec_idx",
    ]
    assert table.create_fts_index("word") == "word_text_idx"
    found = {index.name: index for index in table.indexes()}
    assert {name: index.kind for name, index in found.items()} == {
        "n_idx": "btree",
        "tags_idx": "label_list",
        "vec_idx": "ivf_flat",
        "word_idx": "btree",
        "word_text_idx": "text",
    }
    assert found["vec_idx"].columns == ("vec",)
    assert found["vec_idx"].metric == "l2"
    assert found["n_idx"].metric is None
    assert {(i.rows_indexed, i.rows_not_indexed) for i in found.values()} == {(300, 0)}
    put(table, *(row(number) for number in range(300, 320)))
    table.compact(indexes=False)
    assert {(i.rows_indexed, i.rows_not_indexed) for i in table.indexes()} == {(300, 20)}
    put(table, row(400))
    table.compact()
    assert {(i.rows_indexed, i.rows_not_indexed) for i in table.indexes()} == {(321, 0)}


def test_no_index_changes_what_searches_and_filters_find(table: weir.Table) -> None:
    put(table, row(8, "fresh"), row(1000, "fresh"))  # in an SSTable
    with table.writer() as writer:
        writer.put([row(9, "fresh")])  # in the log
        writer.delete([1])
        before = answers(table)
        assert before[1] == [8, 9, 1000]
        kinds = ("btree", "bitmap", "zonemap", "bloomfilter")
        for kind in kinds:
            table.create_index("n", kind, name=f"n_{kind}")
        for kind in ("ivf_flat", "ivf_sq", "ivf_pq", "ivf_hnsw_sq", "ivf_hnsw_pq"):
            table.create_index("vec", kind, replace=True, metric="l2")
        table.create_index("word", "ngram")
        table.create_index("tags")
        table.create_fts_index("word", with_position=True, stem=False)
        assert len(table.indexes()) == 8
        assert answers(table) == answers(weir.open(table.uri)) == before
    table.compact()
    assert answers(table) == before
    for index in table.indexes():
        table.drop_index(index.name)
    assert table.indexes() == []
    assert answers(table) == answers(weir.open(table.uri)) == before


def test_writers_opened_later_build_the_index_into_their_sstables(table: weir.Table) -> None:
    assert table.gc(min_age=0).ok  # takes the SSTable away that is in the base
    table.create_fts_index("word", stem=False)
    put(table, row(500, "running"))
    (sstable,) = [path.parent for path in Path(table.uri).glob("_mem_wal/*/*/_versions")]
    names = [index.name for index in lance.dataset(str(sstable)).describe_indices()]
    assert "word_idx" in names
    assert table.search("word", "running")["id"].to_pylist() == [500]
    assert table.search("word", "run").num_rows == 0


def test_an_index_on_an_empty_base_takes_in_what_comes(tmp_path: Path) -> None:
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id")
    for name in ("n", "vec"):
        table.create_index(name)
    table.create_fts_index("word")
    put(table, *(row(number, "fresh") for number in range(40)))
    table.compact()
    assert [(i.rows_indexed, i.rows_not_indexed) for i in table.indexes()] == [(40, 0)] * 3
    assert table.search("vec", row(7)["vec"], k=1)["id"].to_pylist() == [7]


WRONG: dict[str, tuple[Callable[[weir.Table], object], str]] = {
    "column": (lambda t: t.create_index("nope"), r"no column 'nope'; it has \['id', 'n'"),
    "kind": (lambda t: t.create_index("n", "tree"), "kind must be one of"),  # type: ignore[arg-type]
    "vectors": (lambda t: t.create_index("n", "ivf_pq"), "'n' is int64"),
    "plain": (lambda t: t.create_index("vec", "btree"), "leave the kind out"),
    "text": (lambda t: t.create_fts_index("n"), "'n' is int64; an index 'text' is for text"),
    "labels": (lambda t: t.create_index("n", "label_list"), "lists of plain values"),
    "metric": (lambda t: t.create_index("vec", metric="hamming"), "metric must be one of"),
    "metric of numbers": (lambda t: t.create_index("n", metric="l2"), "for vector indexes"),
    "sub-vectors": (
        lambda t: t.create_index("vec", "ivf_pq", num_sub_vectors=3),
        "must divide the 8 dimensions",
    ),
    "partitions": (lambda t: t.create_index("vec", num_partitions=0), "above 0"),
    "reserved name": (lambda t: t.create_index("n", name="__lance_mem_wal"), "another"),
    "again": (lambda t: t.create_index("word"), "replace=True"),
    "another column's": (
        lambda t: t.create_index("n", name="word_idx", replace=True),
        "drop it first",
    ),
    "words": (lambda t: t.create_fts_index("word", base_tokenizer="x"), "unknown base tokenizer"),
    "to drop": (lambda t: t.drop_index("n_idx"), r"no index 'n_idx'; it has \['word_idx'\]"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_does_not_fit_is_refused_and_nothing_is_written(table: weir.Table, wrong: str) -> None:
    table.create_index("word")
    before = versions(table), table.indexes()
    act, told = WRONG[wrong]
    with pytest.raises(InvalidInput, match=told):
        act(table)
    assert (versions(table), table.indexes()) == before


def test_replace_makes_it_anew_under_its_name(table: weir.Table) -> None:
    table.create_index("vec", name="near", metric="cosine")
    assert table.create_index("vec", "ivf_pq", replace=True) == "near"
    (found,) = table.indexes()
    assert (found.name, found.kind, found.metric) == ("near", "ivf_pq", "l2")


def rewriting(table: weir.Table, times: int) -> tuple[weir.Table, list[str]]:
    """The table in a handle in which another process rewrites the base's files, that often, just
    before an index is made."""
    seen: list[str] = []

    def beside(point: str) -> None:
        if point == "index.opened":
            seen.append(point)
            if len(seen) <= times:
                lance.dataset(table.uri).delete(f"id = {len(seen)}")
                lance.dataset(table.uri).optimize.compact_files(materialize_deletions_threshold=0.0)

    return weir.open(table.uri, env=Env(failpoint=beside)), seen


def test_a_commit_beside_it_is_tried_again(table: weir.Table) -> None:
    handle, seen = rewriting(table, times=2)
    handle.create_index("n")
    assert len(seen) == 3
    (found,) = table.indexes()
    assert (found.rows_indexed, found.rows_not_indexed) == (298, 0)
    assert table.count("n = 5") == 1


def test_commits_beside_it_without_end_are_reported(table: weir.Table) -> None:
    handle, seen = rewriting(table, times=100)
    with pytest.raises(CommitConflict, match="when no compaction runs"):
        handle.create_index("n")
    assert len(seen) == 5
    assert table.indexes() == []


def test_other_threads_read_through_the_handle_while_an_index_is_made(table: weir.Table) -> None:
    """A call that changes a handle of pylance borrows it exclusively; readers have another."""
    wrong: list[BaseException] = []
    done = False

    async def run() -> None:
        nonlocal done
        other = aio.Table(table)

        async def read() -> None:
            while not done:
                try:
                    assert await other.count("n >= 0") == 300
                except BaseException as error:
                    wrong.append(error)
                    return

        readers = [asyncio.create_task(read()) for _ in range(2)]
        for name in ("n", "vec"):
            await other.create_index(name)
        await other.create_fts_index("word")
        await other.drop_index("n_idx")
        done = True
        await asyncio.gather(*readers)
        assert [index.name for index in await other.indexes()] == ["vec_idx", "word_idx"]

    asyncio.run(run())
    assert wrong == []


def test_a_clone_has_its_own_say_over_borrowed_indexes(table: weir.Table, tmp_path: Path) -> None:
    table.create_index("n")
    table.create_index("vec")
    copy = table.clone(str(tmp_path / "copy"))
    assert [index.is_borrowed for index in copy.indexes()] == [True, True]
    copy.drop_index("n_idx")
    copy.create_index("vec", replace=True)
    assert [(i.name, i.is_borrowed) for i in copy.indexes()] == [("vec_idx", False)]
    put(copy, row(600))
    assert copy.compact(rewrite=True).notes == [], "with no borrowed index files are rewritten"
    assert copy.gc(min_age=0).ok
    assert [index.name for index in table.indexes()] == ["n_idx", "vec_idx"]
    for one in (table, weir.open(table.uri), copy):
        assert one.search("vec", row(7)["vec"], k=1)["id"].to_pylist() == [7]
        assert one.count("n = 7") == 1


def test_a_handle_of_a_dropped_table_makes_no_index(table: weir.Table) -> None:
    weir.drop(table.uri)
    other = weir.create(table.uri, SCHEMA, primary_key="id")
    with pytest.raises(weir.NotAWeirTable):
        table.create_index("n")
    with pytest.raises(weir.NotAWeirTable):
        table.drop_index("n_idx")
    assert other.indexes() == []
