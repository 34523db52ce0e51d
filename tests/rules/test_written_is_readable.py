"""F-15: every row that can be written can be read, whatever its size, nesting and nulls."""

import math
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import weir
from tests.support.shards import Bench
from weir.config import WriterConfig
from weir.env import Env, Limits
from weir.errors import InvalidInput, SchemaMismatch
from weir.format import paths
from weir.format.nested import NESTING_MAX
from weir.format.schema import TOMBSTONE
from weir.format.sharding import Bucket
from weir.format.wal_entry import EntryEncoder, decode_entry
from weir.types import Epoch, Generation, Position

SURE = pa.field("a", pa.int64(), nullable=False)
PAIR = pa.struct([SURE, pa.field("b", pa.string())])
STRICT = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.int64(), nullable=False)])
SURE_ITEM = pa.field("item", pa.int64(), nullable=False)


def masked(dtype, rows=3):
    """`rows` values of which the second is null, with nulls below it whatever the type declares."""
    empty = pa.nulls(rows, dtype)
    full = pa.array([VALUES[dtype]] * rows, dtype)
    return pa.concat_arrays([full[:1], empty[:1], full[:1]])[:rows]


VALUES = {
    PAIR: {"a": 1, "b": "x"},
    pa.struct([pa.field("s", PAIR, nullable=False)]): {"s": {"a": 1, "b": "x"}},
    pa.struct([pa.field("l", pa.list_(SURE_ITEM), nullable=False)]): {"l": [1, 2]},
    pa.list_(pa.field("item", PAIR)): [{"a": 1, "b": "x"}],
    pa.list_(SURE_ITEM): [1, 2],
    pa.large_list(SURE_ITEM): [1, 2],
    pa.list_(pa.field("item", pa.float32(), nullable=False), 2): [1.0, 2.0],
    pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False)): [("k", 1)],
    pa.map_(pa.string(), pa.field("value", PAIR, nullable=False)): [("k", {"a": 1, "b": "x"})],
}


@pytest.mark.parametrize("dtype", VALUES, ids=str)
@pytest.mark.parametrize("key", [["id"], None], ids=["keyed", "appended"])
def test_f15_a_null_parent_of_a_field_that_is_not_null_can_be_read_everywhere(tmp_path, dtype, key):
    uri = str(tmp_path / "t")
    shape = pa.schema([pa.field("id", pa.int64(), nullable=not key), pa.field("v", dtype)])
    table = weir.create(uri, shape, primary_key=key)
    values = masked(dtype)
    expected = [VALUES[dtype], None, VALUES[dtype]]

    def check():
        fresh = weir.open(uri)
        rows = fresh.scan().to_table().sort_by("id")
        assert rows.column("v").to_pylist() == expected
        assert fresh.scan(filter="id >= 1").to_table().num_rows == 2
        if key:
            assert fresh.get([0, 1, 2]).column("v").to_pylist() == expected

    with table.writer() as writer:
        writer.put(pa.table({"id": [0, 1, 2], "v": values}, schema=shape))
        if key:
            writer.put(pa.table({"id": [7], "v": masked(dtype)[:1]}, schema=shape))
            writer.delete([7])
        check()
        fed = next(iter(weir.open(uri).changes()))
        assert fed.batch.column("v").to_pylist() == expected
    check()
    weir.open(uri).compact()
    check()


@pytest.mark.parametrize(
    ("dtype", "value", "path"),
    [
        (PAIR, {"a": None, "b": "x"}, "v.a"),
        (pa.struct([pa.field("s", PAIR)]), {"s": {"a": None}}, "v.s.a"),
        (pa.struct([pa.field("s", PAIR, nullable=False)]), {"s": None}, "v.s"),
        (pa.list_(SURE_ITEM), [1, None], "v.item"),
        (pa.list_(pa.field("item", PAIR)), [{"a": None}], "v.item.a"),
        (pa.map_(pa.string(), pa.field("value", PAIR)), [("k", {"a": None})], "v.value.a"),
    ],
    ids=str,
)
def test_f15_a_null_that_no_reader_would_take_is_refused_with_its_place(
    tmp_path, dtype, value, path
):
    shape = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", dtype)])
    table = weir.create(str(tmp_path / "t"), shape, primary_key=["id"])
    with table.writer() as writer:
        with pytest.raises(SchemaMismatch, match=path):
            writer.put([{"id": 1, "v": value}])
        # A slice without the bad value is valid, and a delete carries nothing but its key.
        both = pa.array([value, None], dtype)
        writer.put(pa.table({"id": [2], "v": both[1:]}))
        writer.put(pa.table({"id": [1, 3], "v": both, TOMBSTONE: [True, False]}))
        assert sorted(table.scan().to_table().column("id").to_pylist()) == [2, 3]
    assert table.scan().to_table().column("v").to_pylist() == [None, None]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1], pa.int64()).view(pa.date64()),
        pa.array([90_000], pa.int32()).view(pa.time32("s")),
        pa.Array.from_buffers(
            pa.string(),
            1,
            [None, pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\xff")],
        ),
    ],
    ids=["half a day", "25 o'clock", "not UTF-8"],
)
def test_f15_values_that_the_decoder_calls_damage_are_refused(tmp_path, column):
    shape = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", column.type)])
    table = weir.create(str(tmp_path / "t"), shape, primary_key=["id"])
    with table.writer() as writer:
        with pytest.raises(InvalidInput, match="column 'v'"):
            writer.put(pa.record_batch([pa.array([1]), column], schema=shape))
        writer.put([{"id": 2, "v": None}])
    assert table.scan().to_table().column("id").to_pylist() == [2]


ENTRY_BYTES = 8 << 10
"""The limit of one entry in these tests, in place of a gigabyte."""

SHAPE = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("s", pa.string())])


def small_world():
    return Env(limits=Limits(entry_bytes=ENTRY_BYTES))


def of_size(nbytes, key=0):
    return {"id": key, "s": "x" * nbytes}


def read_strictly(shard):
    """Every entry of the shard's log, decoded with the limit it was written under."""
    site = shard.site
    for meta in site.wal.list(paths.wal_dir(shard.id)):
        position = paths.parse_wal_name(meta.path.rpartition("/")[2])
        data = site.wal.get(meta.path).data
        yield decode_entry(data, position=position, path=meta.path, max_bytes=ENTRY_BYTES)


@pytest.mark.parametrize("memtable", [True, False], ids=["memtable", "wal-only"])
@pytest.mark.parametrize("durable", [True, False], ids=["durable", "buffered"])
def test_f15_a_put_larger_than_an_entry_is_refused_before_it_is_accepted(
    tmp_path, memtable, durable
):
    table = weir.create(str(tmp_path / "t"), SHAPE, primary_key=["id"], env=small_world())
    shard = table.shards()[0]
    writer = shard.writer(WriterConfig(enable_memtable=memtable, durable_write=durable))
    with pytest.raises(InvalidInput, match="split them into several puts"):
        writer.put([of_size(ENTRY_BYTES)])
    with pytest.raises(InvalidInput, match="split them into several puts"):
        writer.put_once([of_size(ENTRY_BYTES)], app="a", version=1)
    with pytest.raises(InvalidInput, match="whole number"):
        writer.put_once([of_size(1)], app="a", version=True)
    # The writer and other puts go on, and puts that are nearly too large are taken.
    for key in range(20):
        writer.put([of_size(ENTRY_BYTES // 3, key)])
    writer.flush_wal()
    entries = [entry for entry in read_strictly(shard) if not entry.is_fence]
    assert sum(entry.num_rows for entry in entries) == 20
    assert weir.open(table.uri).scan().to_table().num_rows == 20
    writer.close()


def test_f15_no_shard_takes_its_part_of_a_put_that_another_must_refuse(tmp_path):
    uri = str(tmp_path / "t")
    sharding = Bucket("id", 4)
    table = weir.create(uri, SHAPE, primary_key=["id"], sharding=sharding, env=small_world())
    with table.writer() as writer:
        rows = [of_size(1, key) for key in range(100)]
        with pytest.raises(InvalidInput, match="split them into several puts"):
            writer.put([*rows, of_size(ENTRY_BYTES, 100)])
        assert weir.open(uri).scan().to_table().num_rows == 0
        writer.put(rows)
    assert weir.open(uri).scan().to_table().num_rows == 100


@pytest.mark.parametrize("seed", range(20))
def test_f15_whatever_the_encoder_lets_through_the_decoder_reads(seed):
    rng = random.Random(seed)
    made = Bench()
    encoder = EntryEncoder(made.table_schema, max_bytes=ENTRY_BYTES)
    taken = 0
    for _ in range(50):
        ids = range(rng.choice((1, 1, 3, 200)))
        size = rng.choice((0, 10, ENTRY_BYTES // 2, ENTRY_BYTES - rng.randrange(2000)))
        rows = [{"id": i, "x": 0.0, "s": "x" * (size // len(ids))} for i in ids]
        batches = made.intake.rows(rows)
        fits = True
        try:
            made.intake.fit(batches, Limits(entry_bytes=ENTRY_BYTES))
        except InvalidInput:
            fits = False
        try:
            entry = encoder.encode(
                batches,
                epoch=Epoch(1),
                generation=Generation(1),
                entry_id="e",
                tokens=[("app", rng.getrandbits(60))],
            )
        except InvalidInput:
            assert not fits, "the queue accepts nothing that the encoder then refuses"
            continue
        taken += 1
        read = decode_entry(entry, position=Position(1), path="p", max_bytes=ENTRY_BYTES)
        assert [row for batch in read.batches for row in batch.column("id").to_pylist()] == [*ids]
    assert taken


def test_f15_a_column_nested_deeper_than_a_stream_may_be_is_refused(tmp_path):
    dtype = pa.int64()
    for _ in range(NESTING_MAX):
        dtype = pa.list_(dtype)
    shape = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", dtype)])
    with pytest.raises(InvalidInput, match="nested"):
        weir.create(str(tmp_path / "t"), shape, primary_key=["id"])
    deepest = pa.schema([shape.field(0), pa.field("v", dtype.value_type)])
    table = weir.create(str(tmp_path / "u"), deepest, primary_key=["id"])
    value = 1
    for _ in range(NESTING_MAX - 1):
        value = [value]
    with table.writer() as writer:
        writer.put([{"id": 1, "v": value}])
        assert table.get([1]).column("v").to_pylist() == [value]
    table.compact()
    assert table.get([1]).column("v").to_pylist() == [value]


def test_f15_a_dictionary_is_refused_whose_index_two_puts_could_outgrow(tmp_path):
    def shape(index):
        dtype = pa.dictionary(index, pa.string())
        return pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", dtype)])

    with pytest.raises(InvalidInput, match="use int32"):
        weir.create(str(tmp_path / "t"), shape(pa.int8()), primary_key=["id"])
    table = weir.create(str(tmp_path / "u"), shape(pa.int32()), primary_key=["id"])
    with table.writer() as writer:
        for start in range(0, 300, 100):
            writer.put([{"id": i, "v": str(i)} for i in range(start, start + 100)])
        assert table.scan().to_table().num_rows == 300
    table.compact()
    assert table.get([0, 299]).column("v").to_pylist() == ["0", "299"]


@pytest.mark.parametrize("mark", [math.nan, "false", "no", 2.5, 1, 0], ids=repr)
def test_m7_what_is_no_boolean_marks_no_delete(tmp_path: Path, mark: object) -> None:
    """The same as for Arrow: a NaN of a DataFrame's records deleted the row."""
    table = weir.create(tmp_path / "t", STRICT, primary_key="id")
    with table.writer() as writer:
        writer.put([{"id": 1, "v": 1}])
        with pytest.raises(weir.SchemaMismatch, match="_tombstone"):
            writer.put([{"id": 1, "v": 2, "_tombstone": mark}])
    assert table.get([1])["v"].to_pylist() == [1]


@pytest.mark.parametrize("mark", [True, np.True_])
def test_deletes_given_as_rows_need_their_key_alone(tmp_path: Path, mark: object) -> None:
    table = weir.create(tmp_path / "t", STRICT, primary_key="id")
    with table.writer() as writer:
        writer.put([{"id": n, "v": n} for n in range(1, 6)])
        writer.put([{"id": 1, "_tombstone": mark}])
        writer.put([{"id": 2, "_tombstone": mark}, {"id": 6, "v": 6, "_tombstone": None}])
        writer.put(pa.table({"id": [3], "_tombstone": [True]}))
        for rows in (
            [{"id": 4, "_tombstone": False}],
            [{"id": 4}],
            [{"id": 4, "v": None}],
            pa.table({"id": [4, 5], "_tombstone": [True, False]}),
        ):
            with pytest.raises(weir.SchemaMismatch, match="'v' is declared not null"):
                writer.put(rows)
    assert sorted(table.scan().to_table()["id"].to_pylist()) == [4, 5, 6]
