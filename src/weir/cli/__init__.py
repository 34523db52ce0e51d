"""The `weir` command line: one module for each group of commands, without logic of its own.

Modules of commands import Lance and pyarrow where a command runs: a shell that completes a word,
and `weir --version`, wait for what is imported at the top.
"""

from weir.cli.app import main as main

__all__ = ["main"]
