"""The README is one screen, without doubles, and every command in it is run by a test."""

import re

from tests.docs.blocks import ROOT, blocks

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
RUN_ELSEWHERE = {"make demo": "tests/docs/test_demo.py", "make test": ".ci/run"}


def test_no_link_is_there_twice():
    links = re.findall(r"\]\(([^)]+)\)", TEXT)
    assert len(links) == len(set(links))


def test_it_fits_a_screen_and_has_one_picture():
    assert len(TEXT.splitlines()) <= 70
    assert TEXT.count("![") == 1


def test_every_command_is_run_by_a_test():
    for block in blocks(ROOT / "README.md"):
        if block.language != "console":
            continue
        assert not block.mark.startswith("skip")  # so tests/docs/test_code.py runs it
        for line in block.code.splitlines():
            command = line.removeprefix("$ ").partition("  ")[0].strip()
            if command.startswith("make"):
                assert (ROOT / RUN_ELSEWHERE[command]).exists()
