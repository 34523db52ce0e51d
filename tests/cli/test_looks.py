"""What people see: readable colours, tables that fit, progress, completion."""

import contextlib
import dataclasses
import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.color import Color
from rich.console import Console

import weir
from tools import screens
from weir.cli import output, sources
from weir.cli.checkpoint import remaining
from weir.cli.output import Output
from weir.cli.stats import Sample, overview

SOURCE = Path(weir.__file__).parent
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def luminance(color: tuple[int, int, int]) -> float:
    def linear(part: float) -> float:
        return part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4

    red, green, blue = (linear(part / 255) for part in color)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("color", [output.GOOD, output.WARN, output.BAD, output.MARK, output.GREY])
def test_a_colour_can_be_read_on_black_and_on_white(color):
    own = luminance(tuple(Color.parse(color).get_truecolor()))
    assert (1.0 + 0.05) / (own + 0.05) >= 4
    assert (own + 0.05) / 0.05 >= 4


def test_no_other_colour_is_used():
    # The terminal's own yellow on white, or blue on black, is unreadable.
    named = re.compile(r"[\[\"](?:bold |dim )?(?:red|green|yellow|blue|cyan|magenta)[\]\"]")
    for path in (SOURCE / "cli").glob("*.py"):
        assert named.findall(path.read_text()) == [], path.name


def test_help_breaks_lines_where_the_terminal_ends(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = [line.strip() for line in run("put", "--help").out.splitlines()]
    first = next(i for i, line in enumerate(lines) if line.startswith("Rows with the key"))
    assert len(lines[first]) + len(lines[first + 1].split()[0]) > 76


def test_help_shows_no_types_of_switches(run):
    for command in ("scan", "top", "get"):
        shown = run(command, "--help").out
        assert "<" not in shown
        assert "{URI}" not in shown


@pytest.fixture
def coloured(run, monkeypatch):
    """`run` as in a terminal that supports 256 colours."""
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    return run


def test_colour_is_there_in_a_terminal_and_gone_with_no_color(coloured, table, monkeypatch):
    assert "\x1b[38;5;28m" in coloured("tail", table.uri, "--no-follow").out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "38;5;" not in coloured("tail", table.uri, "--no-follow").out


def test_the_line_of_a_delete_is_in_its_own_colour(coloured, table):
    with table.writer() as writer:
        writer.delete([2])
    lines = coloured("tail", table.uri, "--no-follow").out.splitlines()
    put, delete = (next(x for x in lines if ANSI.sub("", x).startswith(m)) for m in "+-")
    assert put.count("38;5;161") == 0
    assert delete.count("38;5;161") >= 2  # the sign and the values


@pytest.mark.parametrize("columns", [80, 140])
def test_tables_fit_and_nothing_is_cut(terminal, table, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    table.checkpoint(scope="durable", name="nightly", ttl="7d")
    nameless = table.checkpoint(scope="durable")
    shown = {
        command: terminal(*command.split(), table.uri).out
        for command in ("stats", "shards", "checkpoint list", "top --once --interval 0.1")
    }
    for command, text in shown.items():
        assert max(map(len, text.splitlines())) <= columns, command
        assert "…" not in text, command
    assert str(nameless.id) in shown["checkpoint list"]  # the only name it has
    assert "in 7 d" in shown["checkpoint list"]
    assert str(table.shards()[0].id) in shown["shards"]


def test_the_figures_of_a_large_table_fit_eighty_columns():
    big = screens.shard(3, 123_456_789, 54_321, epoch=12_345, sstables=120)
    small = dataclasses.replace(big, value="tenant-1", sstable_rows=7)
    found = screens.table(big, small)
    for shown in (
        overview([Sample(0.0, found)]),
        overview([Sample(0.0, found), Sample(1.0, found)]),
    ):
        console = screens.screen()
        console.print(shown)
        text = console.export_text()
        assert "…" not in text
        assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
        assert "tenant-1" in text


def test_of_more_shards_than_lines_top_shows_the_busiest_in_their_order():
    before = screens.table(*(screens.shard(i, 100, 1) for i in range(50)))
    after = screens.table(*(screens.shard(i, 100 + (i in (7, 40)), 1) for i in range(50)))
    console = screens.screen()
    console.print(overview([Sample(0.0, before), Sample(1.0, after)], lines=24))
    lines = [line.split() for line in console.export_text().splitlines()]
    assert len(lines) == 24
    busy = [line[0] for line in lines if line[2:3] == ["1"]]
    assert busy == ["7", "40"]
    assert lines[-1][:3] == ["and", "36", "more"]


def test_large_numbers_are_brief():
    told = [output.brief(n) for n in (0, 99_999, 123_456, 12_345_678, 98_765_432_100)]
    assert told == ["0", "99,999", "123k", "12.3M", "98.8G"]


def test_remaining_time():
    assert remaining(None) == "never"
    assert remaining(90) == "in 90 s"
    assert remaining(-1) == "expired"


def test_progress_counts_what_is_known_and_only_that(monkeypatch):
    told = io.StringIO()
    console = Console(file=told, force_terminal=True, width=80, theme=output.THEME)
    monkeypatch.setattr(output, "console", lambda **_: console)
    for total, count in ((None, "1,234"), (2000, "1,234/2,000")):
        with Output().working("rows") as tell:
            tell("rows", 1234, total)
        assert count in ANSI.sub("", told.getvalue())
        told.truncate(0)


def test_the_rows_of_parquet_files_are_known_before(tmp_path):
    file = str(tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [1, 2, 3]}), file)
    other = tmp_path / "a.csv"
    other.write_text("id\n1\n")
    assert sources.known_rows([file, file]) == 6
    assert sources.known_rows([file, str(other)]) is None
    assert sources.known_rows(["-"]) is None


def test_compaction_and_collection_tell_how_far_they_are(run, table, monkeypatch):
    told = []

    @contextlib.contextmanager
    def working(self, label):
        yield lambda *what: told.append(what)

    monkeypatch.setattr(Output, "working", working)
    assert run("compact", table.uri).status == 0
    compacted = len(told)
    assert compacted > 0
    assert run("gc", table.uri, "--min-age", "0", "--fence-retention", "2m").status == 0
    assert {"wal", "manifests", "sstables"} & {kind for kind, _, _ in told[compacted:]}
    assert all(0 <= done <= total for _, done, total in told)


def test_a_shell_completes_commands(tmp_path):
    environment = {
        **os.environ,
        "_WEIR_COMPLETE": "bash_complete",
        "COMP_WORDS": "weir che",
        "COMP_CWORD": "1",
    }
    program = Path(sys.executable).parent / "weir"
    done = subprocess.run(
        [program], env=environment, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.stdout.split() == ["plain,checkpoint"]


def test_clone_deep_depends_on_nothing(run, table, tmp_path):
    import shutil

    run("compact", table.uri)
    copy = tmp_path / "copy"
    assert run("clone", table.uri, copy, "--deep").status == 0
    shutil.rmtree(table.uri)
    assert weir.open(str(copy)).scan().count() == 3


def test_a_clone_of_now_is_never_an_older_one(run, table, tmp_path):
    copy = tmp_path / "copy"
    assert run("clone", table.uri, copy).status == 0
    again = run("clone", table.uri, copy)
    assert again.status == 1
    assert "empty place" in again.err
    run("checkpoint", "create", table.uri, "--name", "x")
    for _ in range(2):  # a repeated clone is a retry
        assert run("clone", table.uri, tmp_path / "x", "--checkpoint", "x").status == 0


def test_a_duration_may_be_a_plain_number_of_seconds(run, table):
    assert run("gc", table.uri, "--min-age", "0", "--dry-run").status == 0
    bad = run("gc", table.uri, "--min-age", "soon")
    assert bad.status == 2
    assert "15m" in bad.err


def test_square_brackets_are_shown_and_are_no_markup(run, table, tmp_path, monkeypatch):
    from weir.cli import checks

    made = run("create", tmp_path / "t", "-C", "id:int64!", "-C", "at:timestamp[us]").out
    assert "timestamp[us]" in made
    monkeypatch.setattr(checks.importlib.metadata, "version", _no_pyspark)
    assert "lance-weir[spark]" in run("doctor").out
    run("checkpoint", "create", table.uri, "--name", "a[b]")
    assert "a[b]" in run("checkpoint", "list", table.uri).out


def _no_pyspark(name):
    import importlib.metadata

    if name == "pyspark":
        raise importlib.metadata.PackageNotFoundError(name)
    return "1.0"


def test_compact_on_spark_without_spark_says_what_to_install(run, table, monkeypatch):
    for name in [n for n in sys.modules if n.partition(".")[0] == "pyspark"]:
        monkeypatch.delitem(sys.modules, name)
    for name in [n for n in sys.modules if n.startswith("weir.spark")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(vars(weir), "spark", raising=False)
    monkeypatch.setitem(sys.modules, "pyspark", None)  # as if it were not installed
    ran = run("compact", table.uri, "--engine", "spark")
    assert ran.status == 1
    assert "lance-weir[spark]" in ran.err
    assert ran.err.count("\n") == 1


HOSTILE = "\x1b]0;title\x07\x1b[2J\x9b2J"


def test_no_control_character_of_a_stranger_reaches_the_terminal(run, tmp_path):
    table = weir.create(tmp_path / "t", {"id": "int64", "v": "string"})
    with table.writer() as writer:
        writer.put([{"id": 1, "v": HOSTILE}])
    theirs = tmp_path / "lake" / f"{HOSTILE}[red]"
    shutil.copytree(table.uri, theirs)
    for arguments in (
        ("scan", table.uri, "--format", "table"),
        ("tail", table.uri, "--no-follow"),
        ("ls", theirs.parent),
        ("stats", tmp_path / HOSTILE),
    ):
        ran = run(*arguments)
        assert re.search(r"\?]0;title\?{1,2}\[2J\?2J", ran.out + ran.err), arguments
        assert not set(HOSTILE) & set("\x1b\x07\x9b") & set(ran.out + ran.err), arguments
    assert run("ls", theirs.parent).out.endswith("[red]\n"), "nor is markup obeyed"
    assert run("ls", theirs.parent, "--json").json() == [str(theirs)]
