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
    assert "weir.create" in ran.err  # says what to do


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
        ["demo", "--store", "tape"],
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
    assert (ran.status, ran.err) == (130, "weir: interrupted\n")


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


@pytest.mark.parametrize("text", ["not toml", "[options]\na = [1]", "a = 1"])
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


def test_version(run):
    assert run("--version").out.startswith("weir 0.")


def test_the_module_runs_as_a_program(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "weir", "stats", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("weir: ")
