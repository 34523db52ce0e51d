"""Parameters become literals of their own type, wherever a name stands in SQL, or are refused."""

import datetime as dt
import enum
import math
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import lance
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.errors import InvalidInput
from weir.lake.expressions import new_values
from weir.lake.params import bind, bind_filter, bind_update, require_bound

ONE = pa.table({"n": pa.array([1], pa.int64())})


def sent(value: Any) -> Any:
    """The value as Lance computes it from its literal."""
    return new_values({"v": bind("$v", {"v": value})}, ONE)["v"]


class Color(enum.StrEnum):
    RED = "it's red"


class Level(enum.Enum):
    HIGH = 7


EXACT: dict[str, tuple[Any, pa.DataType, Any]] = {
    "text": ("it's -- /* $v */ \\' \"`\n\0", pa.string(), None),
    "empty text": ("", pa.string(), None),
    "bytes": (b"\x00'\xff", pa.binary(), None),
    "int": (-5, pa.int64(), None),
    "smallest": (-(2**63), pa.int64(), None),
    "largest": (2**63 - 1, pa.int64(), None),
    "unsigned": (2**64 - 1, pa.uint64(), None),
    "float": (0.1 + 0.2, pa.float64(), None),
    "tiny": (5e-324, pa.float64(), None),
    "huge": (-1.7976931348623157e308, pa.float64(), None),
    "infinity": (-math.inf, pa.float64(), None),
    "numpy's float": (np.float64(0.1), pa.float64(), 0.1),
    "true": (True, pa.bool_(), None),
    "null": (None, pa.null(), None),
    "date": (dt.date(1, 1, 1), pa.date32(), None),
    "datetime": (dt.datetime.max, pa.timestamp("us"), None),  # noqa: DTZ901  without a zone
    "moment": (
        dt.datetime(2024, 7, 1, 9, 0, 0, 5, ZoneInfo("Europe/Zurich")),
        pa.timestamp("us", "UTC"),
        dt.datetime(2024, 7, 1, 7, 0, 0, 5, dt.UTC),
    ),
    "decimal": (Decimal("-12.340"), pa.decimal128(5, 3), None),
    "decimal below one": (Decimal("0.001"), pa.decimal128(3, 3), None),
    "round decimal": (Decimal("1E+3"), pa.decimal128(4, 0), None),
    "long decimal": (Decimal("1" * 50), pa.decimal256(50, 0), None),
    "uuid": (UUID(int=5), pa.binary(), UUID(int=5).bytes),
    "enum of text": (Color.RED, pa.string(), "it's red"),
    "enum": (Level.HIGH, pa.int64(), 7),
}


@pytest.mark.parametrize("name", EXACT)
def test_a_value_arrives_exactly_and_in_its_type(name: str) -> None:
    value, dtype, wanted = EXACT[name]
    found = sent(value)
    assert found.type == dtype
    assert found.to_pylist() == [value if wanted is None else wanted]


def test_nan_arrives_as_nan() -> None:
    assert math.isnan(sent(math.nan)[0].as_py())


WORDS = st.text(st.sampled_from("'\"`\\$-/*;() avnEeX\n\0é"), max_size=12)


@settings(max_examples=60, deadline=None)
@given(value=WORDS)
def test_no_text_becomes_sql(value: str) -> None:
    rows = pa.table({"s": ["", value, value + "x"]})
    dataset = lance.write_dataset(rows, "memory://")
    found = dataset.to_table(filter=bind("s = $v", {"v": value}))["s"].to_pylist()
    assert found == [one for one in rows["s"].to_pylist() if one == value]


@settings(max_examples=60, deadline=None)
@given(number=st.floats(allow_nan=False))
def test_every_float_arrives_as_the_same_double(number: float) -> None:
    assert sent(number).to_pylist() == [number]


def test_names_in_quotes_are_no_parameters() -> None:
    text = "a = '$u it''s $x' and \"$y\" = `$z` and b = $u and c=$u"
    assert bind(text, {"u": 5}) == text.replace("b = $u", "b =  5 ").replace("c=$u", "c= 5 ")
    require_bound("a = '$u'")


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "unknown": ("a = $u", {"v": 1}, r"names \$u, and params has only \['v'\]"),
    "none given": ("a = $u", {}, "has only nothing"),
    "unused": ("a = $u", {"u": 1, "v": 2}, r"params has \['v'\]"),
    "unused in quotes": ("a = '$u'", {"u": 1}, r"params has \['u'\]"),
    "number": ("a = $1", {}, r"write \$name"),
    "doubled": ("a = $$u$$", {"u": "x"}, r"write \$name"),
    "within a word": ("a$u = 1", {"u": "x"}, "no letter before it"),
    "two as one": ("a = $u$u", {"u": "x"}, "no letter before it"),
    "comment": ("a = $u -- it's", {"u": "x"}, "a comment"),
    "long comment": ("a = /* ' */ $u", {"u": "x"}, "a comment"),
    "open quote": ("a = '$u", {"u": " or 1=1 --"}, "not closed"),
    "open backtick": ("`a = $u", {"u": 1}, "not closed"),
    "escapes": (r"a = E'\'' or b = $u", {"u": 1}, "escapes"),
    "list": ("a in $u", {"u": [1, 2]}, r"parameter \$u: a value of type builtins.list"),
    "numpy": ("a = $u", {"u": np.int64(5)}, "numpy.int64 cannot be written"),
    "pandas": ("a = $u", {"u": pd.Timestamp("2024-01-01")}, "to_pydatetime"),
    "no time": ("a = $u", {"u": pd.NaT}, "cannot be written"),
    "large": ("a = $u", {"u": 2**64}, "use a Decimal"),
    "not a number": ("a = $u", {"u": Decimal("NaN")}, "no decimal"),
    "too long": ("a = $u", {"u": Decimal("1" * 77)}, "77 digits"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_certain_is_refused(name: str) -> None:
    text, params, told = REFUSED[name]
    with pytest.raises(InvalidInput, match=told):
        bind(text, params)


def test_parameters_need_a_filter_in_text() -> None:
    for filter in (None, pa.compute.field("a") == 1):
        with pytest.raises(InvalidInput, match="params belong to"):
            bind_filter(filter, {"u": 1})
    with pytest.raises(InvalidInput, match=r"names the parameter \$u; pass its value"):
        bind("a = $u", None)


def test_a_filter_and_its_assignments_share_parameters() -> None:
    assert bind_update("a = $u", {"b": "$v"}, {"u": 1, "v": 2}) == ("a =  1 ", {"b": " 2 "})
    with pytest.raises(InvalidInput, match=r"params has \['w'\]"):
        bind_update("a = $u", {"b": "$v"}, {"u": 1, "v": 2, "w": 3})
    with pytest.raises(InvalidInput, match="'b': the expression must be SQL text, got 5"):
        bind_update("a = 1", {"b": 5}, None)  # type: ignore[dict-item]
