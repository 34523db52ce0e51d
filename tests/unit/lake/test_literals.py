"""Values as literals of Lance's SQL."""

import pyarrow as pa
import pytest

from weir.errors import (
    InvalidInput,
)
from weir.lake.literals import is_one_of, literal


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
