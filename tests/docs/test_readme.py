"""Every command of the README is run by a test."""

from tests.docs.blocks import ROOT, blocks

RUN_ELSEWHERE = {"make demo": "tests/docs/test_demo.py", "make test": ".ci/run"}


def test_every_command_is_run_by_a_test():
    for block in blocks(ROOT / "README.md"):
        if block.language != "console":
            continue
        assert not block.mark.startswith("skip")  # so tests/docs/test_code.py runs it
        for line in block.code.splitlines():
            command = line.removeprefix("$ ").partition("  ")[0].strip()
            if command.startswith("make"):
                assert (ROOT / RUN_ELSEWHERE[command]).exists()
