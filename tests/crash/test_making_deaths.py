"""P-9: a table that is made with rows is there with all of them, or not at all.

Real processes, killed before each write of the driver's own code; tests/spark/test_making.py kills
drivers of Spark.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

pytestmark = [pytest.mark.kill, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("how", ["buckets", "identity"])
def test_p9_create_table_as_is_whole_or_absent_and_can_be_run_again(
    tmp_path: Path, how: str
) -> None:
    step = os.environ.get("WEIR_DEATH_STEP", "6")
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.dying_maker", str(tmp_path), how, step],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        check=True,
    )
    deaths = [json.loads(line) for line in done.stdout.splitlines()]
    assert deaths.pop() == [0, "12", 0, "12"], "the last one lived"
    assert len(deaths) > 40 // int(step)
    for code, found, again, then in deaths:
        assert code == -9
        assert found in ("nothing", "12")
        assert (again, then) == ((0, "12") if found == "nothing" else (1, "12"))
