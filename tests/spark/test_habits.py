"""What users of another table format type first: it works, or weir says what to type."""

import re
import sys
import uuid
import venv
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import weir
import weir.spark
from tests.support.spark import frame, in_frame, in_weir, make_table, once, put
from weir.errors import InvalidInput, NotAWeirTable, SchemaMismatch
from weir.spark.failures import weir_error_in
from weir.spark.making import defaults_of
from weir.spark.options import READ, check_options
from weir.spark.places import Place
from weir.spark.source import check_times


@pytest.mark.parametrize("keyed", [True, False])
def test_l6_what_spark_wrote_is_folded_by_default(
    spark: SparkSession, tmp_path: Path, keyed: bool
) -> None:
    table = make_table(tmp_path, keyed=keyed)
    rows = dict.fromkeys(range(30), "x")
    weir.spark.write(frame(spark, rows), table.uri)
    frame(spark, dict.fromkeys(range(100, 110), "y")).write.format("weir").mode("append").save(
        table.uri
    )
    report = weir.spark.compact(spark, table.uri)
    assert (report.rows_written, report.notes) == (40, [])
    assert in_weir(table, freshness="base").total() == 40


def test_uris_as_hadoop_spells_them() -> None:
    assert Place("file:/data/x").uri == Place("file:///data/x").uri == "/data/x"
    assert Place("file:/data/x", wal_uri="s3a://b/w").wal_uri == "s3://b/w"


def test_a_load_into_a_file_uri_goes_where_it_says(spark: SparkSession, tmp_path: Path) -> None:
    weir.spark.bulk_load(frame(spark, {1: "a"}), f"file:{tmp_path}/t", primary_key="id")
    assert in_frame(spark.read.format("weir").load(f"file:{tmp_path}/t")) == once({1: "a"})
    assert weir.open(str(tmp_path / "t")).primary_key == ("id",)


def test_strings_are_not_parsed_and_floats_not_rounded(spark: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("f", pa.float32())])
    weir.create(uri, schema)
    for text, column in (("'7' AS id", "id"), ("1L AS id, '1.5' AS f", "f")):
        with pytest.raises(SchemaMismatch, match=f"column '{column}' is string") as refused:
            weir.spark.write(spark.range(1).selectExpr(*text.split(", ")), uri)
        assert len(str(refused.value)) < 250
    with pytest.raises(SchemaMismatch, match="exactly; to accept the loss"):
        weir.spark.write(spark.range(1).selectExpr("1L AS id", "0.1D AS f"), uri)
    weir.spark.write(spark.range(1).selectExpr("1 AS id", "0.5D AS f"), uri)


def test_names_of_columns_are_found_whatever_their_case(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = make_table(tmp_path)
    rows = spark.range(3).selectExpr("id AS ID", "'x' AS V", "id = 2 AS Gone")
    weir.spark.write(rows, table.uri, delete_column="gone")
    rows.drop("Gone").where("ID = 1").write.format("weir").mode("append").save(table.uri)
    weir.spark.bulk_load(rows.drop("Gone").where("ID = 0"), table.uri, primary_key="Id")
    assert in_weir(table) == once({0: "x", 1: "x"})
    assert weir.spark.scan(spark, table.uri, columns=["V"]).columns == ["v"]
    with pytest.raises(SchemaMismatch, match="occurs twice"):
        weir.spark.write(spark.range(1).selectExpr("id", "id AS ID"), table.uri)


def test_a_time_in_a_filter_says_its_zone(spark: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    weir.spark.bulk_load(
        spark.range(24).selectExpr(
            "id", "timestamp '2026-01-01 00:00:00Z' + make_dt_interval(0, cast(id AS int)) AS ts"
        ),
        uri,
        primary_key="id",
    )
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        by_spark = spark.read.format("weir").load(uri).where("ts >= '2026-01-01T12:00:00+01:00'")
        text = "ts >= timestamp '2026-01-01T12:00:00+01:00'"
        assert weir.spark.scan(spark, uri, filter=text).count() == by_spark.count() == 13
        with pytest.raises(InvalidInput, match=r"without an offset.*Asia/Tokyo"):
            weir.spark.scan(spark, uri, filter="ts >= timestamp '2026-01-01 12:00:00'")
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert weir.spark.scan(spark, uri, filter="ts >= timestamp '2026-01-01 12:00:00'").count() == 12
    schema = weir.open(uri).schema
    check_times("id > 3", schema, None)
    check_times("ts > '2026-01-01 00:00:00'", schema, "UTC")
    with pytest.raises(InvalidInput, match="unknown to a data source"):
        check_times("ts > '2026-01-01'", schema, None)
    for literal, hours in (("2026-01-01", 24), ("2026-01-01 12", 12), ("2026-01-01 12:00:00", 12)):
        with pytest.raises(InvalidInput, match="without an offset") as refused:
            check_times(f"ts >= timestamp '{literal}'", schema, None)
        (advice,) = re.findall("Write (timestamp '[^']+')", str(refused.value))
        check_times(f"ts >= {advice}", schema, None)
        assert weir.open(uri).scan(filter=f"ts >= {advice}").count() == hours


def test_a_load_with_a_null_or_double_key_says_so_and_leaves_no_table(
    spark: SparkSession, tmp_path: Path
) -> None:
    uri = str(tmp_path / "t")
    rows = spark.range(4).selectExpr("nullif(id, 2) AS id", "'x' AS v")
    with pytest.raises(InvalidInput, match=r"key column 'id' holds a null") as refused:
        weir.spark.bulk_load(rows, uri, primary_key="id")
    assert len(str(refused.value)) < 200
    with pytest.raises(InvalidInput, match="twice"):
        weir.spark.bulk_load(rows.selectExpr("1L AS id", "v"), uri, primary_key="id")
    weir.spark.bulk_load(rows.selectExpr("coalesce(id, 9L) AS n", "v"), uri, primary_key="n")
    assert weir.open(uri).primary_key == ("n",)


def test_only_key_columns_become_not_null(spark: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    rows = spark.range(3).selectExpr("id", "id AS n", "struct(id AS x) AS s", "array(id) AS a")
    weir.spark.bulk_load(rows, uri, primary_key="id")
    weir.spark.write(
        spark.range(3, 4).selectExpr(
            "id",
            "cast(NULL AS long) AS n",
            "struct(cast(NULL AS long) AS x) AS s",
            "array(cast(NULL AS long)) AS a",
        ),
        uri,
    )
    assert weir.open(uri).get([3]).to_pylist() == [
        {"id": 3, "n": None, "s": {"x": None}, "a": [None]}
    ]


def test_an_unknown_option_is_refused_with_the_nearest(spark: SparkSession, tmp_path: Path) -> None:
    table = make_table(tmp_path)
    with pytest.raises(PySparkException, match="did you mean freshness"):
        spark.read.format("weir").option("fresh", "base").load(table.uri)
    with pytest.raises(PySparkException, match="'versionasof': use the option checkpoint"):
        spark.read.format("weir").option("versionAsOf", "1").load(table.uri)
    with pytest.raises(PySparkException, match="did you mean maxEntryBytes"):
        frame(spark, {1: "a"}).write.format("weir").option("maxEntrySize", "1").mode("append").save(
            table.uri
        )
    check_options({"storage.aws_region": "x", "PATH": "p"}, READ, "a read")


def test_a_refusal_is_short(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException) as refused:
        spark.read.format("weir").load(str(tmp_path / "nothing"))
    assert "NotAWeirTable" in str(refused.value)
    assert str(refused.value).count("File ") <= 4
    assert weir_error_in("nothing of weir") is None
    assert isinstance(
        weir_error_in("x\nweir.errors.CommitConflict: a\nb\n\tat java"), weir.CommitConflict
    )


def test_gc_from_spark_has_a_dry_run(spark: SparkSession, tmp_path: Path) -> None:
    table = make_table(tmp_path)
    put(table, {1: "a"})
    table.compact()
    report = weir.spark.gc(spark, table.uri, min_age=0, fence_retention="3m", dry_run=True)
    assert report.dry_run
    assert in_weir(table) == once({1: "a"})


@pytest.mark.parametrize("more", [("pyarrow", "numpy", "pandas"), ()])
def test_workers_without_weir_are_told_apart(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    """A driver in an environment that is not activated: its tasks run in another Python, which may
    not even have Arrow."""
    venv.create(tmp_path / "bare", with_pip=False, system_site_packages=False)
    bare = tmp_path / "bare" / "bin" / "python"
    packages = next(p for p in sys.path if p.endswith("site-packages"))
    here = tmp_path / "packages"
    here.mkdir()
    for name in ("pyspark", "py4j", *more, *(f"{name}.libs" for name in more)):
        if (Path(packages) / name).exists():
            (here / name).symlink_to(Path(packages) / name)
    wrapper = tmp_path / "python-of-workers"
    wrapper.write_text(f'#!/bin/sh\nPYTHONPATH={here} exec {bare} -S "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(wrapper))
    other = spark.newSession()  # a registered data source keeps its Python
    with pytest.raises(InvalidInput, match=r"Set PYSPARK_PYTHON .* by spark-submit alone"):
        weir.spark.register(other)


# -- created on first write ------------------------------------------------------------------------


def test_a_table_is_made_by_the_first_write(spark: SparkSession, tmp_path: Path) -> None:
    uri = f"{tmp_path}/{uuid.uuid4().hex}"
    rows = frame(spark, dict.fromkeys(range(8), "x"))
    with pytest.raises(PySparkException, match="primaryKey"):
        rows.write.format("weir").mode("append").save(uri)
    made = rows.write.format("weir").option("primaryKey", "ID").option("buckets", "4")
    made.option("walUri", f"{tmp_path}/wal").option(
        "writerDefaults", '{"max_memtable_rows": 77}'
    ).mode("append").save(uri)
    table = weir.open(uri)
    assert table.writer_defaults.max_memtable_rows == 77
    with pytest.raises(InvalidInput, match="fields of weir"):
        defaults_of({"writerdefaults": '{"max_rows": 1}'})
    assert (table.primary_key, table.sharding) == (("id",), weir.Bucket("id", 4))
    assert table.wal_uri == f"{tmp_path}/wal"
    made.mode("append").save(uri)  # the same call again writes into the existing table
    assert in_weir(table) == once(dict.fromkeys(range(8), "x"))
    with pytest.raises(PySparkException, match="has the primary key"):
        rows.write.format("weir").option("primaryKey", "v").mode("append").save(uri)


def test_append_only_and_identity_on_the_first_write(spark: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    rows = frame(spark, {1: "a", 2: "b"})
    weir.spark.write(rows, uri, options={"primaryKey": "", "shardBy": "v"})
    weir.spark.write(rows, uri)
    assert weir.open(uri).sharding == weir.Identity("v")
    assert in_weir(weir.open(uri)).total() == 4
    with pytest.raises(NotAWeirTable):
        weir.spark.write(rows, str(tmp_path / "other"))
    options = {"primaryKey": "id", "buckets": "2", "shardBy": "bucket(2, id)"}
    with pytest.raises(InvalidInput, match="one of them"):
        weir.spark.write(rows, str(tmp_path / "other"), options=options)


def test_merge_schema_adds_columns(spark: SparkSession, tmp_path: Path) -> None:
    table = make_table(tmp_path)
    put(table, {1: "a"})
    rows = spark.range(2, 3).selectExpr("id", "'b' AS v", "cast(id AS double) AS w", "struct(id) s")
    with pytest.raises(SchemaMismatch, match="mergeSchema"):
        weir.spark.write(rows, table.uri)
    weir.spark.write(rows, table.uri, options={"mergeSchema": "true"})
    found = weir.open(table.uri).scan().to_table().sort_by("id").to_pylist()
    assert found == [
        {"id": 1, "v": "a", "w": None, "s": None},
        {"id": 2, "v": "b", "w": 2.0, "s": {"id": 2}},
    ]


def test_a_stream_makes_its_table(spark: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    put(source := make_table(tmp_path), dict.fromkeys(range(5), "x"))
    query = (
        spark.readStream.format("weir")
        .load(source.uri)
        .writeStream.format("weir")
        .option("checkpointLocation", str(tmp_path / "c"))
        .option("primaryKey", "id")
        .trigger(availableNow=True)
        .start(uri)
    )
    query.awaitTermination()
    assert in_weir(weir.open(uri)) == once(dict.fromkeys(range(5), "x"))
