"""WAL entries: what is written is read back, and damage is refused."""

import contextlib
import json
import random
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.errors import CorruptEntry, InvalidInput, SchemaMismatch
from weir.format.schema import FIELD_ID, TOMBSTONE, table_schema
from weir.format.wal_entry import EntryEncoder, decode_entry, encode_fence

END = bytes.fromhex("ffffffff00000000")
PATH = "_mem_wal/s/wal/1.arrow"


def with_id(number, name, dtype, *, nullable=True):
    return pa.field(name, dtype, nullable, {FIELD_ID: str(number).encode()})


SIMPLE = table_schema(
    pa.schema(
        [
            with_id(0, "id", pa.int64(), nullable=False),
            with_id(1, "name", pa.string(), nullable=False),
        ],
        metadata={b"table": b"facts"},
    ),
    ["id"],
    1,
)
RICH = table_schema(
    pa.schema(
        [
            with_id(0, "id", pa.int64(), nullable=False),
            with_id(1, "s", pa.string()),
            with_id(
                2,
                "st",
                pa.struct(
                    [
                        with_id(3, "a", pa.int32()),
                        with_id(4, "b", pa.list_(with_id(5, "item", pa.string()))),
                    ]
                ),
            ),
            with_id(6, "f", pa.list_(pa.float32(), 2)),
            with_id(7, "d", pa.dictionary(pa.int8(), pa.string())),
            with_id(8, "n", pa.null()),
            with_id(9, "dec", pa.decimal128(10, 2)),
            with_id(10, "t", pa.timestamp("us", "UTC")),
        ]
    ),
    ["id"],
    10,
)


def simple(ids, *, deleted=False):
    names = [None if deleted else f"n{i}" for i in ids]
    return pa.record_batch(
        [pa.array(ids, pa.int64()), pa.array(names, pa.string()), pa.array([deleted] * len(ids))],
        schema=SIMPLE.wal,
    )


def rich():
    row = {
        "id": 1, "s": "x", "st": {"a": 1, "b": ["p", "q"]}, "f": [1, 2], "d": "u", "n": None,
        "dec": Decimal("1.23"), "t": 5, TOMBSTONE: False,
    }  # fmt: skip
    empty = dict.fromkeys(row) | {"id": 2, TOMBSTONE: True}
    return pa.RecordBatch.from_pylist([row, empty, row | {"id": 3, "d": "v"}], schema=RICH.wal)


def encode(batches, schema=SIMPLE, **kwargs):
    arguments = {"epoch": 3, "generation": 2, "entry_id": "e-1"} | kwargs
    return EntryEncoder(schema).encode(batches, **arguments)


def decode(data, **kwargs):
    return decode_entry(bytes(data), position=1, path=PATH, **kwargs)


def stream(schema, batches=(), *, codec=None, **metadata):
    """An entry as another program might write it."""
    items = {k: str(v) for k, v in metadata.items()}
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, schema.with_metadata(items), options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


I64 = st.integers(-(2**63), 2**63 - 1)


def test_an_entry_comes_back_whole():
    data = encode([simple([1, 2]), simple([1], deleted=True)], tokens=(("app", 7), ("ü", 0)))
    entry = decode(data)
    assert (entry.position, entry.epoch, entry.generation) == (1, 3, 2)
    assert not entry.is_fence
    assert entry.entry_id == "e-1"
    assert entry.tokens == (("app", 7), ("ü", 0))
    assert entry.size == len(data)
    assert entry.num_rows == 3
    rows = pa.Table.from_batches(entry.batches)
    assert rows.schema.equals(SIMPLE.wal, check_metadata=True), "align_batch then costs nothing"
    assert rows.to_pydict() == {
        "id": [1, 2, 1], "name": ["n1", "n2", None], TOMBSTONE: [False, False, True]
    }  # fmt: skip


def test_every_kind_of_column_comes_back():
    entry = decode(encode([rich()], RICH))
    assert entry.batches[0].to_pylist() == rich().to_pylist()
    assert entry.batches[0].schema.equals(RICH.wal, check_metadata=True)


def test_the_stream_has_the_shape_pylance_asks_for():
    data = bytes(encode([simple([1])]))
    assert data.endswith(END)
    reader = pa.ipc.open_stream(data)
    assert reader.schema.metadata == {
        b"table": b"facts", b"writer_epoch": b"3", b"generation": b"2"
    }  # fmt: skip
    assert reader.schema.names[-1] == TOMBSTONE
    assert reader.schema.field("name").nullable
    _, custom = reader.read_next_batch_with_custom_metadata()
    assert dict(custom) == {b"weir_entry_id": b"e-1"}


def test_the_encoder_follows_epoch_and_generation():
    encoder = EntryEncoder(SIMPLE)
    for epoch, generation in ((1, 1), (1, 2), (2, 2), (1, 1)):
        data = encoder.encode([simple([1])], epoch=epoch, generation=generation, entry_id="x")
        entry = decode(data)
        assert (entry.epoch, entry.generation) == (epoch, generation)


def test_the_bytes_compare_equal_to_what_a_store_gives_back():
    data = encode([simple([-1, 200])])
    assert data == bytes(data)
    assert data.readonly


def test_many_small_batches_become_few():
    entry = decode(encode([simple([i]) for i in range(100)]))
    assert len(entry.batches) == 1
    assert entry.batches[0].column("id").to_pylist() == list(range(100))
    entry = decode(encode([simple(range(500)) for _ in range(300)]))
    assert [b.num_rows for b in entry.batches] == [65500, 65500, 19000]


def test_large_batches_are_left_alone():
    assert [b.num_rows for b in decode(encode([simple(range(2000))] * 3)).batches] == [2000] * 3


def test_slices_and_empty_batches():
    entry = decode(encode([simple([]), simple(range(10)).slice(3, 2), simple([])]))
    assert entry.batches[0].column("id").to_pylist() == [3, 4]
    assert entry.size < len(encode([simple(range(10_000))]))


@pytest.mark.parametrize("batches", [[], [simple([])]])
def test_an_entry_without_rows_is_never_written(batches):
    with pytest.raises(InvalidInput, match="at least one row"):
        encode(batches)


def test_rows_of_another_shape_are_refused():
    with pytest.raises(SchemaMismatch):
        encode([rich()])
    with pytest.raises(SchemaMismatch):
        encode([simple([1]), rich()])


def test_f1_a_fence_has_no_rows_and_an_epoch():
    entry = decode(encode_fence(7, "f-1"))
    assert entry.is_fence
    assert (entry.epoch, entry.generation, entry.batches) == (7, None, ())
    assert (entry.entry_id, entry.num_rows) == ("f-1", 0)
    reader = pa.ipc.open_stream(bytes(encode_fence(7, "f-1")))
    assert reader.schema.names == []
    assert b"generation" not in reader.schema.metadata


@given(
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.lists(st.tuples(st.text().filter(str.strip), st.integers(0, 2**64 - 1)), max_size=3),
    st.lists(
        st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5), min_size=1, max_size=5
    ),
)
def test_entries_round_trip(epoch, generation, entry_id, tokens, ids):
    data = encode(
        [simple(part) for part in ids],
        epoch=epoch, generation=generation, entry_id=entry_id, tokens=tokens,
    )  # fmt: skip
    entry = decode(data)
    assert (entry.epoch, entry.generation, entry.entry_id) == (epoch, generation, entry_id)
    assert entry.tokens == tuple(tokens)
    got = [i for batch in entry.batches for i in batch.column("id").to_pylist()]
    assert got == [i for part in ids for i in part]


# What other programs may write


def test_bytes_after_the_end_are_accepted_and_a_missing_end_is_not():
    data = bytes(encode([simple([1])]))
    assert decode(data + b"garbage after the end").num_rows == 1
    with pytest.raises(CorruptEntry, match="end marker"):
        decode(data.removesuffix(END))


def test_generation_is_optional_and_foreign_entries_have_no_id():
    entry = decode(stream(SIMPLE.wal, [simple([1])], writer_epoch=5, table="facts"))
    assert (entry.generation, entry.entry_id, entry.tokens) == (None, None, ())
    assert entry.batches[0].schema.metadata == {b"table": b"facts"}


def test_an_entry_with_columns_but_no_batches_holds_nothing():
    entry = decode(stream(SIMPLE.wal, writer_epoch=5))
    assert (entry.batches, entry.is_fence) == ((), False)


def test_a_missing_tombstone_column_means_no_deletes():
    batch = simple([1, 2]).drop_columns([TOMBSTONE])
    rows = decode(stream(batch.schema, [batch], writer_epoch=1)).batches[0]
    assert rows.column(TOMBSTONE).to_pylist() == [False, False]
    assert rows.schema.equals(SIMPLE.wal.with_metadata(None), check_metadata=True)


def test_a_nullable_tombstone_in_another_place_is_put_in_order():
    batch = pa.record_batch({TOMBSTONE: pa.array([True, False]), "id": pa.array([1, 2])})
    rows = decode(stream(batch.schema, [batch], writer_epoch=1)).batches[0]
    assert rows.schema.names == ["id", TOMBSTONE]
    assert not rows.schema.field(TOMBSTONE).nullable
    assert rows.column(TOMBSTONE).to_pylist() == [True, False]


# Damage


def _bad(name, data, reason):
    return pytest.param(data, reason, id=name)


def _with_custom(**custom):
    sink = pa.BufferOutputStream()
    schema = SIMPLE.wal.with_metadata({"writer_epoch": "1"})
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(simple([1]), custom_metadata=custom)
    return bytes(sink.getvalue())


def _invalid_utf8():
    buffers = [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")]
    text = pa.Array.from_buffers(pa.string(), 1, buffers)
    batch = pa.record_batch({"id": pa.array([1]), "name": text})
    return stream(batch.schema, [batch], writer_epoch=1)


def _bad_offsets():
    good = pa.record_batch({"name": pa.array(["x" * 77])})
    data = stream(good.schema, [good], writer_epoch=1)
    at = data.rindex(bytes(4) + (77).to_bytes(4, "little"))
    return data[: at + 4] + b"\0\0\1\0" + data[at + 8 :]


def _null_tombstone():
    batch = pa.record_batch({"id": pa.array([1]), TOMBSTONE: pa.array([None], pa.bool_())})
    return stream(batch.schema, [batch], writer_epoch=1)


def _wrong_tombstone():
    batch = pa.record_batch({"id": pa.array([1]), TOMBSTONE: pa.array([1])})
    return stream(batch.schema, [batch], writer_epoch=1)


def _nested_name():
    batch = pa.record_batch({"s": pa.array([{"child": 1}])})
    return stream(batch.schema, [batch], writer_epoch=1).replace(b"child", b"chil\xe6")


def _time_zone():
    batch = pa.record_batch({"t": pa.array([1], pa.timestamp("us", "zone"))})
    return stream(batch.schema, [batch], writer_epoch=1).replace(b"zone", b"zon\xe6")


def _twice():
    schema = pa.schema([("a", pa.int8()), ("a", pa.int8())])
    return stream(schema, writer_epoch=1)


WHOLE = bytes(encode([simple([1, 2, 3])]))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        _bad("empty", b"", "is not a usable"),
        _bad("junk", b"junk" * 10, "is not a usable"),
        _bad("end marker alone", END, "is not a usable"),
        _bad("ipc file format", b"ARROW1\0\0" + WHOLE, "is not a usable"),
        _bad("no epoch", stream(SIMPLE.wal, [simple([1])]), "no writer_epoch"),
        _bad("epoch no number", stream(SIMPLE.wal, writer_epoch="x"), "64-bit"),
        _bad("epoch negative", stream(SIMPLE.wal, writer_epoch=-1), "64-bit"),
        _bad("epoch too large", stream(SIMPLE.wal, writer_epoch=2**64), "64-bit"),
        _bad("epoch endless", stream(SIMPLE.wal, writer_epoch="9" * 10_000), "64-bit"),
        _bad("generation", stream(SIMPLE.wal, writer_epoch=1, generation="1.5"), "64-bit"),
        _bad("zero rows", stream(SIMPLE.wal, [simple([])], writer_epoch=1), "batch 0 is empty"),
        _bad(
            "zero rows later",
            stream(SIMPLE.wal, [simple([1]), simple([])], writer_epoch=1),
            "1 is empty",
        ),
        _bad(
            "fence with rows",
            stream(SIMPLE.wal, [simple([1])], writer_epoch=1, fence_sentinel="true"),
            "fence",
        ),
        _bad("nested name", _nested_name(), "utf-8"),
        _bad("time zone", _time_zone(), "utf-8"),
        _bad("columns twice", _twice(), "twice"),
        _bad("invalid utf8", _invalid_utf8(), "UTF8"),
        _bad("bad offsets", _bad_offsets(), "is not a usable"),
        _bad("null tombstone", _null_tombstone(), "nulls"),
        _bad("wrong tombstone", _wrong_tombstone(), "must be bool"),
        _bad("tokens no json", _with_custom(weir_tokens="{"), "is not a usable"),
        _bad("tokens no list", _with_custom(weir_tokens="{}"), "not a list"),
        _bad("tokens no pairs", _with_custom(weir_tokens='[["a"]]'), "pairs"),
        _bad("tokens no number", _with_custom(weir_tokens='[["a",true]]'), "pairs"),
        _bad("tokens deep", _with_custom(weir_tokens="[" * 100_000), "is not a usable"),
        _bad("id no text", _with_custom(weir_entry_id=b"\xff"), "is not a usable"),
    ],
)
def test_damage_is_corrupt_entry_naming_object_and_position(data, reason):
    with pytest.raises(CorruptEntry, match=reason) as caught:
        decode_entry(data, position=17, path=PATH)
    assert PATH in str(caught.value)
    assert "position 17" in str(caught.value)


@pytest.mark.parametrize("cut", range(8, len(WHOLE) - len(END), 24))
def test_a_torn_entry_is_refused_or_has_no_rows(cut):
    # If the cut is exactly between messages, Arrow sees a complete stream. A store never shows part
    # of an object, so such a cut is damage, and no row may be half there.
    with contextlib.suppress(CorruptEntry):
        assert decode(WHOLE[:cut]).num_rows in (0, 3)


def test_an_entry_beyond_the_bound_is_refused_unread():
    with pytest.raises(CorruptEntry, match="more than the limit of 100"):
        decode(WHOLE, max_bytes=100)


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
@pytest.mark.parametrize("is_dictionary", [False, True])
def test_g13_a_compressed_entry_is_refused_before_it_is_expanded(codec, *, is_dictionary):
    """It may claim to expand to any size; no program compresses the log."""
    zeros = pa.array([0] * 4_000_000, pa.int64())
    if is_dictionary:
        texts = pa.array(["x" * 4_000_000])
        zeros = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), texts)
    batch = pa.record_batch({"id": zeros})
    data = stream(batch.schema, [batch], codec=codec, writer_epoch=1)
    before = pa.total_allocated_bytes()
    peak = pa.default_memory_pool().max_memory()
    with pytest.raises(CorruptEntry, match="compressed"):
        decode(data)
    assert pa.total_allocated_bytes() <= before + 100_000
    assert pa.default_memory_pool().max_memory() <= max(peak, before + 1_000_000)


def test_rows_without_bytes_are_bounded():
    batch = pa.record_batch({"n": pa.nulls(1_000_000)})
    with pytest.raises(CorruptEntry, match="more than its bytes can hold"):
        decode(stream(batch.schema, [batch], writer_epoch=1))


SEEDS = [
    bytes(encode([rich()], RICH, tokens=(("a", 1),))),
    stream(RICH.wal, [rich()], codec="zstd", writer_epoch=1),
    stream(RICH.wal, [rich()], codec="lz4", writer_epoch=1),
    bytes(encode_fence(1, "x")),
]


def _mutate(rnd, seed):
    raw = bytearray(seed)
    for _ in range(rnd.choice([1, 1, 2, 5])):
        at = rnd.randrange(len(raw))
        kind = rnd.random()
        if kind < 0.5:
            raw[at] = rnd.randrange(256)
        elif kind < 0.7:
            raw[at] ^= 1 << rnd.randrange(8)
        elif kind < 0.85:
            raw[at : at + 8] = rnd.choice(
                [b"\xff" * 8, bytes(8), b"\x7f" * 8, (1 << rnd.randrange(63)).to_bytes(8, "little")]
            )
        elif kind < 0.93:
            del raw[at : at + rnd.randrange(1, 64)]
        else:
            raw[at:at] = rnd.randbytes(rnd.randrange(1, 16))
        raw = raw or bytearray(b"x")
    return bytes(raw)


@pytest.mark.parametrize("seed", range(20))
def test_mutated_entries_are_read_or_refused_and_nothing_else(seed):
    rnd = random.Random(seed)
    for _ in range(100):
        data = _mutate(rnd, rnd.choice(SEEDS))
        with contextlib.suppress(CorruptEntry):
            entry = decode(data, max_bytes=1 << 26)
            for batch in entry.batches:
                batch.validate(full=True)
                assert batch.schema.names[-1] == TOMBSTONE


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data):
    with pytest.raises(CorruptEntry):
        decode(data)


def test_tokens_are_stored_as_json_pairs():
    reader = pa.ipc.open_stream(bytes(encode([simple([1])], tokens=(("app", 7),))))
    _, custom = reader.read_next_batch_with_custom_metadata()
    assert json.loads(custom[b"weir_tokens"]) == [["app", 7]]
