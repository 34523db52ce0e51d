"""Measures weir and its peers in the same run, on the same data: `python -m benchmarks`."""
