"""The demonstration behind `weir demo` and `make demo`; nothing else uses it."""
