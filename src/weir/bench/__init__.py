"""Measurements that ship with weir; the comparisons with other systems are in `benchmarks/`."""
