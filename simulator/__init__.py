"""Simulated stores, clocks and threads and a model of Lance, driven by one seed, and the judge."""
