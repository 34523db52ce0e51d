"""Values as literals of Lance's SQL."""

import math
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from weir.errors import (
    InvalidInput,
)
from weir.lake.literals import comparable, is_one_of, literal

NAIVE = datetime.fromisoformat("2024-01-01")


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "true"), (7, "7"), (-7, "-7"), ("it's", "'it''s'"), (b"\x00\xff", "X'00ff'")],
)
def test_literals(value: object, text: str) -> None:
    assert literal(value) == text


def test_what_has_no_literal_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"builtins\.list"):
        literal([1.5])
    with pytest.raises(InvalidInput, match="backtick"):
        is_one_of("a`b", pa.array([1]))
    with pytest.raises(InvalidInput, match="no value"):
        is_one_of("a", pa.array([], pa.int64()))


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (0.0, pa.float64()),
        (math.nan, pa.float64()),
        (1.5, pa.float32()),
        (1, pa.float64()),
        (300, pa.uint8()),
        (-(2**63), pa.int64()),
        (2**63, pa.uint64()),
        (True, pa.int64()),
        (1, pa.bool_()),
        ("1", pa.int64()),
        (Decimal("1.234"), pa.decimal128(10, 2)),
        (NAIVE.replace(microsecond=1), pa.timestamp("ms")),
        (NAIVE, pa.timestamp("ns")),
        (NAIVE, pa.timestamp("us", "UTC")),
        (NAIVE.replace(tzinfo=UTC), pa.timestamp("us")),
        (NAIVE, pa.date32()),
        (None, pa.int64()),
    ],
    ids=str,
)
def test_a_value_that_lance_might_compare_otherwise_is_not_written(value, dtype):
    assert comparable(value, dtype) is None
