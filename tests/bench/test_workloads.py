"""Run every benchmark workload once, tiny, so that none rots between two full runs."""

import pytest

from benchmarks import report
from benchmarks.harness import Ctx, Figures, Goal, Workload
from benchmarks.workloads import WORKLOADS

FIELDS = {"workload", "where", "weir", "peers", "floor", "ratio", "goal", "goal_met"}


def run_here(workload: Workload, where: str, root: str, options: dict[str, str]) -> Figures:
    """Run all sides in this process, one round each."""
    figures = Figures()
    data = {}
    if workload.prepare is not None:
        data = workload.prepare(Ctx(where, root, options, "tiny", "prepare"))
    for name, side in workload.sides.items():
        with side(Ctx(where, root, options, "tiny", name, data)) as run:
            figures.rounds[name] = [run()]
    return figures


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n, w in WORKLOADS.items() if not w.needs_spark])
def test_a_workload_runs(name, tmp_path):
    workload = WORKLOADS[name]
    figures = run_here(workload, "local", str(tmp_path), {})
    result = report.as_result(workload, "local", figures, "a day")
    assert result.keys() >= FIELDS
    assert result["weir"] > 0
    assert set(figures.rounds) == set(workload.sides)
    # The side that a goal compares with must exist, or the goal could never be met.
    for goals in (workload.goals_at("local"), workload.goals_at("s3")):
        assert {g.against for g in goals} <= {*workload.sides, "*"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["durable put, 1 row, 1 thread", "commits of 1-row appends"])
def test_a_workload_runs_on_s3(name, s3):
    s3.make_bucket("weir-bench")
    figures = run_here(WORKLOADS[name], "s3", "s3://weir-bench", s3.storage_options())
    assert set(figures.rounds) == set(WORKLOADS[name].sides)


def test_goals_speak_of_cost_and_speed():
    assert Goal("floor", within=1.25).judge(1.0, 0.9, "lower") == (pytest.approx(1.111, 0.01), True)
    assert Goal("floor", within=1.25).judge(90, 100, "higher")[1]
    assert not Goal("floor", within=1.25).judge(70, 100, "higher")[1]
    assert Goal("peer", times=10).judge(1000, 100, "higher") == (10, True)
    assert not Goal("peer", times=10).judge(2.0, 10.0, "lower")[1]


def test_a_failed_side_is_told_and_the_goal_is_not_met():
    workload = WORKLOADS["durable put, 1 row, 1 thread"]
    figures = Figures(rounds={"weir": [1.0]}, errors={"floor": "TypeError: no"})
    result = report.as_result(workload, "local", figures, "a day")
    assert result["goal_met"] is False
    assert "floor: TypeError: no" in report.line(result)
    assert "TypeError: no" in report.page(
        [result], report.describe_machine() | {"load_at_end": 1}, "c", []
    )


def test_pictures_and_page_are_written(tmp_path):
    workload = WORKLOADS["durable put, 1 row, 1 thread"]
    rounds = {side: [2.0, 1.0] for side in workload.sides}
    results = [
        report.as_result(
            workload, where, Figures(rounds=rounds, peak_mib={"weir": 100.0}), "one day"
        )
        for where in ("local", "s3")
    ]
    report.save(results, report.describe_machine(), "make bench", tmp_path)
    for name in ("benchmarks.json", "benchmarks.md", "img/bench-local.svg", "img/bench-s3.svg"):
        assert (tmp_path / name).stat().st_size > 500, name

    again = report.as_result(workload, "s3", Figures(rounds={"weir": [7.0]}), "two days later")
    together = report.saved_with([again], tmp_path)
    assert [(r["where"], r["weir"]) for r in together] == [("local", 1.5), ("s3", 7.0)]
    new = report.as_result(workload, "far", Figures(rounds={"weir": [9.0]}), "two days later")
    assert [r["where"] for r in report.saved_with([new], tmp_path)] == ["local", "s3", "far"]
    report.save(together, report.describe_machine(), "make bench", tmp_path)
    told = "- Date: one day to two days later, each workload's own in `docs/benchmarks.json`"
    assert told in (tmp_path / "benchmarks.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    # The larger folds run the same code as the small one with more rows.
    [n for n, w in WORKLOADS.items() if w.needs_spark and "20M" not in n and "50M" not in n],
)
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully:FutureWarning")
def test_a_workload_runs_on_spark(name, tmp_path, spark):
    from tests.support.spark import built_jar

    built_jar()
    figures = run_here(WORKLOADS[name], "local", str(tmp_path), {})
    assert set(figures.rounds) == set(WORKLOADS[name].sides)
