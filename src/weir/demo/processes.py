"""The demo's handle on its writer process."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import weir

WAIT_S = 60.0


class Victim:
    """A process that puts files of events and reports each acknowledgement."""

    def __init__(self, table: weir.Table, files: Sequence[Path], *, pause: float) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "weir.demo.victim"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.acked = -1
        """Number of the last file that it reported as acknowledged."""
        self.fenced: dict[str, Any] | None = None
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        order = {
            "uri": table.uri,
            "storage_options": dict(table.core.storage_options),
            "files": [str(file) for file in files],
            "pause": pause,
        }
        assert self._process.stdin is not None
        # Through the pipe and not on the command line: the options may hold secrets.
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()

    def until(self, done: Callable[[], bool]) -> None:
        """Read its reports until `done` is true or the process has ended."""
        while not done():
            try:
                line = self._lines.get(timeout=WAIT_S)
            except queue.Empty:
                raise weir.WeirError(
                    f"the writer process of the demo reported nothing for {WAIT_S:g} s"
                ) from None
            if line is None:
                return
            self._hear(line)

    def kill(self) -> None:
        """Send SIGKILL, then read its remaining reports."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self.until(lambda: False)

    def freeze(self) -> None:
        """Send SIGSTOP: the process notices nothing of what happens next."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitpid(self._process.pid, os.WUNTRACED)
        while not self._lines.empty():
            line = self._lines.get()
            if line is not None:
                self._hear(line)

    def thaw(self) -> None:
        """Send SIGCONT, then read its reports until it is fenced or has ended."""
        self._process.send_signal(signal.SIGCONT)
        self.until(lambda: self.fenced is not None)

    def _hear(self, line: str) -> None:
        said = json.loads(line)
        self.acked = max(self.acked, said.get("acked", -1))
        self.fenced = said.get("fenced", self.fenced)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)
