"""The command as a person runs it, in this process: takes arguments, returns status and outputs."""

import io
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import weir
from weir.cli import main


@dataclass(frozen=True)
class Ran:
    status: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)

    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Ran]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run `weir` with these arguments; the configuration of this machine is ignored."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-config"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("WEIR_STORAGE_OPTIONS", raising=False)
    monkeypatch.delenv("WEIR_CONFIG", raising=False)
    monkeypatch.delenv("WEIR_DEBUG", raising=False)

    def run_(*arguments: object) -> Ran:
        capfd.readouterr()
        status = main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return Ran(status, out, err)

    return run_


class Screen(io.TextIOWrapper):
    """A terminal, as far as a program can tell."""

    def isatty(self) -> bool:
        return True


STYLES = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def terminal(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run`, with standard output on a terminal of COLUMNS columns; styles are left out."""

    def run_(*arguments: object) -> Ran:
        kept = io.BytesIO()
        screen = Screen(kept, encoding="utf-8")
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", screen)
            ran = run(*arguments)
        screen.flush()
        return replace(ran, out=STYLES.sub("", kept.getvalue().decode()))

    return run_


SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("v", pa.float64()),
        pa.field("name", pa.string()),
    ]
)


@pytest.fixture
def table(tmp_path: Path) -> weir.Table:
    """A table of 4 shards with three rows in its log and SSTables."""
    made = weir.create(
        str(tmp_path / "events"), SCHEMA, primary_key="id", sharding=weir.Bucket("id", 4)
    )
    with made.writer() as writer:
        writer.put([{"id": i, "v": i / 2, "name": f"row {i}"} for i in (1, 2, 3)])
    return made
