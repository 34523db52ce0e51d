"""The page on configuration: its settings and its SQL, given to spark-sql as a user would."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

import weir
from tests.support.spark import SHORT_LIVED, built_jar
from weir.spark import jar

pytestmark = pytest.mark.skipif(
    jar.compiler() is None and not jar.path().is_file(), reason="no JDK"
)

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "spark-configuration.md"
MORE = f"""
spark.master local[2]
spark.ui.enabled false
spark.driver.host 127.0.0.1
spark.sql.shuffle.partitions 2
spark.sql.catalogImplementation in-memory
spark.driver.extraJavaOptions {SHORT_LIVED}
"""
"""What makes a session small and quiet."""


def block(kind: str) -> str:
    (found,) = re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return found


def test_spark_sql_needs_nothing_but_the_settings_of_the_page(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    settings = block("properties").replace("s3://lake", str(lake))
    settings = re.sub(r"/opt/\S+\.jar", str(built_jar()), settings)
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text(settings + MORE)
    (tmp_path / "visits.sql").write_text(block("sql"))
    done = subprocess.run(
        [Path(pyspark.__file__).parent / "bin" / "spark-sql", "-f", "visits.sql"],
        cwd=tmp_path,
        env={**os.environ, "SPARK_CONF_DIR": str(conf), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == block("text").splitlines()
    assert weir.open(str(lake / "house" / "default" / "copied.lance")).primary_key == ("id",)
