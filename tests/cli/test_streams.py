"""Pipes, closed streams, terminals of one byte, files where folders must be."""

import contextlib
import os
import pty
import re
import subprocess
import sys

import pytest

import weir

LONG = "x" * 300


EACH = """
import sys
from weir.cli import main
for line in sys.argv[1:]:
    status = main(line.split())
    if status:
        sys.exit(status)
"""
"""One process for several commands: it takes longer to start than they do."""


def weir_as_process(*commands, **more):
    """Run the commands, one line each, until one fails."""
    command = [sys.executable, "-c", EACH, *commands]
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)


@pytest.fixture
def wide(tmp_path):
    table = weir.create(
        str(tmp_path / "wide"), {"id": "int64", "name": "string", "v": "list<double>"}
    )
    with table.writer() as writer:
        writer.put([{"id": 1, "name": LONG + "Zürich …", "v": [1 / 3] * 9}])
    return table


def test_in_a_pipe_nothing_is_cut(wide):
    commands = f"scan {wide.uri}", f"tail --no-follow {wide.uri}"
    ran = weir_as_process(*commands, env={**os.environ, "COLUMNS": "40"})
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count(LONG) == 2
    assert ran.stdout.count(str(1 / 3)) == 18
    assert len(ran.stdout.splitlines()) == 4 + 1


def test_on_a_terminal_a_change_is_one_line_that_fits(wide):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "weir", "tail", "--no-follow", wide.uri]
    environment = {**os.environ, "COLUMNS": "60", "NO_COLOR": "1"}
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        seen = b""
        with contextlib.suppress(OSError):  # EIO: the other side is closed
            while True:
                seen += os.read(ours, 65536)
        assert process.wait() == 0
    os.close(ours)
    assert seen.count(b"\n") == 1
    assert "…" in seen.decode()
    assert b"x" * 60 not in seen


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
    ids=["stream", "locale"],
)
def test_what_an_encoding_lacks_is_written_as_an_escape(wide, environment):
    commands = [f"{c} {wide.uri}" for c in ("scan", "tail --no-follow", "top --once -i 0.1")]
    ran = weir_as_process(*commands, env={**os.environ, **environment})
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.isascii()
    assert ran.stdout.count("Z\\xfcrich") == 2


def closed(redirection, *commands):
    shell = f'exec "$0" -c "$@" {redirection}'
    command = ["sh", "-c", shell, sys.executable, EACH, *commands]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_closed_standard_input_is_wrong_usage(table):
    for command in (f"put {table.uri}", f"drop {table.uri}"):
        ran = closed("<&-", command)
        assert ran.returncode == 2, ran.stderr
        assert ran.stderr.count("\n") == 1
        assert "bug" not in ran.stderr


def test_a_closed_output_is_one_that_nobody_reads(table):
    commands = ("scan", "scan --json", "scan --format csv", "compact")
    ran = closed(">&-", "--version", *(f"{command} {table.uri}" for command in commands))
    assert (ran.returncode, ran.stderr) == (0, "")
    assert closed("2>&-", f"scan {table.uri}", f"scan {table.uri}-not").returncode == 1
    assert closed("<&- >&- 2>&-", f"scan {table.uri}").returncode == 0


def test_rows_that_are_typed_are_not_painted_over(wide):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "weir", "put", wide.uri]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        seen = b""
        while b"Ctrl-D" not in seen:
            seen += os.read(ours, 65536)
        os.write(ours, b"id\n7\n\x04")
        with contextlib.suppress(OSError):  # EIO: the other side is closed
            while True:
                seen += os.read(ours, 65536)
        assert process.wait() == 0
    os.close(ours)
    assert "put 1 row" in re.sub(r"\x1b\[[0-9;]*m", "", seen.decode())
    assert "━" not in seen.decode()


def test_a_full_disk_is_named_without_its_number(table):
    for command in ("scan", "scan --format csv", "stats"):
        ran = closed("> /dev/full", f"{command} {table.uri}")
        assert (ran.returncode, ran.stderr) == (1, "weir: No space left on device\n"), command


def test_top_needs_a_terminal_or_once(run, table):
    ran = run("top", table.uri)
    assert (ran.status, "--once" in ran.err) == (2, True)


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_file_where_a_folder_must_be_is_named(run, table, tmp_path, place):
    (tmp_path / "file").write_text("no folder")
    for arguments in (
        ["create", tmp_path / place, "-C", "id:int64"],
        ["clone", table.uri, tmp_path / place],
        ["wal", "move", table.uri, tmp_path / place],
        ["doctor", tmp_path / place],
    ):
        ran = run(*arguments)
        assert ran.status == 1, arguments
        assert f"{tmp_path / place}: a file is where a folder must be" in ran.err, arguments
        assert ran.err.count("\n") == 1
    for command in ("scan", "stats", "enable"):
        assert "holds no" in run(command, tmp_path / place).err


def test_an_error_of_the_system_has_the_name_and_no_number(run, table, tmp_path):
    ran = run("scan", table.uri, "--output", tmp_path / "no" / "rows.csv")
    said = f"weir: {tmp_path / 'no' / 'rows.csv'}: No such file or directory\n"
    assert (ran.status, ran.err) == (1, said)


def test_a_key_below_zero_is_explained(run, table):
    ran = run("get", table.uri, -5)
    assert (ran.status, "write -- before" in ran.err) == (2, True)
    assert "1 of 1 keys not found" in run("get", table.uri, "--", -5).err


def test_a_lifetime_beyond_the_calendar_is_shown(run, table):
    ran = run("checkpoint", "create", table.uri, "--ttl", "99999999d")
    assert (ran.status, ran.err) == (0, "")
    assert "after the year 9999" in ran.out


@pytest.mark.parametrize("option", ["--columns", "--key"])
def test_no_column_at_all_is_wrong_usage(run, table, tmp_path, option):
    if option == "--key":
        ran = run("create", tmp_path / "t", "-C", "id:int64", "--key", "")
    else:
        ran = run("scan", table.uri, option, "")
    assert (ran.status, "at least one column" in ran.err) == (2, True)
