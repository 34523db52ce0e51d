"""Garbage collection: pure planning (plan, epochs), what must stay (pins), the I/O around it."""
