"""Nested columns change their type level by level, whatever Arrow's own cast does with them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from weir.format.nested import as_type

FROM_STREAM = """
import sys
import pyarrow as pa
import weir


def from_stream(rows):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return pa.ipc.open_stream(sink.getvalue()).read_all()


some, fixed = pa.list_(pa.float32()), pa.list_(pa.float32(), 4)
cases = {
    "plain": (some, fixed, None),
    "large": (pa.large_list(pa.float32()), fixed, None),
    "struct": (pa.struct([("a", some)]), pa.struct([("a", fixed)]), {"a": None}),
    "list": (pa.list_(some), pa.list_(fixed), [None, None]),
    "fixed": (pa.list_(some, 2), pa.list_(fixed, 2), [None, None]),
    "map": (pa.map_(pa.string(), some), pa.map_(pa.string(), fixed), [("k", None)]),
    "deep": (
        pa.list_(pa.struct([("a", some)])), pa.list_(pa.struct([("a", fixed)])), [{"a": None}],
    ),
    "tensor": (some, pa.fixed_shape_tensor(pa.float32(), [4]), None),
}
have, want, value = cases[sys.argv[1]]
"""
CONVERT = (
    FROM_STREAM
    + """
from weir.format.nested import as_type
rows = from_stream(pa.table({"v": pa.array([value, value], have)}))
assert as_type(rows.column("v"), want).to_pylist() == [value, value]
"""
)
PUT = (
    FROM_STREAM
    + """
schema = pa.schema([pa.field("id", pa.int64()), pa.field("v", want)])
table = weir.create(sys.argv[2], schema, primary_key="id")
rows = from_stream(pa.table({"id": [1, 2], "v": pa.array([value, value], have)}))
with table.writer() as writer:
    writer.put(rows)
    writer.update(rows)
assert table.scan().to_table()["v"].to_pylist() == [value, value]
"""
)


def run(script: str, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "case", ["plain", "large", "struct", "list", "fixed", "map", "deep", "tensor"]
)
def test_vectors_of_nulls_from_a_stream_are_converted(case: str) -> None:
    """Arrow's own cast ends the process here, so this runs in another one."""
    run(CONVERT, case)


@pytest.mark.parametrize("case", ["plain", "struct"])
def test_f15_vectors_of_nulls_from_a_stream_are_written(case: str, tmp_path: Path) -> None:
    run(PUT, case, str(tmp_path / "t"))


LISTS = [
    pa.list_(pa.int64()),
    pa.large_list(pa.int64()),
    pa.list_(pa.int64(), 2),
    pa.large_list(pa.int32()),
    pa.list_(pa.int32(), 2),
    pa.list_(pa.float64()),
]


@pytest.mark.parametrize("want", LISTS, ids=str)
@pytest.mark.parametrize("have", LISTS, ids=str)
def test_every_kind_of_list_becomes_every_other_with_its_nulls(have, want) -> None:
    values = [[9, 9], [1, 2], None, [3, None], None, [5, 6]]
    whole = pa.array(values, have)
    # A null list may have items below it, and a slice begins inside its buffers.
    for column, expected in ((whole, values), (whole.slice(1, 4), values[1:5])):
        made = as_type(column, want)
        made.validate(full=True)
        assert (made.type, made.to_pylist()) == (want, expected)
    assert as_type(whole.slice(0, 0), want).to_pylist() == []


def test_lists_of_another_length_are_refused() -> None:
    with pytest.raises(pa.ArrowInvalid, match="lists of 3 items, got one of 2"):
        as_type(pa.array([[1, 2, 3], [1, 2]]), pa.list_(pa.int64(), 3))


def test_structs_are_converted_by_name_with_their_nulls() -> None:
    have = pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}]).slice(1)
    want = pa.struct([("b", pa.large_string()), ("c", pa.int8()), ("a", pa.int32())])
    expected = [None, {"b": "y", "c": None, "a": None}]
    assert as_type(have, want).to_pylist() == expected


def test_maps_are_converted_with_their_nulls() -> None:
    have = pa.array([[("a", 1)], None, [("b", None), ("c", 3)]], pa.map_(pa.string(), pa.int64()))
    want = pa.map_(pa.large_string(), pa.int8())
    made = as_type(have.slice(1), want)
    made.validate(full=True)
    assert (made.type, made.to_pylist()) == (want, [None, [("b", None), ("c", 3)]])


@pytest.mark.parametrize("inner", [pa.uuid(), pa.struct([("a", pa.uuid())])], ids=str)
def test_lists_of_an_extension_type_beside_a_null_list_are_converted(inner):
    raw = pa.binary(16) if inner == pa.uuid() else pa.struct([("a", pa.binary(16))])
    item = b"0" * 16 if inner == pa.uuid() else {"a": b"0" * 16}
    for given in ([None], [None, []], [None, [item], [], [item, None]]):
        plain = pa.array(given, pa.list_(raw))
        made = as_type(plain, pa.list_(inner))
        assert as_type(made, pa.large_list(raw)).to_pylist() == given
