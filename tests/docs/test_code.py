"""The code of README and docs runs: Python and commands of a page, in order, in an empty folder."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
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
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch, request, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    if any(map(needs_spark, PAGES[page])):
        names["spark"] = request.getfixturevalue("spark")
    for block in PAGES[page]:
        if not is_run(block):
            continue
        if block.language == "console":
            run_console(block, tmp_path, capsys)
            continue
        # Leading blank lines make a traceback show the line number of the page.
        text = "\n" * (block.line - 1) + at_home(block.code, tmp_path)
        exec(compile(text, ROOT / block.page, "exec"), names)


def run_console(block: Block, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run the commands of a block; what it shows below a command is what the command prints."""
    for command, shown in commands(block):
        place = f"{block.page}:{block.line}: {command}"
        if command.startswith("make "):
            check_make(command)
            continue
        capsys.readouterr()
        printed = run_command(command, folder, place, capsys)
        if shown:
            assert steady(printed) == steady(shown), place


def commands(block: Block) -> Iterator[tuple[str, str]]:
    """Each command of a block, and the lines below it."""
    for part in re.split(r"^\$ ", block.code.replace("\\\n> ", ""), flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield command.partition("  #")[0].strip(), shown.strip()


def run_command(command: str, folder: Path, place: str, capsys: pytest.CaptureFixture[str]) -> str:
    if command.startswith("weir ") and not set(command) & set("|<>&;$`\\"):
        # The installed command runs the same function, and starting a process takes a second.
        assert main(shlex.split(command)[1:]) == 0, place
        return capsys.readouterr().out
    binaries = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True,
        timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{place}\n{done.stderr}"
    return done.stdout


def steady(text: str) -> list[str]:
    """The lines without what differs from run to run: how long something took."""
    text = re.sub(r"[\d.,]+ (?=(?:ms|s|rows/s)\b)", "N ", text.strip())
    return [line.rstrip() for line in text.replace("N s", "N ms").splitlines()]


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
