"""P-4: what Spark records of a query holds no secret if the options only say where it is."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

import weir
from tests.support.moments import make, put
from weir.errors import InvalidInput
from weir.spark.places import Place

JOB = Path(__file__).parent.parent / "support" / "secret_job.py"


@pytest.mark.spark
@pytest.mark.slow
def test_p4_an_event_log_holds_no_secret_that_is_passed_by_name(tmp_path):
    table = make(tmp_path / "t", 1)
    with table.writer() as writer:
        put(writer, range(3), "a")
    events = tmp_path / "events"
    events.mkdir()
    done = subprocess.run(
        [sys.executable, str(JOB), table.uri, str(events)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    log = "".join(p.read_text() for p in events.rglob("*") if p.is_file())
    assert "SparkListenerSQLExecutionStart" in log
    assert "by-reference-value" not in log
    assert "hidden-by-regex-value" not in log, "docs/guides/spark.md says that the pattern hides it"
    assert "plain-option-value" in log, "what this is about; else Spark has changed, say so in docs"


def test_p4_options_by_name_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("LAKE_SECRET", '{"aws_region": "r", "aws_access_key_id": "k"}')
    options = {"path": "s3://b/t", "storageoptionsfrom": "LAKE_SECRET", "storage.aws_region": "own"}
    assert Place.of(options).storage == {"aws_region": "own", "aws_access_key_id": "k"}
    monkeypatch.setenv("LAKE_SECRET", "hunter2")
    with pytest.raises(InvalidInput, match="LAKE_SECRET") as caught:
        Place.of(options)
    assert "hunter2" not in str(caught.value)
    assert isinstance(caught.value, weir.WeirError)


def test_p4_secrets_given_as_options_are_told_of_by_name(caplog):
    with caplog.at_level(logging.WARNING, "weir.spark"):
        Place.of({"path": "x", "storage.azure_storage_account_key": "hunter2"})
    (record,) = caplog.records
    assert "storage.azure_storage_account_key" in record.getMessage()
    assert "hunter2" not in record.getMessage()
    caplog.clear()
    Place.of({"path": "x", "storage.aws_region": "r"})
    assert not caplog.records
