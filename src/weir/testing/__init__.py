"""The world weir is tested in: simulated stores and threads, oracles, and real servers."""
