"""The site builds, and every link and anchor inside it leads somewhere."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.docs.blocks import ROOT


def build(root, target):
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(target)],
        cwd=root, capture_output=True, text=True, timeout=250, check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_site_builds_without_a_warning(tmp_path):
    done = build(ROOT, tmp_path / "site")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site/internals/invariants/index.html").read_text(encoding="utf-8")
    assert "rules/test_fencing.py" in page  # the hook that generates tables from the code has run
    assert "max_wal_buffer_size" in (
        tmp_path / "site/reference/configuration/index.html"
    ).read_text(encoding="utf-8")
    reference = (tmp_path / "site/reference/api/index.html").read_text(encoding="utf-8")
    text = re.sub(r"<[^>]+>", "", reference)  # signatures have types, as an editor shows them
    assert re.search(r"freshness:\s+Freshness\s+=\s+(\"|&quot;)durable", text)
    assert re.search(r"columns:\s+Columns\s+\|\s+None\s+=\s+None", text)


def test_a_link_to_nowhere_fails_the_build(tmp_path):
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text("[gone](gone.md)\n")
    config = tmp_path / "mkdocs.yml"
    text = config.read_text().partition("nav:\n  - Home")[0]  # only this page
    text = (
        text.partition("hooks:")[0]
        + "markdown_extensions:"
        + text.partition("markdown_extensions:")[2]
    )  # drop the generated tables and docstrings
    config.write_text(text)
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    assert "gone.md" in done.stderr
