"""Every example runs, in an empty folder, and prints what it promises."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import weir

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PRINTS = {
    "plain_writer.py": "999 rows",
    "asyncio_service.py": "200 requests in ",
    "failover.py": "{'id': 2, 'by': 'old'}, {'id': 3, 'by': 'new'}",
    "changes_to_duckdb.py": "(8, 57.0)",
    "vector_table.py": "[{'id': 123",
    "nightly_backup.py": "('2026-01-03', 3)",
}


REPLICAS = re.compile(r"(\d+) rows acknowledged, (\d+) in the table, each once; 0 lost")
PIPELINE = re.compile(r"(\d+) events, each once; (\d+) acknowledged; 0 lost")


FOR_SERVICES = (
    "shard_of(", "shards_of(", "writer(shards=", "writer.shards", "writer.fenced", "NotOwner",
    "PerWriter(", "put_once(", "follow(", 'changes("now", consumer=', "bookmark", ".lag",
    "drop_consumer(", "due(", "metrics()", '"keep"', '"--dry-run"', '"status"', "weir.Rows",
    "pa.schema(", "BaseModel", "to_pandas()", "create_index(", "create_fts_index(", "indexes()",
    "drop_index(", "add_columns(", "rename_column(", "drop_columns(", "when=", "params=", ".sql(",
    "history()",
)  # fmt: skip


def run(name, folder):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], cwd=folder, capture_output=True, text=True,
        timeout=300, check=False, env={**os.environ, "PYTHONWARNINGS": "error::DeprecationWarning"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert PRINTS.get(name, "") in done.stdout
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PRINTS))
def test_example(name, tmp_path):
    run(name, tmp_path)


@pytest.mark.slow
def test_the_mirror_in_duckdb_can_be_run_again(tmp_path):
    for _ in range(3):
        run("changes_to_duckdb.py", tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_replicas_that_are_killed_rolled_and_frozen_under_load_lose_no_acknowledged_row(tmp_path):
    told = REPLICAS.search(run("replicas/run.py", tmp_path))
    assert told is not None
    acknowledged, held = map(int, told.groups())
    table = weir.open(str(tmp_path / "orders"))
    keys = table.scan(["id"]).to_table()["id"].to_pylist()
    assert len(keys) == len(set(keys)) == held >= acknowledged >= 300
    claims = {shard.value: shard.manifest().writer_epoch for shard in table.shards()}
    assert set(claims.values()) == {2}  # each replica was replaced once


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_pipeline_counts_each_event_once_whatever_is_killed_or_frozen(tmp_path):
    told = PIPELINE.search(run("pipeline/run.py", tmp_path))
    assert told is not None
    held, acknowledged = map(int, told.groups())
    assert held >= acknowledged >= 100


def test_the_two_services_use_all_that_is_for_services():
    folders = [EXAMPLES / "replicas", EXAMPLES / "pipeline"]
    text = " ".join(path.read_text() for folder in folders for path in folder.glob("*.py"))
    assert [name for name in FOR_SERVICES if name not in text] == []


def test_every_example_is_run_and_short():
    here = {path.name: path for path in EXAMPLES.glob("*.py")}
    assert sorted(name for name in here if not name.startswith("spark_")) == sorted(PRINTS)
    for name, path in here.items():
        assert len(path.read_text().splitlines()) <= 50, name
