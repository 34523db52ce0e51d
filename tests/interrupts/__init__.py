"""Interrupts at every point where CPython delivers one; see `__main__`."""
