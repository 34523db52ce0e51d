"""The demonstration behind `weir demo` and `make demo`: above every other part, used by none."""
