"""Batch reads: the same rows as weir's own scan, through every read interface of Spark."""

import gc
import re
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

import weir
import weir.spark
from tests.support.spark import SCHEMA, in_frame, in_weir, make_table, once, put
from weir.errors import InvalidInput
from weir.spark import places
from weir.spark.places import Place
from weir.spark.source import checkpoint_of, parts_of


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> weir.Table:
    """Base rows, SSTables, a tail, an update and a delete on top of each."""
    made = make_table(tmp_path_factory.mktemp("read"))
    put(made, dict.fromkeys(range(40), "base"))
    made.compact()
    put(made, {1: "sstable", 100: "sstable"}, (2,))
    with made.writer(weir.WriterConfig(enable_memtable=False)) as writer:
        writer.put([{"id": 3, "v": "tail"}, {"id": 101, "v": "tail"}])
        writer.delete([4, 100])
    return made


MODEL = once(
    {k: "base" for k in range(40) if k not in (1, 2, 3, 4)} | {1: "sstable", 3: "tail", 101: "tail"}
)


def test_l1_the_data_source_reads_what_weir_reads(spark: SparkSession, table: weir.Table) -> None:
    assert in_weir(table) == MODEL
    assert in_frame(spark.read.format("weir").load(table.uri)) == MODEL
    flushed = spark.read.format("weir").option("freshness", "flushed").load(table.uri)
    assert in_frame(flushed) == in_weir(table, freshness="flushed")
    base = spark.read.format("weir").option("freshness", "base").load(table.uri)
    assert in_frame(base) == in_weir(table, freshness="base")


def test_l3_a_filter_sees_newest_rows_only(spark: SparkSession, table: weir.Table) -> None:
    read = spark.read.format("weir").option("filter", "v = 'base' AND id < 10").load(table.uri)
    expected = {(k, "base") for k in range(10)} - {(k, "base") for k in (1, 2, 3, 4)}
    assert set(in_frame(read)) == expected
    planned = weir.spark.scan(spark, table.uri, filter="v = 'base' AND id < 10")
    assert set(in_frame(planned)) == expected


def test_a_filter_never_leaks_into_other_uses_of_a_dataframe(
    spark: SparkSession, table: weir.Table
) -> None:
    df = spark.read.format("weir").load(table.uri)
    assert df.filter("id = 5").count() == 1
    assert df.count() == MODEL.total()
    assert df.filter("id = 5").union(df.filter("id = 6")).count() == 2
    # With this setting Spark may push filters; a reader that accepted them would leak them.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        again = spark.read.format("weir").load(table.uri)
        assert again.filter("id = 5").count() == 1
        assert again.count() == MODEL.total()
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_columns_come_by_option_or_by_schema(spark: SparkSession, table: weir.Table) -> None:
    assert spark.read.format("weir").option("columns", "v").load(table.uri).columns == ["v"]
    narrow = spark.read.format("weir").schema("id long").load(table.uri)
    assert {row["id"] for row in narrow.collect()} == {key for key, _ in MODEL}
    only = weir.spark.scan(spark, table.uri, columns=["v"], filter="id = 101").collect()
    assert [row.asDict() for row in only] == [{"v": "tail"}]
    with pytest.raises(Exception, match="no column 'nope'"):
        spark.read.format("weir").option("columns", "nope").load(table.uri)


def test_a_read_of_no_column_is_refused_as_a_scan_of_weir_refuses_it(
    spark: SparkSession, table: weir.Table
) -> None:
    """Arrow counts no rows without a column: such a read would say that the table is empty."""
    with pytest.raises(InvalidInput) as refused:
        table.scan(columns=[])
    sentence = re.escape(str(refused.value))
    for empty in ("", " , ", "[]"):
        with pytest.raises(PySparkException, match=sentence):
            spark.read.format("weir").option("columns", empty).load(table.uri)
    with pytest.raises(InvalidInput, match=sentence):
        weir.spark.scan(spark, table.uri, columns=[])
    narrow = spark.read.format("weir").schema(StructType([])).load(table.uri)
    with pytest.raises(PySparkException, match=sentence):
        narrow.count()


def test_sql_reads_and_writes_through_a_view(spark: SparkSession, tmp_path: Path) -> None:
    table = make_table(tmp_path)
    put(table, {1: "a"})
    spark.sql(f"CREATE TEMPORARY VIEW weir_view USING weir OPTIONS (path '{table.uri}')")
    try:
        assert spark.sql("SELECT count(*) AS n FROM weir_view").first()["n"] == 1
        spark.sql("INSERT INTO weir_view VALUES (2, 'b')")
        assert in_weir(table) == once({1: "a", 2: "b"})
        # A view keeps one snapshot for its life; fresh rows need a fresh view.
        assert spark.sql("SELECT count(*) AS n FROM weir_view").first()["n"] == 1
    finally:
        spark.catalog.dropTempView("weir_view")


def test_a_missing_path_says_what_to_do(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="CREATE TEMPORARY VIEW"):
        spark.read.format("weir").load()


def test_a_checkpoint_is_read_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    table = make_table(tmp_path)
    put(table, {1: "then"})
    table.checkpoint("all", name="then")
    put(table, {1: "now", 2: "now"})
    table.compact()
    then = spark.read.format("weir").option("checkpoint", "then").load(table.uri)
    assert in_frame(then) == once({1: "then"})
    assert in_frame(weir.spark.scan(spark, table.uri, checkpoint="then")) == once({1: "then"})


def test_every_type_travels(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.utf8(), nullable=False),
            pa.field("vector", pa.list_(pa.float32(), 3)),
            pa.field("big", pa.uint64()),
            pa.field("small", pa.uint8()),
            pa.field("text", pa.large_utf8()),
            pa.field("raw", pa.large_binary()),
            pa.field("tags", pa.list_(pa.utf8())),
            pa.field("nested", pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.utf8())])),
            pa.field("day", pa.date32()),
            pa.field("at", pa.timestamp("us", "UTC")),
            pa.field("local", pa.timestamp("us")),
            pa.field("price", pa.decimal128(10, 2)),
            pa.field("yes", pa.bool_()),
        ]
    )
    table = weir.create(str(tmp_path / "types"), schema, primary_key="id")
    import datetime as dt

    row = {
        "id": "k",
        "vector": [1.0, 2.0, 3.0],
        "big": 2**64 - 1,
        "small": 255,
        "text": "long",
        "raw": b"\x00\xff",
        "tags": ["x", None],
        "nested": {"a": 1, "b": "n"},
        "day": dt.date(2026, 1, 2),
        "at": dt.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC),
        "local": dt.datetime(2026, 1, 2, 3, 4, 5, 6),  # noqa: DTZ001
        "price": Decimal("12.34"),
        "yes": True,
    }
    nulls = {"id": "nulls"}
    with table.writer() as writer:
        writer.put([row, nulls])
    read = spark.read.format("weir").load(table.uri)
    assert dict(read.dtypes)["vector"] == "array<float>"
    assert dict(read.dtypes)["big"] == "decimal(20,0)"
    # Out and back in, under other keys: the same values, in the table's types.
    copy = read.selectExpr("concat('copy-', id) AS id", *[f"`{n}`" for n in schema.names[1:]])
    weir.spark.write(copy, table.uri)
    planned = weir.spark.scan(spark, table.uri)
    assert planned.count() == 4
    got = {r["id"]: r for r in table.scan().to_table().to_pylist()}
    assert got["copy-k"] == {**row, "id": "copy-k"} == {**got["k"], "id": "copy-k"}
    assert got["copy-nulls"] == {**got["nulls"], "id": "copy-nulls"}


def test_p4_plans_name_no_secret(spark: SparkSession, table: weir.Table) -> None:
    options = {"aws_secret_access_key": "very-secret-value", "aws_access_key_id": "who-am-i"}
    read = spark.read.format("weir")
    for name, value in options.items():
        read = read.option(f"storage.{name}", value)
    frames = [
        read.load(table.uri),
        weir.spark.scan(spark, table.uri, storage_options=options),
    ]
    for df in frames:
        text = df._jdf.queryExecution().toString()
        assert "very-secret-value" not in text
        assert "who-am-i" not in text
    assert "very-secret-value" not in repr(weir.spark.Place("x", options))
    parts = parts_of(table, table.snapshot())
    assert "secret" not in repr(parts)


def test_the_source_is_light_to_import() -> None:
    """Spark imports the module in every session, before it forks."""
    code = (
        "import pyspark_weir, sys; loaded = {m.split('.')[0] for m in sys.modules};"
        "print(sorted({'lance', 'weir', 'pyarrow', 'obstore'} & loaded))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_workers_do_not_go_through_imports_after_each_task(
    spark: SparkSession, table: weir.Table
) -> None:
    """Spark's workers collect garbage after every task; the user's driver is left alone."""
    uri = table.uri

    def frozen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            Place(uri).current()
            yield pa.RecordBatch.from_pydict({"frozen": [gc.get_freeze_count()]})

    found = spark.range(0, 1, 1, 1).mapInArrow(frozen, "frozen long").first()
    assert found is not None
    assert found[0] > 10_000
    Place(uri).current()
    assert gc.get_freeze_count() == 0


def test_c16_tasks_read_the_table_that_their_query_was_planned_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Warm workers know a table that was dropped and made again with another key."""
    uri = str(tmp_path / "t")
    schema = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in ("a", "b")])

    def remade(key: str, rows: int) -> None:
        if key == "b":
            weir.drop(uri)
        with weir.create(uri, schema, primary_key=key).writer() as writer:
            writer.put([{"a": i, "b": i} for i in range(rows)])

    def found() -> tuple[int, int]:
        keys = spark.createDataFrame([(2, 2), (4, 4)], "a long, b long").coalesce(1)
        hits = weir.spark.lookup(keys, uri).where("found.a IS NOT NULL").count()
        return hits, weir.spark.scan(spark, uri).coalesce(1).count()

    remade("a", 3)
    assert found() == (1, 3)
    remade("b", 5)
    assert found() == (2, 5)


def test_a_process_keeps_one_handle_for_each_place(tmp_path: Path) -> None:
    """Storage options with a token that rotates are no other place."""
    uri = make_table(tmp_path).uri
    for number in range(5):
        Place(uri, {"aws_session_token": str(number)}).current()
    assert [key[1] for key in places._OPEN].count(uri) == 1
    before = dict(places._OPEN)
    for number in range(places._MOST_OPEN + 1):
        Place(weir.create(f"{tmp_path}/{number}", SCHEMA).uri).current()
    assert len(places._OPEN) == places._MOST_OPEN
    places._OPEN.clear()
    places._OPEN.update(before)


def test_an_empty_table_is_an_empty_dataframe(spark: SparkSession, tmp_path: Path) -> None:
    table = make_table(tmp_path)
    assert spark.read.format("weir").load(table.uri).count() == 0
    assert weir.spark.scan(spark, table.uri).count() == 0


@pytest.mark.parametrize("keyed", [True, False])
def test_sealed_shards_are_older_than_their_heirs(
    spark: SparkSession, tmp_path: Path, keyed: bool
) -> None:
    table = make_table(tmp_path, keyed=keyed, buckets=2)
    put(table, dict.fromkeys(range(10), "old"))
    table.reshard(weir.Bucket("id", 3), compact=False)
    put(table, dict.fromkeys(range(5), "new"))
    expected = in_weir(table)
    assert expected.total() == (10 if keyed else 15)
    assert in_frame(spark.read.format("weir").load(table.uri)) == expected


def test_a_checkpoint_whose_name_begins_with_a_zero_is_found_by_it(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    made = table.checkpoint(name="007")
    found = checkpoint_of(table, {"checkpoint": "007"})
    assert not isinstance(found, str | None)
    assert found.id == made.id
    with pytest.raises(weir.CheckpointNotFound, match=r"version 7 of the base.*nearest is '007'"):
        checkpoint_of(table, {"checkpoint": "7"})


def test_a_time_before_every_checkpoint_names_the_nearest_one(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    moment = {"weir.asof": "86400000000"}
    with pytest.raises(weir.CheckpointNotFound, match=r"before 1970-01-02 00:00:00\+00:00.* none"):
        checkpoint_of(table, moment)
    table.checkpoint(name="first")
    table.checkpoint(name="second")
    with pytest.raises(weir.CheckpointNotFound, match=r"the first is first, of 20\d\d-"):
        checkpoint_of(table, moment)
