"""The measurement of what metrics cost."""

from benchmarks import metrics_cost


def test_it_measures_both_sides() -> None:
    found = metrics_cost.run(pairs=2, seconds=0.05, threads=2, with_otel=True)
    assert found["puts_per_second_on"]
    assert found["puts_per_second_off"]
    assert isinstance(found["cost"], float)
