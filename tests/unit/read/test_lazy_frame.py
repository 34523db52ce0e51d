"""polars reads a scan lazily: its pushdown changes what is read, never the result."""

from datetime import UTC, date, datetime
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

import weir
from weir.read.lazy_frame import as_arrow

NAN = float("nan")
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("small", pa.int8()),
        pa.field("f", pa.float64()),
        pa.field("g", pa.float32()),
        pa.field("s", pa.string()),
        pa.field("b", pa.bool_()),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("fine", pa.timestamp("ns")),
        pa.field("u", pa.uint64()),
    ]
)


def row(n: int) -> dict[str, object]:
    floats = [0.0, -0.0, NAN, -NAN, 1.1, -3.5, None, float("inf")]
    return {
        "id": n,
        "small": None if n % 5 == 0 else n % 7 - 3,
        "f": floats[n % 8],
        "g": floats[n % 8],
        "s": [None, "", "it's", "é", "z"][n % 5],
        "b": [True, False, None][n % 3],
        "day": date(2024, 1, 1 + n % 9),
        "at": datetime(2024, 1, 1, 0, 0, n % 9, 500 * n, tzinfo=UTC),
        "fine": n * 1_000_000_001,
        "u": 2**64 - 1 - n if n % 2 else n,
    }


def rows(first: int, last: int) -> pa.Table:
    return pa.Table.from_pylist([row(n) for n in range(first, last)], schema=SCHEMA)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> weir.Table:
    """Rows in the base, in an SSTable and in the log; some of them replaced."""
    made = weir.create(tmp_path_factory.mktemp("lazy") / "t", SCHEMA, primary_key="id")
    for first, last in ((0, 20), (15, 30), (25, 40)):
        with made.writer() as writer:
            writer.put(rows(first, last))
        if first == 0:
            made.compact()
    return made


C = pl.col
PREDICATES = {
    "int": C("id") > 12,
    "mirrored": pl.lit(12) > C("id"),
    "beyond int8": C("small") < 300,
    "not equal": C("small") != 2,
    "equal zero": C("f") == 0.0,
    "from minus zero": C("f") >= -0.0,
    "below zero": C("f") < 0.0,
    "NaN is the largest": C("f") > 1.0,
    "NaN is itself": C("f") == NAN,
    "float": C("f") <= 1.1,
    "float32": C("g") <= 1.1,
    "text": (C("s") == "it's") | (C("s") > "y"),
    "null": C("s").is_null() & C("small").is_not_null(),
    "bool": C("b") == True,  # noqa: E712
    "bare bool": C("b"),
    "not": ~(C("id") > 12),
    "not null or": ~C("b") | (C("f") > 1),
    "day": C("day") >= date(2024, 1, 5),
    "time": C("at") < datetime(2024, 1, 1, 0, 0, 4, 2000, tzinfo=UTC),
    "nanoseconds": C("fine") <= pl.lit(12_000_000_012, pl.Int64).cast(pl.Datetime("ns")),
    "between": C("id").is_between(5, 9, closed="left"),
    "unsigned": C("u") >= 2**63,
    "function": C("s").str.starts_with("it") & (C("id") < 30),
    "is in": C("id").is_in([1, 7, 99]),
    "is in, where null is": C("small").is_in([1, None], nulls_equal=True),
    "is not in, beside null": ~C("small").is_in([1, None]),
    "is in, or is null": C("small").is_in([1, 2]).is_null(),
    "a null": pl.lit(None, dtype=pl.Boolean),
    "neither": ~(C("small").is_in([1, None]) | (C("fine") == C("fine").max())),
    "two columns": C("id") > C("small"),
    "a user's, which needs a row": C("id").map_batches(
        lambda ids: ids > 12 + 0 * ids[0], return_dtype=pl.Boolean
    ),
}


@pytest.mark.parametrize("name", PREDICATES)
def test_a_lazy_filter_finds_what_an_eager_one_does(table: weir.Table, name: str) -> None:
    predicate = PREDICATES[name]
    frame = table.scan().to_polars()
    expected = frame.filter(predicate).sort("id")
    assert table.scan().lazy().filter(predicate).collect().sort("id").equals(expected)
    limited = table.scan(filter="id < 33").lazy().filter(predicate).select("id", "s").collect()
    assert limited.sort("id").equals(expected.filter(C("id") < 33).select("id", "s"))


def test_what_all_compare_alike_is_pushed_down(table: weir.Table) -> None:
    for filter in (None, "id < 33", pa.compute.field("id") < 33):
        scan = table.scan(filter=filter)
        found = {name: as_arrow(predicate, scan) for name, predicate in PREDICATES.items()}
        pushed = {name: str(expression) for name, expression in found.items()}
        assert pushed["int"] == "(id > 12)"
        assert pushed["text"] == """((s == "it's") or (s > "y"))"""
        assert pushed["day"] == "(day >= 2024-01-05)"
        assert pushed["time"] == "(at < 2024-01-01 00:00:04.002000Z)"
        assert pushed["between"] == "((id >= 5) and (id < 9))"
        assert pushed["function"] == "(id < 30)"  # the rest is left to polars
        floats = {"equal zero", "from minus zero", "below zero", "NaN is the largest", "float"}
        floats |= {"NaN is itself", "float32", "not null or"}
        left = {name for name, expression in found.items() if expression is None}
        assert left == floats | {
            "beyond int8", "nanoseconds", "unsigned", "two columns", "a user's, which needs a row",
            "is in, where null is", "is not in, beside null", "is in, or is null", "a null",
            "neither",
        }  # fmt: skip
    both = (C("f") > 1) & (C("id") > 3) & C("s").is_null()
    assert str(as_arrow(both, table.scan())) == "((id > 3) and is_null(s, {nan_is_null=false}))"
    either = (C("f") > 1) | (C("id") > 3)
    assert as_arrow(either, table.scan()) is None


def test_a_limit_comes_before_a_filter_that_follows_it(table: weir.Table) -> None:
    lazy = table.scan(["id"]).lazy()
    assert lazy.filter(C("id") >= 30).head(3).collect().height == 3
    first = lazy.head(5).collect()["id"].to_list()
    after = lazy.head(5).filter(C("id") >= 30).collect()["id"].to_list()
    assert after == [n for n in first if n >= 30]
    assert lazy.select(pl.len()).collect().item() == 40


def test_each_collect_is_fresh_and_columns_may_be_computed(tmp_path: Path) -> None:
    made = weir.create(tmp_path / "t", SCHEMA, primary_key="id")
    lazy = made.scan({"id": "id", "twice": "id * 2"}).lazy()
    assert lazy.collect().height == 0
    with made.writer() as writer:
        writer.put(rows(0, 5))
    assert lazy.filter(C("twice") > 4).sort("id").collect().rows() == [(3, 6), (4, 8)]
    assert lazy.filter(C("id") > 3).select("twice").collect().rows() == [(8,)]
    with pytest.raises(weir.InvalidInput, match="lazy frame"):
        made.scan(limit=3).lazy()


def test_a_frame_made_before_the_columns_changed_has_its_columns_or_says_which_is_gone(
    tmp_path: Path,
) -> None:
    made = weir.create(tmp_path / "t", SCHEMA, primary_key="id")
    with made.writer() as writer:
        writer.put(rows(0, 5))
    lazy = made.scan().lazy()
    made.add_columns({"more": "id + 1"})
    assert lazy.collect().columns == SCHEMA.names
    made.drop_columns("s")
    assert lazy.select("id").collect().height == 5
    with pytest.raises(weir.InvalidInput, match="no column 's'"):
        lazy.collect()
