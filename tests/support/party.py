"""Another version of pylance or LanceDB, in its own process and environment."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal, cast

PROGRAM = Path(__file__).parent.parent / "matrix" / "party_program.py"
Kind = Literal["pylance", "lancedb"]
CHOSEN = "WEIR_PARTY"
"""`kind=python`, set by tools/interop.py; by default, the versions of this environment."""


class Refused(Exception):
    """The library of the other party raised an error."""


class Party:
    """Sends requests to the process, one at a time."""

    def __init__(self, kind: Kind, python: str) -> None:
        self.kind = kind
        self._python = python
        clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        self._process = subprocess.Popen(
            [python, str(PROGRAM), kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=clean,
        )
        self.version = str(self._answer())

    def ask(self, do: str, **arguments: Any) -> Any:
        """The answer, or `Refused`."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(f"the {self.kind} process died")
        answer = json.loads(line)
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["ok"]

    @property
    def is_alive(self) -> bool:
        """False once it was killed."""
        return self._process.poll() is None

    def again(self) -> "Party":
        """Another process of the same kind."""
        return Party(self.kind, self._python)

    def kill(self) -> None:
        """Kill the process with SIGKILL: no handler runs."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def chosen() -> list[tuple[Kind, str]]:
    """The parties to run with."""
    text = os.environ.get(CHOSEN)
    if text is None:
        return [("pylance", sys.executable), ("lancedb", sys.executable)]
    kind, _, python = text.partition("=")
    return [(cast("Kind", kind), python)]
