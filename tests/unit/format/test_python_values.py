"""Many Python values become one array in pieces, none of which keeps other threads waiting long."""

import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from weir.errors import SchemaMismatch
from weir.format import python_values
from weir.format.python_values import from_python, maker

KINDS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int64(), [1, None, 2**62]),
    (pa.float32(), [1.5, None, 2]),
    (pa.string(), ["a", None, "", "ä"]),
    (pa.decimal128(9, 2), [Decimal("1.25"), None, 3]),
    (pa.list_(pa.float32(), 3), [[0.1, 2, 3.0], None, (1.0, 2.0, 3.0)]),
    (pa.list_(pa.string()), [["a"], [], None, ["b", None] * 20]),
    (pa.large_list(pa.list_(pa.int8())), [[[1], []], None, [None, [2, 3]]]),
    (pa.struct([("a", pa.list_(pa.float64()))]), [{"a": [1.0] * 9}, None, {"a": None}]),
    (pa.map_(pa.string(), pa.int64()), [{"x": 1}, None, {}]),
    (pa.dictionary(pa.int32(), pa.string()), ["a", "b", None]),
    (pa.list_(pa.dictionary(pa.int32(), pa.string())), [["a"], None, ["b", "a"]]),
]


@pytest.mark.parametrize(("dtype", "sample"), KINDS, ids=[str(dtype) for dtype, _ in KINDS])
def test_values_are_the_same_in_pieces_as_at_once(
    dtype: pa.DataType, sample: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = random.Random(1).choices(sample, k=200)
    at_once = from_python(values, dtype, "c")
    monkeypatch.setattr(python_values, "_AT_ONCE", 7)
    for make in (maker(dtype, "c"), lambda given: from_python(given, dtype, "c")):
        found = make(values)
        found.validate(full=True)
        assert found.type == dtype
        assert found.equals(at_once)


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        (pa.int64(), list(range(120_000))),
        (pa.list_(pa.float64(), 400), [[0.5] * 400] * 300),
        (pa.list_(pa.int64()), [[7] * 400] * 300),
        (pa.struct([("a", pa.list_(pa.float32()))]), [{"a": [0.5] * 400}] * 300),
    ],
    ids=["numbers", "vectors", "lists", "structs"],
)
def test_no_conversion_holds_the_lock_for_more_than_some_milliseconds(
    dtype: pa.DataType, values: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    convert = pa.array

    def noted(given: Any, *rest: Any, **more: Any) -> Any:
        found = convert(given, *rest, **more)
        sizes.append(len(found.flatten() if pa.types.is_nested(found.type) else found))
        return found

    monkeypatch.setattr(pa, "array", noted)
    made = maker(dtype, "c")(values)
    assert len(made) == len(values)
    assert max(sizes) <= 2 * 50_000
    assert sum(sizes) >= 120_000


def test_a_value_that_does_not_fit_is_named_wherever_its_piece_is() -> None:
    values: list[Any] = [[1.0] * 400] * 300
    values[290] = ["text"] * 400
    with pytest.raises(SchemaMismatch, match=r"'c\.item' is float and cannot hold 'text'"):
        from_python(values, pa.list_(pa.float32()), "c")


@pytest.mark.parametrize("given", [{None: 1}, [(None, 1)], [("a", 1), (None, 2)]])
def test_m9_a_map_with_a_key_that_is_null_is_refused_by_name(given: object) -> None:
    with pytest.raises(SchemaMismatch, match=r"column 'm\.p' is a map, and a key of it is null"):
        from_python([{"p": given}], pa.struct([("p", pa.map_(pa.string(), pa.int64()))]), "m")


def test_values_of_pyarrow_are_taken_inside_structs_and_maps() -> None:
    mapped, struct = pa.map_(pa.string(), pa.int64()), pa.struct([("a", pa.int64())])
    assert from_python([pa.scalar([("a", 1)], mapped)], mapped, "m").to_pylist() == [[("a", 1)]]
    assert from_python([pa.scalar({"a": 1}, struct)], struct, "s").to_pylist() == [{"a": 1}]
    with pytest.raises(SchemaMismatch, match="'s' has no field 'b'"):
        from_python([pa.scalar({"b": 1})], struct, "s")
