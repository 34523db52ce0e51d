"""The API reference shows what `help` shows: no `env`, which only simulators and tests pass."""

from __future__ import annotations

import griffe


class LeavesOutEnv(griffe.Extension):
    """Shortens the signatures of functions that are marked `takes_env`."""

    def on_function(self, *, func: griffe.Function, **_: object) -> None:
        """Leave the parameter out."""
        if any(str(mark.value) == "takes_env" for mark in func.decorators):
            func.parameters = griffe.Parameters(*(p for p in func.parameters if p.name != "env"))
