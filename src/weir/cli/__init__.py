"""The `weir` command: words and pictures for people. One module a group; no logic of its own."""

from weir.cli.main import main

__all__ = ["main"]
