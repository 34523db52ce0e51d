"""The `weir` command line: one module per group of commands, without logic of its own."""

from weir.cli.main import main

__all__ = ["main"]
