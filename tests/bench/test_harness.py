"""Each side runs in its own process, in turn, and a side that fails does not stop the others."""

import asyncio

import pytest

from benchmarks import __main__ as command
from benchmarks import harness
from benchmarks.harness import Ctx, Workload, measure
from benchmarks.task_soak import soak
from benchmarks.workloads import WORKLOADS

NAME = "put-if-absent against plain put, 1 thread"


@pytest.mark.slow
def test_every_side_has_its_own_process(tmp_path):
    whole = WORKLOADS[NAME]
    sides = {side: whole.sides[side] for side in ("weir", "floor")}
    workload = Workload(whole.name, whole.unit, whole.better, whole.goal, sides)
    figures = measure(workload, Ctx("local", str(tmp_path), {}, "tiny", ""), rounds=2)
    assert figures.errors == {}
    assert {side: len(values) for side, values in figures.rounds.items()} == {"weir": 2, "floor": 2}
    assert all(peak > 10 for peak in figures.peak_mib.values())


@pytest.mark.slow
def test_a_side_that_fails_is_reported_and_the_others_go_on(tmp_path):
    whole = WORKLOADS[NAME]
    sides = {"weir": whole.sides["weir"], "nobody": whole.sides["weir"]}
    workload = Workload(whole.name, whole.unit, whole.better, whole.goal, sides)
    figures = measure(workload, Ctx("local", str(tmp_path), {}, "tiny", ""), rounds=1)
    assert "KeyError" in figures.errors["nobody"]
    assert len(figures.rounds["weir"]) == 1


def test_the_turns_change():
    turned = [list(harness._turned(["a", "b", "c"], number)) for number in range(3)]
    assert [order[0] for order in turned] == ["a", "b", "c"]
    assert all(sorted(order) == ["a", "b", "c"] for order in turned)


def test_the_command_lists_workloads_and_refuses_unknown_ones(capsys):
    assert command.main(["--list"]) == 0
    assert capsys.readouterr().out.split("\n")[:-1] == list(WORKLOADS)
    assert command.main(["--only", "no such workload"]) == 2


def test_tasks_put_for_a_while_and_their_cancelled_puts_harm_nobody(tmp_path):
    found = asyncio.run(soak(str(tmp_path / "t"), tasks=50, seconds=0.5, shards=2))
    assert found["puts"] >= 50
    assert 0 < found["rows"] <= found["puts"] + found["cancelled"]
