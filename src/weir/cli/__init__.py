"""The `weir` command line: one module for each group of commands, without logic of its own.

Modules of commands import Lance and pyarrow where a command runs: a shell that completes a word,
and `weir --version`, wait for what is imported at the top.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    from weir.cli.app import main as run

    return run(arguments)


__all__ = ["main"]
