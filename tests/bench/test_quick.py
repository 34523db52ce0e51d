"""The quick measurement of one's own store."""

from benchmarks import quick


def test_it_measures_and_leaves_nothing(tmp_path):
    report = quick.run(str(tmp_path / "scratch"), seconds=0.1)
    assert len(report.lines) == 9
    assert all(line.per_second > 0 for line in report.lines)
    assert not (tmp_path / "scratch").exists()
