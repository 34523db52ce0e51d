"""Examples that need Spark, and weir on Spark Connect."""

import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import weir
from tests.docs.blocks import ROOT
from tests.support.spark import built_jar, in_weir, make_table, once

PRINTS = {
    "spark_stream.py": ("1000 rows", "'rows_written': 1000"),
    "spark_rate.py": ("1000 rows and more: True and none twice: True",),
    "spark_sql.py": (
        "|  new|     6|",
        "| paid|     1|    10|",
        "|  new|     5|   255|",
        "|     6|   210|",
    ),
}


@pytest.mark.parametrize("name", sorted(PRINTS))
def test_an_example_runs(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Use the suite's session, which the example's `getOrCreate` returns, to start one JVM less."""
    built_jar()
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    shown = capsys.readouterr().out
    for words in PRINTS[name]:
        assert words in shown
    assert not spark.streams.active


def test_every_example_on_spark_is_run() -> None:
    here = {path.name for path in (ROOT / "examples").glob("spark_*")}
    assert here == {*PRINTS, "spark_pipeline", "spark_sql.sql"}


@pytest.mark.spark
@pytest.mark.timeout(800)
def test_spark_connect_and_a_declarative_pipeline(tmp_path: Path) -> None:
    """One Connect server for both: the pipeline runs in the session of the program."""
    built_jar()
    table = make_table(tmp_path, buckets=2)
    shutil.copytree(ROOT / "examples" / "spark_pipeline", tmp_path / "pipeline")
    spec = tmp_path / "pipeline" / "spark-pipeline.yml"
    lines = spec.read_text().replace("s3://lake", f"file://{tmp_path}")
    assert str(tmp_path) in lines
    spec.write_text(lines)
    rows = {k: f"v{k}" for k in range(20)}
    (tmp_path / "in").mkdir()
    text = "\n".join(json.dumps({"id": k, "v": v}) for k, v in rows.items())
    (tmp_path / "in" / "0.json").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.connect_job", str(tmp_path), str(spec)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src"))),
            "PYTHONWARNINGS": "ignore",
            "WEIR_TABLE": table.uri,
            "WEIR_INPUT": str(tmp_path / "in"),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=780,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("FOUND "))
    found = json.loads(line.removeprefix("FOUND "))
    assert found["session"] == "pyspark.sql.connect.session"
    assert found["source"] == found["base"] == {"a": 90, "b": 20}
    assert found["scan"] == {"a": 40, "b": 20}
    assert found["engine"] == "spark"
    assert found["told"] >= 1
    assert found["past"] == {"a": 6}
    before, after = dict.fromkeys(range(6), "a"), dict.fromkeys((4, 6, 7, 8), "b")
    assert in_weir(weir.open(f"{tmp_path}/lake/db/copy.lance")) == once(before)
    del before[5]
    assert in_weir(weir.open(f"{tmp_path}/lake/db/t.lance")) == once(before | after)
    assert in_weir(table) == once(rows)
