"""Help fits a screen, carries an example, and the examples parse."""

import re
import shlex

import pytest

from weir.cli.app import weir

COMMANDS = [
    "create", "enable", "expire", "put", "scan", "get", "search", "tail", "shards", "stats", "top",
    "ls", "checkpoint", "clone", "restore", "drop", "compact", "gc", "keep", "reshard", "wal",
    "doctor", "adopt-shard", "consumer",
]  # fmt: skip
CHECKPOINT = ["create", "list", "refresh", "delete", "release"]
PATHS = [
    [],
    *([name] for name in COMMANDS),
    *(["checkpoint", name] for name in CHECKPOINT),
    ["wal", "move"],
    *(["keep", name] for name in ("run", "status", "retry")),
    ["consumer", "list"],
    ["consumer", "drop"],
]
LINES_MAX = 44


def test_every_command_of_the_contract_is_there_and_no_other():
    assert sorted(weir.list_commands(None)) == sorted(COMMANDS)
    assert sorted(weir.get_command(None, "checkpoint").commands) == sorted(CHECKPOINT)
    assert sorted(weir.get_command(None, "wal").commands) == ["move"]
    assert sorted(weir.get_command(None, "keep").commands) == ["retry", "run", "status"]
    assert sorted(weir.get_command(None, "consumer").commands) == ["drop", "list"]


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
    command = weir
    for name in path:
        command = command.get_command(None, name)
    words = shlex.split(command.epilog.removeprefix("Example: ").partition("   (")[0])
    assert words[0] == "weir"
    node, rest = weir, words[1:]
    while hasattr(node, "get_command"):
        node, rest = node.get_command(None, rest[0]), rest[1:]
    node.make_context("weir", rest, resilient_parsing=False)


@pytest.mark.parametrize("path", PATHS[1:], ids=" ".join)
def test_every_command_has_json(run, path):
    if path in (["checkpoint"], ["wal"], ["keep"], ["consumer"]):
        return
    assert "--json" in run(*path, "--help").out
