"""Every example runs, in an empty folder, and prints what it promises."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PRINTS = {
    "plain_writer.py": "999 rows",
    "asyncio_service.py": "200 requests in ",
    "failover.py": "{'id': 2, 'by': 'old'}, {'id': 3, 'by': 'new'}",
    "changes_to_duckdb.py": "(8, 57.0)",
    "vector_table.py": "[{'id': 123",
    "nightly_backup.py": "('2026-01-03', 3)",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PRINTS))
def test_example(name, tmp_path):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], cwd=tmp_path, capture_output=True, text=True,
        timeout=100, check=False, env={**os.environ, "PYTHONWARNINGS": "error::DeprecationWarning"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert PRINTS[name] in done.stdout


def test_every_example_is_run_and_short():
    here = {path.name: path for path in EXAMPLES.glob("*.py")}
    assert sorted(name for name in here if not name.startswith("spark_")) == sorted(PRINTS)
    for name, path in here.items():
        assert len(path.read_text().splitlines()) <= 50, name
