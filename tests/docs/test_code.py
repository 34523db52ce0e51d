"""The code of README and docs runs: Python and commands of a page, in order, in an empty folder."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, Block, blocks, pages
from weir.cli import main

RUN = ("python", "console")
SPARK = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]
PAGES = {
    str(page.relative_to(ROOT)): [b for b in blocks(page) if b.language in RUN] for page in pages()
}


def is_run(block: Block) -> bool:
    return not block.mark.startswith("skip")


def needs_spark(block: Block) -> bool:
    return block.mark == "setup spark"


def at_home(code: str, folder: Path) -> str:
    """The same code with buckets and disks below `folder`, and without storage options."""
    code = re.sub(r"\b(?:s3|gs|az|file)://", f"{folder}/", code)
    return code.replace("storage_options={...}", "storage_options={}")


def params():
    for name, found in PAGES.items():
        if any(is_run(block) for block in found):
            spark = any(map(needs_spark, found))
            marks = SPARK if spark else []
            yield pytest.param(name, id=name, marks=[pytest.mark.slow, *marks])


@pytest.mark.parametrize("page", list(params()))
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    if any(map(needs_spark, PAGES[page])):
        names["spark"] = request.getfixturevalue("spark")
    for block in PAGES[page]:
        if not is_run(block):
            continue
        if block.language == "console":
            run_console(block, tmp_path)
            continue
        # Leading blank lines make a traceback show the line number of the page.
        text = "\n" * (block.line - 1) + at_home(block.code, tmp_path)
        exec(compile(text, ROOT / block.page, "exec"), names)


def run_console(block: Block, folder: Path) -> None:
    binaries = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}"}
    for line in block.code.replace("\\\n> ", "").splitlines():
        if not line.startswith("$ "):
            continue
        command = line[2:].partition("  #")[0].strip()
        if command.startswith("make "):
            check_make(command)
            continue
        if command.startswith("weir ") and not set(command) & set("|<>&;$`\\"):
            # The installed command runs the same function, and starting a process takes a second.
            assert main(shlex.split(command)[1:]) == 0, f"{block.page}:{block.line}: {command}"
            continue
        done = subprocess.run(
            command, shell=True, cwd=folder, env=environment, capture_output=True, text=True,
            timeout=100, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{block.page}:{block.line}: {command}\n{done.stderr}"


def check_make(command: str) -> None:
    """Check that the target exists; what it does is tested elsewhere."""
    makefile = (ROOT / "Makefile").read_text()
    for target in shlex.split(command)[1:]:
        if "=" not in target:
            assert re.search(rf"^{target}:.*## ", makefile, re.MULTILINE), command


def test_a_skipped_block_says_why():
    for found in PAGES.values():
        for block in found:
            if block.mark.startswith("skip"):
                assert re.fullmatch(r"skip \(.+\)", block.mark), f"{block.page}:{block.line}"


def test_most_code_is_run():
    every = [block for found in PAGES.values() for block in found]
    assert sum(map(is_run, every)) > 0.8 * len(every)
