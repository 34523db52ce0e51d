"""Filters that Spark pushes down: each means the same to Lance, or is left to Spark."""

import datetime as dt
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThan,
)

import weir
from weir.spark.pushdown import as_sql

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("u8", pa.uint8()),
        ("u64", pa.uint64()),
        ("i8", pa.int8()),
        ("a`b", pa.int64()),
    ]
)
LEAST, MOST = -(1 << 63), (1 << 63) - 1


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        (EqualTo(("id",), LEAST), None),
        (EqualTo(("id",), LEAST + 1), []),
        (EqualTo(("id",), MOST), [MOST]),
        (LessThan(("u8",), 256), None),
        (LessThan(("u8",), 255), [1]),
        (GreaterThanOrEqual(("u8",), -1), None),
        (GreaterThanOrEqual(("u8",), 0), [1, MOST]),
        (EqualTo(("i8",), 200), None),
        (In(("u8",), (1, 300)), None),
        (LessThan(("u64",), 1 << 64), None),
        (EqualTo(("u64",), MOST), [MOST]),
        (EqualTo(("a`b",), 1), None),
    ],
)
def test_l3_a_literal_that_the_column_cannot_hold_is_left_to_spark(
    tmp_path: Path, filter: Filter, expected: list[int] | None
) -> None:
    text = as_sql(filter, SCHEMA)
    assert (text is None) == (expected is None)
    table = weir.create(str(tmp_path / "t"), SCHEMA.remove(4), primary_key="id")
    with table.writer() as writer:
        rows = [{"id": 1, "u8": 1, "u64": 1, "i8": 1}, {"id": MOST, "u8": 255, "u64": MOST}]
        writer.put(rows)
    table.compact()
    if text is not None:
        assert sorted(table.scan(filter=text).to_table()["id"].to_pylist()) == expected


NAN, TIME = float("nan"), dt.datetime.fromisoformat("2020-01-01T00:00:00.123456")
UTC = TIME.replace(tzinfo=dt.UTC)
STEP = dt.timedelta(microseconds=1)
VALUES = pa.table(
    {
        "id": pa.array([0, 1, 2, 3], pa.int64()),
        "x": [1.5, -0.0, NAN, None],
        "f": pa.array([1.5, 0.0, NAN, None], pa.float32()),
        "d": pa.array([Decimal("1.49"), Decimal("1.50"), None, None], pa.decimal128(10, 2)),
        "ts": pa.array([UTC - STEP, UTC, UTC + STEP, None], pa.timestamp("us", "UTC")),
        "nt": pa.array([TIME - STEP, TIME, TIME + STEP, None], pa.timestamp("us")),
        "ns": pa.array([TIME - STEP, TIME, TIME + STEP, None], pa.timestamp("ns")),
        "s": pa.array(
            [{"a": 1, "t": {"c": "x"}}, {"a": 2, "t": {"c": "y"}}, {"a": None, "t": None}, None],
            pa.struct([("a", pa.int64()), ("t", pa.struct([("c", pa.utf8())]))]),
        ),
    }
)


@pytest.mark.parametrize("is_folded", [True, False], ids=["base", "log"])
def test_l3_what_lance_makes_of_a_filter_is_what_spark_makes_of_it(
    tmp_path: Path, is_folded: bool
) -> None:
    """Only rows that Spark would keep may not be lost; None: the filter is left to Spark."""
    columns = pa.schema([VALUES.schema.field(0).with_nullable(False), *list(VALUES.schema)[1:]])
    table = weir.create(str(tmp_path / "t"), columns, primary_key="id")
    with table.writer(weir.WriterConfig(enable_memtable=is_folded)) as writer:
        writer.put(VALUES)
    if is_folded:
        table.compact()
    shift = dt.timezone(dt.timedelta(hours=5))
    cases: list[tuple[Filter, list[int] | None]] = [
        (GreaterThan(("x",), 1.0), [0, 2]),
        (LessThan(("x",), 2.5e22), [0, 1]),
        (EqualTo(("x",), 0.0), None),
        (In(("x",), (1.5, NAN)), None),
        (EqualTo(("f",), 1.5), None),
        (EqualTo(("d",), Decimal("1.5")), [1]),
        (LessThan(("d",), Decimal("1.50")), [0]),
        (EqualTo(("d",), Decimal("1.501")), None),
        (EqualTo(("ts",), UTC.astimezone(shift)), [1]),
        (GreaterThan(("ts",), UTC), [2]),
        (EqualTo(("ts",), TIME), None),
        (GreaterThanOrEqual(("nt",), TIME), [1, 2]),
        (EqualTo(("ns",), TIME), None),
        (EqualTo(("s", "a"), 2), [1]),
        (IsNull(("s", "a")), [2, 3]),
        (EqualTo(("s", "t", "c"), "y"), [1]),
        (EqualTo(("s", "nothing"), 1), None),
        (EqualTo(("id", "a"), 1), None),
    ]
    for filter, expected in cases:
        text = as_sql(filter, columns)
        assert (text is None) == (expected is None), filter
        if text is not None:
            found = table.scan(columns=["id"], filter=text).to_table()["id"].to_pylist()
            assert sorted(found) == expected, text
