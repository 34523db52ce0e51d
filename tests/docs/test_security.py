"""Each line of the threat model names a test that exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/guides/security.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`((?:\w+/)+test_\w+\.py)(?:::(test_\w+))?`", PAGE)


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_what_the_page_names_is_there(file, name):
    path = ROOT / file
    assert path.exists()
    assert not name or f"def {name}(" in path.read_text(encoding="utf-8")


def test_every_line_of_the_table_names_a_test():
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and "---" not in line]
    threats = rows[rows.index(next(r for r in rows if "what a stranger tries" in r)) + 1 :]
    assert len(threats) >= 12
    for line in threats:
        assert re.search(r"/test_\w+\.py", line), line
