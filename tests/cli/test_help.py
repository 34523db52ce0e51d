"""Help fits a screen, carries an example, and the examples parse."""

import re
import shlex

import pytest
import typer

from weir.cli.main import app

COMMANDS = [
    "create", "enable", "expire", "put", "scan", "get", "search", "tail", "shards", "stats", "top",
    "checkpoint", "clone", "restore", "drop", "compact", "gc", "reshard", "wal", "bench", "demo",
    "doctor", "upgrade",
    "adopt-shard",
]  # fmt: skip
CHECKPOINT = ["create", "list", "refresh", "delete", "release"]
PATHS = [
    [],
    *([name] for name in COMMANDS),
    *(["checkpoint", name] for name in CHECKPOINT),
    ["wal", "move"],
]
LINES_MAX = 44


def test_every_command_of_the_contract_is_there_and_no_other():
    group = typer.main.get_command(app)
    assert sorted(group.commands) == sorted(COMMANDS)
    assert sorted(group.commands["checkpoint"].commands) == sorted(CHECKPOINT)
    assert sorted(group.commands["wal"].commands) == ["move"]


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
@pytest.mark.parametrize("columns", [80, 140])
def test_help_fits_a_screen_and_has_an_example(run, path, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERMINAL_WIDTH", str(columns))
    ran = run(*path, "--help")
    assert ran.status == 0
    lines = ran.out.splitlines()
    assert len(lines) <= LINES_MAX
    assert max(len(line) for line in lines) <= columns
    example = re.search(r"Example:\s+(weir .*?)(?:\s{3,}|$)", " ".join(ran.out.split()))
    assert example is not None


@pytest.mark.parametrize("path", PATHS[1:], ids=" ".join)
def test_the_example_of_the_help_uses_options_that_exist(path):
    command = typer.main.get_command(app)
    for name in path:
        command = command.commands[name]
    example = re.sub(r"\[/?bold\]", "", command.epilog or "").removeprefix("Example: ")
    words = shlex.split(example.partition("   (")[0])
    assert words[0] == "weir"
    node, rest = typer.main.get_command(app), words[1:]
    while rest and hasattr(node, "commands") and rest[0] in node.commands:
        node, rest = node.commands[rest[0]], rest[1:]
    node.make_context("weir", rest, resilient_parsing=False)


@pytest.mark.parametrize("path", PATHS[1:], ids=" ".join)
def test_every_command_has_json(run, path):
    if path in (["checkpoint"], ["wal"]):
        return
    assert "--json" in run(*path, "--help").out
