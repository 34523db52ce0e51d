"""Every stored byte: pure functions, bytes in and values out; no store, clock or logging."""
