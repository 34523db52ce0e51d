"""Codecs for every stored byte, as pure functions: no store, clock or logging."""
