"""Every pair of a Python value and an Arrow type: stored exactly, or refused by column name."""

import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from uuid import UUID

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from weir.errors import SchemaMismatch
from weir.format import python_values
from weir.format.exact import cast_exactly, is_castable
from weir.format.python_values import from_python

NOW = datetime(2026, 11, 16, 2, 3, 4)  # noqa: DTZ001
FINE = NOW.replace(microsecond=500)
NANO = pd.Timestamp("2026-11-16T02:03:04.000000001")
UUID_ = UUID(int=7)

VALUES = {
    "int": 73,
    "large int": 2**53 + 1,
    "negative": -1,
    "whole float": 73.0,
    "half": 73.5,
    "tenth": 0.1,
    "huge": 1e300,
    "70000": 70000.0,
    "nan": math.nan,
    "inf": math.inf,
    "bool": True,
    "text": "73",
    "surrogate": "\ud800",
    "bytes": b"73",
    "bytearray": bytearray(b"73"),
    "decimal": Decimal("73.25"),
    "whole decimal": Decimal(73),
    "date": NOW.date(),
    "datetime": NOW,
    "fine datetime": FINE,
    "aware": NOW.replace(tzinfo=UTC),
    "elsewhere": NOW.replace(tzinfo=timezone(timedelta(hours=2))),
    "time": time(1, 2, 3),
    "fine time": time(1, 2, 3, 4),
    "span": timedelta(seconds=1),
    "fine span": timedelta(seconds=1.5),
    "uuid": UUID_,
    "np int": np.int8(73),
    "np uint": np.uint64(2**63 + 1),
    "np float32": np.float32(0.1),
    "np bool": np.bool_(True),
    "np str": np.str_("73"),
    "np day": np.datetime64("2026-11-16"),
    "np second": np.datetime64("2026-11-16T02:03:04"),
    "np nano": np.datetime64("2026-11-16T02:03:04.000000001"),
    "np span": np.timedelta64(1500, "ms"),
    "pd nano": NANO,
    "pd aware": NANO.tz_localize("UTC"),
    "pd span": pd.Timedelta(1, "ns"),
    "list": [1, 2],
    "halves": [1.5, 2.5],
    "array": np.array([1.5, 2.5]),
    "dict": {"x": 1},
    "more": {"x": 1, "zz": 2},
    "object": object(),
}
TYPES = [
    pa.int8(),
    pa.int32(),
    pa.int64(),
    pa.uint8(),
    pa.uint64(),
    pa.float16(),
    pa.float32(),
    pa.float64(),
    pa.bool_(),
    pa.bool8(),
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.binary(),
    pa.large_binary(),
    pa.binary(2),
    pa.binary(16),
    pa.uuid(),
    pa.decimal128(20, 2),
    pa.decimal256(20, 0),
    pa.date32(),
    pa.date64(),
    pa.time32("s"),
    pa.time64("us"),
    pa.timestamp("s"),
    pa.timestamp("us"),
    pa.timestamp("ns"),
    pa.timestamp("us", "UTC"),
    pa.timestamp("ns", "Europe/Berlin"),
    pa.duration("s"),
    pa.duration("us"),
    pa.duration("ns"),
    pa.dictionary(pa.int32(), pa.string()),
    pa.list_(pa.int32()),
    pa.large_list(pa.float32()),
    pa.list_(pa.float64(), 2),
    pa.struct([("x", pa.int32())]),
    pa.map_(pa.string(), pa.int64()),
]


def number(value):
    """The exact value of a number; None for anything else."""
    if isinstance(value, bool | np.bool_ | np.timedelta64):
        return None
    if isinstance(value, float | np.floating) and not math.isfinite(value):
        return str(float(value))
    if isinstance(value, int | float | Decimal | np.integer | np.floating):
        return Fraction(value.item() if isinstance(value, np.generic) else value)
    return None


def nanoseconds(value):
    """A moment or span as (kind, has a zone, nanoseconds); None for anything else."""
    if isinstance(value, pd.Timestamp | np.datetime64):
        stamp = pd.Timestamp(value)
        return "moment", stamp.tzinfo is not None, stamp.as_unit("ns").value
    if isinstance(value, datetime):
        return nanoseconds(pd.Timestamp(value))
    if isinstance(value, timedelta | np.timedelta64):
        return "span", None, pd.Timedelta(value).as_unit("ns").value
    return None


def same(value, stored) -> bool:
    """An oracle that knows only Python's values."""
    if isinstance(value, np.datetime64) and value.dtype == np.dtype("datetime64[D]"):
        return type(stored) is date and stored == value.item()
    if number(value) is not None:
        return number(value) == number(stored)
    if nanoseconds(value) is not None:
        return nanoseconds(value) == nanoseconds(stored)
    if isinstance(value, bool | np.bool_):
        return isinstance(stored, bool) and stored == bool(value)
    if isinstance(value, UUID):
        return stored in (value, value.bytes)
    if isinstance(value, list | np.ndarray):
        return len(value) == len(stored) and all(map(same, value, stored))
    if isinstance(value, dict):
        pairs = dict(stored) if isinstance(stored, list) else stored
        return value.keys() == pairs.keys() and all(same(v, pairs[k]) for k, v in value.items())
    return type(stored) in (type(value), str, bytes) and stored == value


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", VALUES)
def test_m9_a_value_is_held_exactly_or_refused(name: str, dtype: pa.DataType) -> None:
    value = VALUES[name]
    try:
        column = from_python([None, value], dtype, "c")
    except SchemaMismatch as error:
        assert "'c" in str(error)  # noqa: PT017
        return
    assert column.type == dtype
    column.validate(full=True)
    assert column.to_pylist()[0] is None
    assert same(value, column.to_pylist()[1]), column.to_pylist()


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("int", pa.int8()),
        ("int", pa.float16()),
        ("int", pa.decimal128(20, 2)),
        ("large int", pa.uint64()),
        ("whole float", pa.int64()),
        ("half", pa.float32()),
        ("tenth", pa.float64()),
        ("nan", pa.float32()),
        ("inf", pa.float16()),
        ("bool", pa.bool_()),
        ("bool", pa.bool8()),
        ("text", pa.string_view()),
        ("text", pa.dictionary(pa.int32(), pa.string())),
        ("bytes", pa.binary(2)),
        ("decimal", pa.decimal128(20, 2)),
        ("decimal", pa.float32()),
        ("whole decimal", pa.int64()),
        ("date", pa.date32()),
        ("date", pa.date64()),
        ("datetime", pa.timestamp("s")),
        ("fine datetime", pa.timestamp("ns")),
        ("aware", pa.timestamp("us", "UTC")),
        ("elsewhere", pa.timestamp("ns", "Europe/Berlin")),
        ("time", pa.time32("s")),
        ("span", pa.duration("s")),
        ("uuid", pa.uuid()),
        ("uuid", pa.binary(16)),
        ("np uint", pa.uint64()),
        ("np float32", pa.float32()),
        ("np day", pa.date32()),
        ("np nano", pa.timestamp("ns")),
        ("pd nano", pa.timestamp("ns")),
        ("pd aware", pa.timestamp("ns", "Europe/Berlin")),
        ("pd span", pa.duration("ns")),
        ("list", pa.list_(pa.int32())),
        ("halves", pa.large_list(pa.float32())),
        ("array", pa.list_(pa.float64(), 2)),
        ("dict", pa.struct([("x", pa.int32())])),
        ("more", pa.map_(pa.string(), pa.int64())),
    ],
    ids=str,
)
def test_what_fits_is_taken(name: str, dtype: pa.DataType) -> None:
    assert same(VALUES[name], from_python([VALUES[name]], dtype, "c").to_pylist()[0])


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("half", pa.int64()),
        ("large int", pa.float64()),
        ("huge", pa.float32()),
        ("70000", pa.float16()),
        ("tenth", pa.float32()),
        ("bool", pa.int64()),
        ("int", pa.bool_()),
        ("text", pa.int64()),
        ("int", pa.string()),
        ("bytes", pa.string()),
        ("text", pa.binary()),
        ("surrogate", pa.string()),
        ("datetime", pa.date32()),
        ("date", pa.timestamp("us")),
        ("fine datetime", pa.timestamp("s")),
        ("fine span", pa.duration("s")),
        ("aware", pa.timestamp("us")),
        ("datetime", pa.timestamp("us", "UTC")),
        ("int", pa.timestamp("us")),
        ("pd nano", pa.timestamp("us")),
        ("halves", pa.list_(pa.int32())),
        ("more", pa.struct([("x", pa.int32())])),
        ("text", pa.list_(pa.string())),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(name: str, dtype: pa.DataType) -> None:
    with pytest.raises(SchemaMismatch, match="'c"):
        from_python([VALUES[name]], dtype, "c")


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(
    "name", [n for n in VALUES if n not in ("surrogate", "object", "dict", "more")]
)
def test_m9_the_arrow_door_has_the_same_rule(name: str, dtype: pa.DataType) -> None:
    """pyarrow's own conversion of a value is accepted or refused like the value itself."""
    value = VALUES[name]
    if isinstance(value, np.generic):
        natural = pa.array(np.array([value]))
    elif isinstance(value, pd.Timestamp | pd.Timedelta | UUID):
        natural = (
            pa.array([value], type=pa.uuid())
            if isinstance(value, UUID)
            else pa.array(pd.Series([value]))
        )
    else:
        natural = pa.array([value])

    def outcome(make):
        try:
            return make().to_pylist()
        except SchemaMismatch:
            return "refused"

    by_python = outcome(lambda: from_python([value], dtype, "c"))
    by_arrow = outcome(lambda: cast_exactly(natural, dtype, "c"))
    assert repr(by_python) == repr(by_arrow)


def test_kinds_of_values_mix_in_one_column_and_keep_their_order() -> None:
    values = [1, 2.0, None, np.int8(3), Decimal(4), 5]
    assert from_python(values, pa.int64(), "c").to_pylist() == [1, 2, None, 3, 4, 5]


def test_numbers_in_a_list_are_rounded_and_never_to_infinity() -> None:
    vector = pa.list_(pa.float32(), 2)
    assert from_python([[0.1, 0.2]], vector, "v").to_pylist() == [
        [np.float32(0.1), np.float32(0.2)]
    ]
    wide = pa.array([[0.1, 0.2]], pa.list_(pa.float64()))
    assert cast_exactly(wide, vector, "v").to_pylist() == [[np.float32(0.1), np.float32(0.2)]]
    for values in ([1e300, 0.0], [0.0, -1e300]):
        with pytest.raises(SchemaMismatch, match="v"):
            from_python([values], vector, "v")
        with pytest.raises(SchemaMismatch, match="v"):
            cast_exactly(pa.array([values]), vector, "v")


def test_a_struct_of_arrow_is_held_to_the_rule_inside() -> None:
    have = pa.array([{"x": 0.1}])
    with pytest.raises(SchemaMismatch, match=r"s\.x"):
        cast_exactly(have, pa.struct([("x", pa.float32())]), "s")
    items = pa.array([[("a", 0.1)]], pa.map_(pa.string(), pa.float64()))
    with pytest.raises(SchemaMismatch):
        cast_exactly(items, pa.map_(pa.string(), pa.float32()), "m")


@pytest.mark.parametrize("items", [pa.float16(), pa.float32(), pa.float64()], ids=str)
@pytest.mark.parametrize("number", [1, 1.0, np.float32(1)], ids=lambda n: type(n).__name__)
def test_m9_a_null_beside_a_number_is_taken_wherever_it_is(items: pa.DataType, number) -> None:
    cases = [
        (items, [number, None]),
        (pa.struct([("x", items)]), [{"x": number}, {"x": None}, None]),
        (pa.list_(items), [[number, None], None, []]),
        (pa.list_(items, 2), [[number, None], None]),
        (pa.list_(pa.struct([("x", items)])), [[{"x": number}, {"x": None}], None]),
        (pa.map_(pa.string(), items), [[("a", number), ("b", None)], None]),
    ]
    for dtype, values in cases:
        assert from_python(values, dtype, "c").to_pylist() == values


_NULLS = [
    (pa.null(), pa.float32(), [None]),
    (pa.null(), pa.list_(pa.float32(), 2), [None]),
    (pa.null(), pa.fixed_shape_tensor(pa.float32(), [2]), [None]),
    (pa.list_(pa.null()), pa.list_(pa.float64()), [[], None, [None]]),
    (pa.list_(pa.null()), pa.list_(pa.float64(), 1), [None, [None]]),
    (pa.list_(pa.null()), pa.list_(pa.struct([("x", pa.float16())])), [[], None, [None]]),
    (pa.struct([("x", pa.null())]), pa.struct([("x", pa.float32())]), [{"x": None}, None]),
    (
        pa.map_(pa.string(), pa.null()),
        pa.map_(pa.string(), pa.float32()),
        [[("a", None)], [], None],
    ),
]


@pytest.mark.parametrize(("have", "want", "values"), _NULLS, ids=str)
def test_m9_columns_of_nulls_become_any_type(have, want, values) -> None:
    assert cast_exactly(pa.array(values, have), want, "c").to_pylist() == values
    chunked = pa.chunked_array([pa.array(values, have)])
    assert cast_exactly(chunked, want, "c").to_pylist() == values


def test_m9_numbers_in_a_struct_in_a_list_are_not_rounded() -> None:
    """Only the items of a list are, in both forms."""
    dtype = pa.list_(pa.struct([("x", pa.float32()), ("v", pa.list_(pa.float32()))]))
    wide = pa.list_(pa.struct([("x", pa.float64()), ("v", pa.list_(pa.float64()))]))
    rounded = float(np.float32(0.1))
    fits, loses = [[{"x": 0.5, "v": [0.1]}]], [[{"x": 0.1, "v": [0.5]}]]
    assert from_python(fits, dtype, "c").to_pylist() == [[{"x": 0.5, "v": [rounded]}]]
    assert cast_exactly(pa.array(fits, wide), dtype, "c").to_pylist() == [
        [{"x": 0.5, "v": [rounded]}]
    ]
    with pytest.raises(SchemaMismatch, match=r"\.x"):
        from_python(loses, dtype, "c")
    with pytest.raises(SchemaMismatch, match=r"\.x"):
        cast_exactly(pa.array(loses, wide), dtype, "c")


@pytest.mark.parametrize("want", [pa.float32(), pa.float64()], ids=str)
def test_m9_half_floats_widen(want: pa.DataType) -> None:
    halves = pa.array([0.5, None, math.inf], pa.float16())
    assert cast_exactly(halves, want, "c").to_pylist() == [0.5, None, math.inf]
    assert cast_exactly(pa.array([0.5], want), pa.float16(), "c").to_pylist() == [0.5]
    with pytest.raises(SchemaMismatch, match=r"0\.1"):
        cast_exactly(pa.array([0.125, 0.1], want), pa.float16(), "c")


@pytest.mark.parametrize(
    ("number", "dtype", "fits"),
    [
        (2**60, pa.float64(), True),
        (2**60, pa.float32(), True),
        (2**60 + 1, pa.float64(), False),
        (-(2**63), pa.float32(), True),
        (2**63 - 1, pa.float64(), False),
        (2**31 - 1, pa.float32(), False),
        (65504, pa.float16(), True),
        (65520, pa.float16(), False),
    ],
)
def test_m9_an_integer_is_a_float_if_the_float_equals_it(number, dtype, fits) -> None:
    def outcome(make):
        try:
            return make().to_pylist()
        except SchemaMismatch as error:
            return str(number) in str(error)

    expected = [number, None] if fits else True
    assert outcome(lambda: from_python([number, None], dtype, "c")) == expected
    assert outcome(lambda: cast_exactly(pa.array([number, None]), dtype, "c")) == expected
    inside = outcome(lambda: cast_exactly(pa.array([[number]]), pa.list_(dtype), "c"))
    assert inside == ([[number]] if fits else True)


def test_m9_unsigned_integers_are_floats_if_the_float_equals_them() -> None:
    fits = pa.array([2**63, 2**64 - 2**11], pa.uint64())
    assert cast_exactly(fits, pa.float64(), "c").to_pylist() == [2.0**63, 2.0**64 - 2.0**11]
    with pytest.raises(SchemaMismatch, match=str(2**64 - 1)):
        cast_exactly(pa.array([2**64 - 1], pa.uint64()), pa.float64(), "c")


def test_m9_the_values_of_a_dictionary_are_not_rounded() -> None:
    want = pa.dictionary(pa.int32(), pa.float32())
    for encoded in (lambda values: values, lambda values: values.dictionary_encode()):
        fits = cast_exactly(encoded(pa.array([0.5, None, 0.5])), want, "c")
        assert (fits.type, fits.to_pylist()) == (want, [0.5, None, 0.5])
        with pytest.raises(SchemaMismatch, match=r"0\.1"):
            cast_exactly(encoded(pa.array([0.1])), want, "c")


@pytest.mark.parametrize(
    "dtype",
    [pa.timestamp("us"), pa.timestamp("ns", "UTC"), pa.date32(), pa.duration("us")],
    ids=str,
)
@pytest.mark.parametrize("nat", [pd.NaT, np.datetime64("NaT"), np.timedelta64("NaT")], ids=repr)
def test_the_null_of_times_is_null_in_columns_of_times(nat, dtype: pa.DataType) -> None:
    assert from_python([nat, None], dtype, "c").to_pylist() == [None, None]
    with pytest.raises(SchemaMismatch):
        from_python([nat], pa.string(), "c")


@pytest.mark.parametrize("dtype", [pl.Categorical, pl.Enum(["a", "b"])])
def test_categories_of_polars_become_text(dtype) -> None:
    column = pa.table(pl.DataFrame({"c": pl.Series(["a", None, "b"], dtype=dtype)}))["c"]
    assert is_castable(column.type, pa.string())
    for target in (pa.string(), pa.large_string()):
        assert cast_exactly(column, target, "c").to_pylist() == ["a", None, "b"]


_NUMBERS = st.one_of(
    st.floats(width=32),
    st.floats(),
    st.sampled_from([0.0, 1.0, -0.0, 1e300, float("nan"), float("inf"), 2.0**24 + 1, 3.0]),
    st.sampled_from([True, False, 0, 1, 7, 2**24 + 1, 2**60, None, "1", Decimal("0.5")]),
    st.sampled_from([np.float32(0.1), np.float64(0.1), np.float16(0.5), np.int64(2**24 + 1)]),
)
_VECTORS = st.one_of(
    st.none(),
    st.lists(_NUMBERS, min_size=2, max_size=2),
    st.lists(st.floats(), min_size=1, max_size=3),
    st.tuples(st.floats(width=32), st.floats(width=32)),
    st.sampled_from(
        [
            np.array([0.1, 0.2]),
            np.array([0.1, np.nan], "f4"),
            np.array([1, 2**60]),
            np.array([True, False]),
            np.array([1e300, 1.0]),
            np.zeros((2, 2)),
        ]
    ),
)


@example(values=[[True, 0.5]], kind="fixed", items=pa.float32())
@example(values=[[0.1, 0]], kind="fixed", items=pa.float32())
@example(values=[[1.1754943508222875e-38, 0]], kind="fixed", items=pa.float16())
@example(values=[[2.0, 2.0], [7, np.float32(0.1)]], kind="fixed", items=pa.float16())
@example(values=[[2.0, 2.0], [7, np.float64(0.1)]], kind="fixed", items=pa.float32())
@example(values=[[0.5, 2**24 + 1]], kind="list", items=pa.float32())
@example(values=[[0.5, 1e300]], kind="large", items=pa.float32())
@settings(max_examples=150, deadline=None)
@given(
    values=st.lists(_VECTORS, min_size=1, max_size=3),
    kind=st.sampled_from(["fixed", "list", "large"]),
    items=st.sampled_from([pa.float16(), pa.float32(), pa.float64()]),
)
def test_m9_vectors_in_one_conversion_are_what_they_are_one_by_one(values, kind, items):
    dtype = {"fixed": pa.list_(items, 2), "list": pa.list_(items), "large": pa.large_list(items)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(python_values, "_vectors", lambda *_: None)
        slow = _outcome(values, dtype[kind])
    fast = _outcome(values, dtype[kind])
    assert str(fast) == str(slow)  # compared as text: NaN is not equal to itself


def _outcome(values, dtype):
    try:
        return from_python(values, dtype, "v").to_pylist()
    except SchemaMismatch as error:
        return error


def test_m9_vectors_of_numpy_are_rounded_as_lists_are():
    """numpy makes doubles by default, while embeddings are stored as floats."""
    made = from_python(
        [np.array([0.1, 0.2]), [np.float64(0.1), 0.2]], pa.list_(pa.float32(), 2), "v"
    )
    assert made.to_pylist() == [np.array([0.1, 0.2], "f4").tolist()] * 2
    with pytest.raises(SchemaMismatch, match="1e\\+300"):
        from_python([np.array([1e300, 0.5])], pa.list_(pa.float32(), 2), "v")
