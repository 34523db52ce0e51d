"""`weir put` reads exactly what `weir scan` writes: every type, every value, CSV and JSON lines."""

import io
import json
import tempfile
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

import weir
from weir.cli import rows, texts, values
from weir.cli.output import Output

UNITS = ("s", "ms", "us", "ns")
WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.sampled_from(
    ["", "NA", "null", "NaN", " a ", 'q"uo,te', "line\nbreak", "cr\r\nlf", "\r", "[1]", "'"]
)
I64 = st.integers(-(2**63), 2**63 - 1)
MOMENTS = st.integers(-(10**10), 10**10) | I64


def ints(dtype):
    bits = dtype.bit_width
    if pa.types.is_unsigned_integer(dtype):
        return st.integers(0, 2**bits - 1)
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def floats(dtype):
    return st.floats(width=dtype.bit_width)


def decimals(dtype):
    top = 10**dtype.precision - 1
    return st.integers(-top, top).map(lambda n: Decimal(f"{n}E-{dtype.scale}"))


DAYS = st.integers(-(2**31), 2**31 - 1)
OF_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}

LEAVES = (
    [(t, ints(t)) for t in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint64())]
    + [(t, floats(t)) for t in (pa.float16(), pa.float32(), pa.float64())]
    + [(t, WORDS) for t in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()))]
    + [(t, st.binary(max_size=5)) for t in (pa.binary(), pa.large_binary())]
    + [(pa.binary(3), st.binary(min_size=3, max_size=3)), (pa.bool_(), st.booleans())]
    + [(pa.uuid(), st.binary(min_size=16, max_size=16)), (pa.null(), st.none())]
    + [(t, decimals(t)) for t in (pa.decimal128(38, 9), pa.decimal128(5, 2))]
    + [(pa.timestamp(u, z), MOMENTS) for u in UNITS for z in (None, "UTC", "Asia/Kolkata")]
    + [(pa.duration(u), I64) for u in UNITS]
    + [(t, st.integers(0, OF_DAY[t.unit] - 1))
       for t in (pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"))]
    + [(pa.date32(), DAYS), (pa.date64(), st.integers(-(10**7), 10**7).map(lambda d: d * 86400000))]
)  # fmt: skip
KEYS = [leaf for leaf in LEAVES if leaf[0] in (pa.string(), pa.int64(), pa.binary())]


def nested(child):
    """Lists, vectors, structs and maps of these (type, values)."""
    dtype, inner = child
    some = st.none() | inner
    return st.sampled_from(
        [
            (pa.list_(dtype), st.lists(some, max_size=3)),
            (pa.large_list(dtype), st.lists(some, max_size=3)),
            (pa.list_(dtype, 2), st.lists(some, min_size=2, max_size=2)),
            (
                pa.struct([("a", dtype), ("b", pa.int64())]),
                st.fixed_dictionaries({"a": some, "b": st.none() | I64}),
            ),
        ]
    )


KINDS = st.recursive(st.sampled_from(LEAVES), lambda kind: kind.flatmap(nested), max_leaves=3)


def storage(dtype):
    """The type whose Python values are plain numbers and bytes."""
    if pa.types.is_struct(dtype):
        return pa.struct([f.with_type(storage(f.type)) for f in dtype])
    if pa.types.is_fixed_size_list(dtype):
        return pa.list_(storage(dtype.value_type), dtype.list_size)
    if pa.types.is_list(dtype):
        return pa.list_(storage(dtype.value_type))
    if pa.types.is_large_list(dtype):
        return pa.large_list(storage(dtype.value_type))
    if pa.types.is_dictionary(dtype):
        return dtype.value_type
    if isinstance(dtype, pa.UuidType):
        return dtype.storage_type
    if pa.types.is_date32(dtype) or pa.types.is_time32(dtype):
        return pa.int32()
    if pa.types.is_temporal(dtype) and not pa.types.is_null(dtype):
        return pa.int64()
    return dtype


@st.composite
def arrays(draw):
    dtype, inner = draw(KINDS)
    given_ = draw(st.lists(st.none() | inner, max_size=4))
    plain = pa.array(given_, storage(dtype))
    try:
        array = plain.cast(dtype)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        array = remade(plain, dtype)
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        reject()  # a vector of the null type, which pyarrow itself cannot make
    return array.slice(draw(st.integers(0, 1)))


def remade(plain, dtype):
    """`plain.cast(dtype)`, where pyarrow has no such cast."""
    if pa.types.is_struct(dtype):
        parts = [remade(part, f.type) for part, f in zip(plain.flatten(), dtype, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=list(dtype), mask=plain.is_null())
    if pa.types.is_fixed_size_list(dtype):
        return pa.FixedSizeListArray.from_arrays(
            remade(plain.values, dtype.value_type), type=dtype, mask=plain.is_null()
        )
    if pa.types.is_list(dtype) or pa.types.is_large_list(dtype):
        made = pa.ListArray if pa.types.is_list(dtype) else pa.LargeListArray
        items = remade(plain.values, dtype.value_type)
        return made.from_arrays(plain.offsets, items, type=dtype, mask=plain.is_null())
    if pa.types.is_dictionary(dtype):
        return plain.dictionary_encode().cast(dtype)
    if isinstance(dtype, pa.UuidType):
        return pa.ExtensionArray.from_storage(dtype, plain)
    return plain.cast(dtype)


def written_and_read(array, format):
    schema = pa.schema([("id", pa.int64()), ("x", array.type)])
    batch = pa.RecordBatch.from_arrays([pa.array(range(len(array))), array], schema=schema)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"rows.{format}")
        rows.write(pa.RecordBatchReader.from_batches(schema, [batch]), format, Output(), path)
        data = path.read_bytes()
    read = texts.csv if format == "csv" else texts.json_lines
    found = pa.Table.from_batches(read(io.BytesIO(data), schema), schema)
    assert found["id"].to_pylist() == list(range(len(array)))
    chunks = found["x"].chunks
    return pa.concat_arrays(chunks) if chunks else pa.nulls(0, array.type)


def exactly(array):
    """The values, comparable: NaN equals NaN, and a time is its count."""
    return json.dumps(values.to_json(array)), array.is_valid().to_pylist()


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(arrays(), st.sampled_from(["csv", "jsonl"]))
def test_what_scan_writes_is_read_exactly(array, format):
    found = written_and_read(array, format)
    assert found.type == array.type
    if not has_several_forms(array.type):
        assert found.equals(array)
    assert exactly(found) == exactly(array)


def has_several_forms(dtype):
    """Equal values need not be equal arrays: NaN, and values of a dictionary that no row has."""
    children = (has_several_forms(dtype.field(i).type) for i in range(dtype.num_fields))
    return pa.types.is_floating(dtype) or pa.types.is_dictionary(dtype) or any(children)


@pytest.mark.parametrize("format", ["csv", "jsonl"])
@pytest.mark.parametrize(("dtype", "_"), LEAVES, ids=str)
def test_every_type_has_an_empty_a_null_and_a_sliced_form(dtype, _, format):
    assert written_and_read(pa.nulls(3, dtype).slice(1), format).null_count == 2
    assert len(written_and_read(pa.nulls(0, dtype), format)) == 0


@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_the_first_and_the_last_nanoseconds_are_read(format):
    ends = [-(2**63), -(2**63) + 1, -9223372036000000001, -9223372036000000000, 2**63 - 1, None]
    array = pa.array(ends, pa.int64()).cast(pa.timestamp("ns"))
    assert written_and_read(array, format).equals(array)


def test_a_map_is_a_list_of_pairs():
    dtype = pa.map_(pa.string(), pa.list_(pa.binary()))
    array = pa.array([[("a", [b"x", None]), ("b", None)], None, [], [("c", [])]], dtype)
    for part in (array, array.slice(1), array.slice(0, 1)):
        for format in ("csv", "jsonl"):
            assert written_and_read(part, format).equals(part)


REFUSED = [
    (pa.float32(), "1e300"),
    (pa.float64(), "1e400"),
    (pa.float16(), "70000"),
    (pa.int8(), "300"),
    (pa.int64(), "1.5"),
    (pa.uint8(), "-1"),
    (pa.bool_(), "yes"),
    (pa.decimal128(5, 2), "1.256"),
    (pa.decimal128(5, 2), "12345.6"),
    (pa.timestamp("us"), '"2026-01-02T03:04:05+05:00"'),
    (pa.timestamp("us", "UTC"), '"2026-01-02T03:04:05"'),
    (pa.timestamp("s"), '"2026-01-02T03:04:05.5"'),
    (pa.timestamp("us"), "1700000000"),
    (pa.date32(), "20260102"),
    (pa.time64("us"), '"25:00:00"'),
    (pa.binary(), '"not base64!"'),
    (pa.binary(2), '"AAAA"'),
    (pa.list_(pa.float32()), "[1e300]"),
    (pa.list_(pa.int64(), 2), "[1]"),
    (pa.list_(pa.int64()), '{"a": 1}'),
    (pa.list_(pa.int64()), "[true]"),
    (pa.struct([("a", pa.int64())]), '{"b": 1}'),
    (pa.uuid(), '"x"'),
]


@pytest.mark.parametrize(("dtype", "text"), REFUSED, ids=str)
@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_what_a_column_cannot_hold_is_refused(dtype, text, format):
    schema = pa.schema([("id", pa.int64()), ("x", dtype)])
    if format == "csv":
        cell = json.loads(text) if text.startswith('"') else text
        data = 'id,x\n1,"{}"\n'.format(cell.replace('"', '""'))
        read = texts.csv(io.BytesIO(data.encode()), schema)
    else:
        read = texts.json_lines(io.BytesIO(f'{{"id": 1, "x": {text}}}\n'.encode()), schema)
    with pytest.raises(ValueError, match=r"'x'|line 1: "):
        list(read)


@pytest.mark.parametrize("block", [1, 7, 64, 1 << 20])
@pytest.mark.parametrize("last", ["\n", ""])
def test_a_record_may_have_line_breaks_wherever_a_block_ends(monkeypatch, block, last):
    monkeypatch.setattr(texts, "_BLOCK", block)
    schema = pa.schema([("a", pa.string()), ("b", pa.string())])
    cells = [["x\ny", 'say ""hi"",\n'], ['5" pipe', "plain"], ["", "NA"], ["\r\n", "end\n"]]
    lines = [f'"{a}","{b}"' if a != '5" pipe' else f"{a},{b}" for a, b in cells]
    data = ("a,b\n" + "\n".join(lines) + last).encode()
    found = pa.Table.from_batches(texts.csv(io.BytesIO(data), schema)).to_pylist()
    assert [list(row.values()) for row in found] == [[a, b.replace('""', '"')] for a, b in cells]


@pytest.mark.parametrize("format", ["csv", "jsonl", "arrow", "parquet"])
def test_scan_and_put_of_a_table_with_every_type(run, tmp_path, format):
    kinds = [t for t, _ in LEAVES if t != pa.null()]
    fields = [pa.field("id", pa.string(), nullable=False)]
    fields += [pa.field(f"c{i}", t) for i, t in enumerate(kinds)]
    fields += [pa.field("deep", pa.list_(pa.struct([("raw", pa.list_(pa.binary()))])))]
    schema = pa.schema(fields)
    columns = [pa.array(["NA", "null", ""])]
    columns += [pa.array([0, None, 86_400_000 if t == pa.date64() else 1], storage(t))
                if pa.types.is_temporal(t) else pa.nulls(3, storage(t)) for t in kinds]  # fmt: skip
    columns += [pa.array([[{"raw": [b"\n", b""]}], None, []], schema.field("deep").type)]
    made = [remade(c, f.type) for c, f in zip(columns, schema, strict=True)]
    table = weir.create(str(tmp_path / "t"), schema, primary_key="id")
    with table.writer() as writer:
        writer.put(pa.Table.from_arrays(made, schema=schema))
    file = tmp_path / f"rows.{format}"
    assert run("scan", table.uri, "--format", format, "--output", file).status == 0
    copy = weir.create(str(tmp_path / "copy"), schema, primary_key="id")
    ran = run("put", copy.uri, file)
    assert ran.status == 0, ran.err
    assert copy.scan().to_table().sort_by("id") == table.scan().to_table().sort_by("id")
