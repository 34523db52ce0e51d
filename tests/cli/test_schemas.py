"""A column of any type can be said on the command line."""

import pyarrow as pa
import pytest

import weir
from weir.format.type_texts import parse_column

TYPES = {
    "int64": pa.int64(),
    "float32[768]": pa.list_(pa.float32(), 768),
    "timestamp[us]": pa.timestamp("us"),
    "timestamp[us, UTC]": pa.timestamp("us", "UTC"),
    "timestamp[ns, tz=Europe/Zurich]": pa.timestamp("ns", "Europe/Zurich"),
    "timestamp[ms,+02:00]": pa.timestamp("ms", "+02:00"),
    "duration[us]": pa.duration("us"),
    "decimal(10,2)": pa.decimal128(10, 2),
    "decimal256(50, 3)": pa.decimal256(50, 3),
    "binary[16]": pa.binary(16),
    "uuid": pa.uuid(),
    "list<string>": pa.list_(pa.string()),
    "list<list<int8>>": pa.list_(pa.list_(pa.int8())),
    "list<float32[3]>": pa.list_(pa.list_(pa.float32(), 3)),
    "large_list<timestamp[us, UTC]>": pa.large_list(pa.timestamp("us", "UTC")),
    "struct<a: int64, b: list<string>, c: struct<d: decimal(5,2)>>": pa.struct(
        [
            ("a", pa.int64()),
            ("b", pa.list_(pa.string())),
            ("c", pa.struct([("d", pa.decimal128(5, 2))])),
        ]
    ),
    "struct<a: int64!>": pa.struct([pa.field("a", pa.int64(), nullable=False)]),
    "map<string, list<int64>>": pa.map_(pa.string(), pa.list_(pa.int64())),
}


@pytest.mark.parametrize(("text", "dtype"), TYPES.items())
def test_a_type_is_written_as_text(text, dtype):
    assert parse_column(f"x:{text}").type == dtype
    assert not parse_column(f"x:{text}!").nullable


@pytest.mark.parametrize("dtype", TYPES.values(), ids=str)
def test_a_type_can_be_written_as_pyarrow_prints_it(dtype):
    if isinstance(dtype, pa.BaseExtensionType) or "not null" in str(dtype):
        pytest.skip("printed in a form of its own")
    if pa.types.is_map(dtype):
        pytest.skip("printed with the names of its columns")
    assert parse_column(f"x:{dtype}").type == dtype


@pytest.mark.parametrize(
    "text",
    ["x", ":int64", "x:", "x:int65", "x:list<>", "x:map<string>", "x:struct<a>", "x:list<a, b>",
     "x:json", "x:timestamp[us, Mars]", "x:timestamp[h, UTC]", "x:float32[]", "x:decimal(5)"],
)  # fmt: skip
def test_what_is_no_type_is_wrong_usage(run, tmp_path, text):
    ran = run("create", tmp_path / "t", "-C", text)
    assert (ran.status, "--column" in ran.err) == (2, True)


def test_a_table_is_created_with_such_columns(run, tmp_path):
    uri = tmp_path / "t"
    columns = [f"c{i}:{text}" for i, text in enumerate(TYPES)]
    arguments = [part for column in columns for part in ("-C", column)]
    ran = run("create", uri, "-C", "id:int64", *arguments, "--key", "id")
    assert ran.status == 0, ran.err
    found = weir.open(str(uri)).schema
    assert [field.type for field in found][1:] == list(TYPES.values())
