"""Two checkouts are measured in turns, each with its own sources."""

import shutil

import pytest

from benchmarks import beside

NAME = "front door, 1-row dicts, 1 thread"


@pytest.fixture
def other(tmp_path):
    """A checkout that differs from this one in how it counts puts."""

    def make(threaded_puts):
        for part in ("src", "benchmarks"):
            shutil.copytree(beside.HERE / part, tmp_path / part)
        puts = tmp_path / "benchmarks" / "workloads" / "puts.py"
        puts.write_text(f"{puts.read_text()}\n\ndef threaded_puts(*_):\n    {threaded_puts}\n")
        return str(tmp_path)

    return make


def measured(other):
    return beside.main([other, "--only", f"^{NAME}$", "--size", "tiny", "--rounds", "3"])


@pytest.mark.slow
def test_each_checkout_runs_its_own_sources(other, capsys):
    assert measured(other("return 1e9")) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if NAME in line)
    before, after, ratio = (float(figure) for figure in line[64:97].split())
    assert before == 1e9
    assert 0 < after < 1e9
    assert ratio == pytest.approx(after / before, abs=0.001)


@pytest.mark.slow
def test_a_checkout_that_fails_is_said_and_fails_the_command(other, capsys):
    assert measured(other("raise OSError('gone')")) == 1
    told = capsys.readouterr()
    assert f"{NAME}, weir: failed" in told.out
    assert "OSError: gone" in told.err
