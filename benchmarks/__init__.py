"""Measures weir beside its peers, in the same run and on the same data. `python -m benchmarks`."""
