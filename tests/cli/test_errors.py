"""Exit statuses and one-line errors: 0 success, 1 failed, 2 wrong usage."""

import subprocess
import sys
from pathlib import Path

import pytest

import weir
from weir.cli import settings


def test_a_failed_operation_is_one_line_on_standard_error_and_status_1(run, tmp_path):
    ran = run("stats", tmp_path / "nothing")
    assert ran.status == 1
    assert ran.out == ""
    assert ran.err.count("\n") == 1
    assert ran.err.startswith("weir: ")
    assert "`create` makes one" in ran.err  # says what to do, in words that a shell has too


@pytest.mark.parametrize(
    "arguments",
    [
        ["stat"],
        ["create"],
        ["scan", "events", "--no-such-option"],
        ["scan", "events", "--format", "xml"],
        ["create", "events", "--bucket", "id", "-C", "id:int64"],
        ["create", "events"],
        ["create", "events", "-C", "id:int99"],
        ["reshard", "events"],
        ["compact", "events", "--engine", "hadoop"],
        ["scan", "events", "--freshness", "very"],
        ["scan", "events", "--output", "rows.unknown"],
        ["get", "events", "1", "--freshness", "very"],
        ["gc", "events", "--min-age", "soon"],
        ["compact", "events", "--watch", "often"],
        ["checkpoint", "create", "events", "--ttl", "long"],
        ["create", "events", "--bucket", "id:0", "-C", "id:int64"],
        ["stats", "events", "-o", "no-equals-sign"],
    ],
)
def test_wrong_usage_is_status_2_and_names_the_help(run, arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = run(*arguments)
    assert ran.status == 2
    assert ran.err.count("\n") == 1
    assert "--help" in ran.err


def test_an_internal_error_is_short_and_says_how_to_get_the_traceback(run, table, monkeypatch):
    def boom(*_, **__):
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(weir.Table, "stats", boom)
    ran = run("stats", table.uri)
    assert ran.status == 1
    assert ran.err.count("\n") == 1
    assert "ZeroDivisionError" in ran.err
    assert "--debug" in ran.err
    monkeypatch.setenv("WEIR_DEBUG", "1")
    assert "Traceback" in run("stats", table.uri).err


def test_a_reader_that_has_enough_is_no_failure(table):
    command = [sys.executable, "-m", "weir", "scan", table.uri, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()  # as `| head -0` would
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_interrupted_says_so(run, table, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(weir.Table, "stats", interrupted)
    ran = run("stats", table.uri)
    assert (ran.status, ran.err.strip()) == (130, "weir: interrupted")


SECRET = "wJalrXUtnFEMI"


def test_no_output_ever_holds_the_value_of_an_option(run, tmp_path):
    for arguments in (
        ["stats", tmp_path / "t", "-o", f"aws_secret_access_key={SECRET}"],
        ["stats", tmp_path / "t", "-o", f"no_such_option={SECRET}"],
        ["stats", tmp_path / "t", "-o", SECRET],
        ["doctor", tmp_path, "-o", f"aws_secret_access_key={SECRET}"],
        ["--debug", "stats", tmp_path / "t", "-o", f"aws_secret_access_key={SECRET}"],
    ):
        ran = run(*arguments)
        assert SECRET not in ran.out + ran.err


def test_options_come_from_file_environment_and_flags_the_last_winning(tmp_path, monkeypatch):
    file = tmp_path / "c.toml"
    file.write_text(
        "[options]\na = 'file'\nb = 'file'\nc = 'file'\nd = 'file'\n"
        "[store.'s3://lake']\nb = 'store'\nc = 'store'\nd = 'store'\nallow_http = true\n"
        "[store.'s3://lake/deep']\ne = 'deep'\n[store.'s3://lakeside']\ne = 'other'\n"
    )
    monkeypatch.setenv("WEIR_STORAGE_OPTIONS", '{"c": "env", "d": "env"}')
    found = settings.storage_options("s3://lake/t", ["d=flag=1"], file)
    assert found == {
        "a": "file", "b": "store", "c": "env", "d": "flag=1", "allow_http": "true",
    }  # fmt: skip
    assert settings.storage_options("s3://lake/deep/t", None, file)["e"] == "deep"
    monkeypatch.setenv("WEIR_CONFIG", str(file))
    assert settings.storage_options("gs://x", None)["a"] == "file"


@pytest.mark.parametrize(
    "text", ["not toml", "[options]\na = [1]", "a = 1", "[store]\n'/' = 'abc'"]
)
def test_a_bad_configuration_file_is_named_and_not_shown(run, tmp_path, text):
    file = tmp_path / "c.toml"
    file.write_text(text)
    ran = run("stats", tmp_path, "--config", file)
    assert ran.status == 1
    assert str(file) in ran.err


def test_a_missing_configuration_file_that_was_named_is_an_error(run, tmp_path):
    ran = run("stats", tmp_path, "--config", tmp_path / "none.toml")
    assert ran.status == 1
    assert "none.toml" in ran.err


def test_the_module_runs_as_a_program(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "weir", "stats", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("weir: ")


def test_text_that_is_no_rows_is_refused_and_not_counted_as_none(table):
    command = [sys.executable, "-m", "weir", "put", table.uri]
    ran = subprocess.run(command, input="hello", capture_output=True, text=True, check=False)
    assert ran.returncode == 1, ran
    assert "no column 'hello'" in ran.stderr or "as csv" in ran.stderr


@pytest.mark.parametrize("command", [["restore"], ["checkpoint", "delete"]])
def test_a_checkpoint_that_is_not_there_is_found_out_before_anything_is_asked(run, table, command):
    ran = run(*command, table.uri, "nope")
    assert ran.status == 1
    assert "no checkpoint 'nope'" in ran.err
    assert "weir checkpoint list" in ran.err


def test_without_a_terminal_a_question_names_the_option_that_answers_it(table):
    table.checkpoint(name="nightly")
    command = [sys.executable, "-m", "weir", "restore", table.uri, "nightly"]
    ran = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 2
    assert "--yes" in ran.stderr


def test_doctor_says_what_is_wrong_with_an_impossible_place(run, tmp_path):
    (tmp_path / "file").write_text("no folder")
    ran = run("doctor", tmp_path / "file" / "table")
    assert ran.status == 1
    assert "report it" not in ran.err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet", "rows.jsonl", "rows.arrow"])
def test_a_file_gets_the_format_that_its_name_says(run, table, tmp_path, name):
    before = table.count()
    assert run("scan", table.uri, "--output", tmp_path / name).status == 0
    assert run("put", table.uri, tmp_path / name).status == 0
    assert table.count() == before


def test_doctor_says_whether_rows_survive_a_loss_of_power(run, tmp_path):
    findings = run("doctor", tmp_path / "t", "--json").json()["findings"]
    assert "not a loss of power" in {f["name"]: f["detail"] for f in findings}["power loss"]
    ran = run("doctor", tmp_path / "t", "-o", "weir_fsync=true", "--json")
    found = {f["name"]: f for f in ran.json()["findings"]}["power loss"]
    assert found["state"] == "ok"
