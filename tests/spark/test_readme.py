"""README's Spark lines, pasted as a newcomer would into a plain `pyspark` shell."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, blocks

pytestmark = pytest.mark.spark


def test_the_readmes_lines_run_in_a_plain_pyspark_shell(tmp_path: Path) -> None:
    found = [b for b in blocks(ROOT / "README.md") if "weir.spark" in b.code]
    assert len(found) == 1
    lines = [line for line in found[0].code.splitlines() if line]
    assert len(lines) == 5
    binaries = Path(sys.executable).parent
    # As in a user's own shell: without anything the suite sets for its session.
    mine = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK", "SPARK"))}
    done = subprocess.run(
        [str(binaries / "pyspark")],
        input=found[0].code,
        cwd=tmp_path,
        # -i makes it interactive although its input is not a terminal.
        env={
            **mine,
            "PATH": f"{binaries}{os.pathsep}{mine['PATH']}",
            "PYSPARK_DRIVER_PYTHON_OPTS": "-i",
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stdout + done.stderr
    shown = re.findall(r"\|\s*(\d+)\|\s*(-?\d+)\|", done.stdout)
    assert shown == [("0", "-1"), ("1", "-1"), ("2", "-1")], done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("3"), done.stdout
