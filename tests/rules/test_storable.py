"""F-15: what can be written can be flushed and read, whatever the types and names of columns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import weir
from weir.lake import trial
from weir.lake.base import adopt

POINT = pa.struct([("x", pa.int32())])
WORDS = pa.dictionary(pa.int32(), pa.string())

REFUSED = {
    "vectors of structs": pa.list_(POINT, 2),
    "vectors of text": pa.list_(pa.string(), 2),
    "vectors of bytes": pa.list_(pa.binary(), 2),
    "vectors of text in a list": pa.list_(pa.list_(pa.string(), 2)),
    "vectors of text in a struct": pa.struct([("v", pa.list_(pa.string(), 2))]),
    "vectors of dictionaries": pa.list_(WORDS, 2),
    "vectors of lists": pa.list_(pa.list_(pa.int32()), 2),
    "vectors of nothing": pa.list_(pa.float32(), 0),
    "structs without fields": pa.struct([]),
    "structs without fields in a list": pa.list_(pa.struct([])),
}


def full_row(dtype: pa.DataType) -> object:
    """A value of the type, as Python has it."""
    if dtype == WORDS:
        return "a"
    if pa.types.is_struct(dtype):
        return {dtype.field(i).name: full_row(dtype.field(i).type) for i in range(dtype.num_fields)}
    if pa.types.is_map(dtype):
        return [("k", full_row(dtype.item_type))]
    if pa.types.is_fixed_size_list(dtype):
        return [full_row(dtype.value_type)] * dtype.list_size
    if pa.types.is_list(dtype):
        return [full_row(dtype.value_type)]
    return pa.scalar(1).cast(dtype).as_py()


def lifecycle(table: weir.Table, key: str, column: str, value: object) -> None:
    """Rows with a value, with a null, and deleted: in the log, an SSTable, and the base."""
    expected = {1: value, 2: None}
    with table.writer() as writer:
        for level in ("log", "sstable", "base"):
            writer.put([{key: 1, column: value}, {key: 2, column: None}, {key: 3, column: value}])
            writer.delete([3])
            if level != "log":
                writer.flush()
            if level == "base":
                table.compact()
            found = {row[key]: row[column] for row in table.scan().to_table().to_pylist()}
            assert found == expected, level
            assert table.get([1]).to_pylist() == [{key: 1, column: value}], level
            assert table.count() == 2, level


@pytest.mark.parametrize("dtype", REFUSED.values(), ids=list(REFUSED))
def test_f15_a_type_whose_rows_could_not_be_flushed_or_read_is_refused(
    tmp_path: Path, dtype: pa.DataType
) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("c", dtype)])
    with pytest.raises(weir.InvalidInput, match="column 'c'"):
        weir.create(tmp_path / "t", schema, primary_key="id")
    with pytest.raises(weir.InvalidInput, match="column 'c'"):
        weir.create(tmp_path / "t", schema)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "dtype",
    [
        pa.int8(),
        pa.float16(),
        pa.string(),
        pa.timestamp("us", "UTC"),
        pa.decimal128(25, 2),
        WORDS,
        POINT,
        pa.list_(POINT),
        pa.list_(pa.float32(), 4),
        pa.list_(pa.list_(pa.float32(), 2), 2),
        pa.map_(pa.string(), POINT),
        pa.struct([("p", POINT), ("d", WORDS)]),
        pa.list_(WORDS),
    ],
    ids=str,
)
def test_f15_a_type_that_is_taken_goes_through_every_level(
    tmp_path: Path, dtype: pa.DataType
) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("c", dtype)])
    table = weir.create(tmp_path / "t", schema, primary_key="id")
    lifecycle(table, "id", "c", full_row(dtype))


@pytest.mark.parametrize("name", ["a`b", "`", "*", 'a"b', "a'b", "a b", "a*", "ä", "a,b", "select"])
@pytest.mark.parametrize("is_key", [True, False], ids=["key", "column"])
def test_f15_a_name_is_refused_before_anything_is_written_or_works_everywhere(
    tmp_path: Path, name: str, *, is_key: bool
) -> None:
    key, column = (name, "v") if is_key else ("id", name)
    schema = pa.schema([pa.field(key, pa.int64()), pa.field(column, pa.int64())])

    def create() -> weir.Table:
        return weir.create(tmp_path / "t", schema, primary_key=key, sharding=weir.Bucket(key, 2))

    if "`" in name or name == "*" or ('"' in name and is_key):
        with pytest.raises(weir.InvalidInput, match="column") as refused:
            create()
        assert repr(name) in str(refused.value)
        assert not list(tmp_path.iterdir())
    else:
        lifecycle(create(), key, column, 7)


@pytest.mark.parametrize("key", [["a`b"], ["id", "a`b"]], ids=["alone", "composite"])
def test_f15_of_a_key_that_cannot_be_stored_its_own_name_is_told(
    tmp_path: Path, key: list[str]
) -> None:
    schema = pa.schema([pa.field(name, pa.int64()) for name in ("v", "id", "a`b")])
    with pytest.raises(weir.InvalidInput, match=r"^column 'a`b': Lance cannot store"):
        weir.create(tmp_path / "t", schema, primary_key=key)


def test_f15_enable_refuses_what_could_not_be_flushed(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("a`b", pa.int64())])
    dataset = lance.write_dataset(schema.empty_table(), tmp_path / "t")
    with pytest.raises(weir.InvalidInput, match="'a`b'"):
        weir.enable(tmp_path / "t", primary_key="id")
    assert lance.dataset(tmp_path / "t").version == dataset.version
    assert not (tmp_path / "t" / "_weir").exists()


def test_f15_a_writer_refuses_columns_that_were_added_and_could_not_be_flushed(
    tmp_path: Path,
) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.int64())])
    table = weir.create(tmp_path / "t", schema, primary_key="id")
    lance.dataset(tmp_path / "t").add_columns(pa.schema([pa.field("w", pa.list_(pa.string(), 2))]))
    with pytest.raises(weir.InvalidInput, match="column 'w'"):
        table.shard(0).writer()
    assert table.count() == 0


def test_f15_enable_refuses_structs_in_files_of_a_version_without_null_structs(
    tmp_path: Path,
) -> None:
    """Every delete is a row of nulls."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("c", POINT)])
    lance.write_dataset(schema.empty_table(), tmp_path / "t", data_storage_version="2.0")
    with pytest.raises(weir.InvalidInput, match="column 'c'"):
        weir.enable(tmp_path / "t", primary_key="id")
    assert not (tmp_path / "t" / "_weir").exists()


def test_a_column_added_beside_columns_of_an_old_table_is_tried_alone(tmp_path: Path) -> None:
    """A table that is in use can still be written, whatever its first columns are."""
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.int64())])
    table = weir.create(tmp_path / "t", schema, primary_key="id")
    tried: list[list[str]] = []
    real = trial.require_storable

    def noted(schema: pa.Schema, *arguments: Any, **options: Any) -> None:
        tried.append(schema.names)
        real(schema, *arguments, **options)

    lance.dataset(tmp_path / "t").add_columns(pa.schema([pa.field("w", pa.int64())]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adopt, "require_storable", noted)
        for _ in range(2):
            table.shard(0).writer().close()
    assert tried == [["id", "w"]]


@pytest.mark.parametrize("name", ["generation", "writer_epoch", "fence_sentinel"])
def test_metadata_that_entries_of_the_log_use_is_refused(tmp_path: Path, name: str) -> None:
    schema = pa.schema([pa.field("id", pa.int64())], metadata={name: "7", "other": "x"})
    with pytest.raises(weir.InvalidInput, match=name):
        weir.create(tmp_path / "t", schema, primary_key="id")
    assert not list(tmp_path.iterdir())


def in_list(values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, 2, 3], pa.int32()), values)


def in_struct(values: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays([values.slice(0, 2)], names=["w"])


def plain(values: pa.Array) -> pa.Array:
    return values.slice(0, 2)


@pytest.mark.parametrize("shape", [plain, in_list, in_struct])
def test_f15_dictionaries_that_hold_a_null_are_encoded_again(
    tmp_path: Path, shape: Callable[[pa.Array], pa.Array]
) -> None:
    """Arrow cannot put two of them together, so one entry would hide the whole table."""

    def rows(*words: str | None) -> pa.RecordBatch:
        encoded = pa.array(words).dictionary_encode(null_encoding="encode")
        assert encoded.dictionary.null_count
        return pa.record_batch({"id": pa.array([1, 2]), "c": shape(encoded)})

    first, second = rows("a", None, "b"), rows(None, "c", "a")
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("c", first.schema.field("c").type)])
    table = weir.create(tmp_path / "t", schema)
    given = [*first.column("c").to_pylist(), *second.column("c").to_pylist()]
    with table.writer() as writer:
        writer.put(first)
        writer.put(second)
        assert table.scan().to_table()["c"].to_pylist() == given
        writer.flush()
        assert table.scan().to_table()["c"].to_pylist() == given
        writer.put(pa.table({"id": first.column("id"), "c": first.column("c")}))
    table.compact()
    assert table.count() == 6


@pytest.mark.parametrize("of", [lambda t: t, pa.list_, lambda t: pa.struct([("p", t)])])
def test_f15_json_columns_are_refused_wherever_columns_are_made(
    tmp_path: Path, of: Callable[[pa.DataType], pa.DataType]
) -> None:
    """Lance rewrites such text, and what is no JSON was acknowledged and blocked every flush."""
    json = pa.field("c", of(pa.json_()))
    schema = pa.schema([pa.field("id", pa.int64()), json])
    with pytest.raises(weir.InvalidInput, match=r"'c' is JSON .* Use pa.string\(\)"):
        weir.create(tmp_path / "t", schema, primary_key="id")
    assert not list(tmp_path.iterdir())
    table = weir.create(tmp_path / "t", schema.remove(1), primary_key="id")
    with pytest.raises(weir.InvalidInput, match=r"'c' is JSON"):
        table.add_columns([json])
    data = lance.write_dataset(pa.table({"id": [1]}), str(tmp_path / "d"))
    data.add_columns([json])
    with pytest.raises(weir.InvalidInput, match=r"'c' is JSON"):
        weir.enable(str(tmp_path / "d"))
