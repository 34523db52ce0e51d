"""Where the demo works: a folder, or a bucket on a SeaweedFS that it starts and stops."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from weir.errors import StoreError


@dataclass(frozen=True)
class Place:
    """A root for tables, the options to reach it, and a local folder for everything else."""

    root: str
    options: dict[str, str]
    scratch: Path

    def uri(self, name: str) -> str:
        """Where the table of that name goes."""
        return f"{self.root}/{name}"


@contextmanager
def place(store: str, keep: Path | None) -> Iterator[Place]:
    """The place for the duration of the demo; the folder `keep` stays afterwards."""
    with ExitStack() as stack:
        scratch = Path(tempfile.mkdtemp(prefix="weir-demo-"))
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        if store == "s3":
            root, options = stack.enter_context(_seaweed())
            yield Place(root, options, scratch)
            return
        root_folder = scratch if keep is None else keep.absolute()
        root_folder.mkdir(parents=True, exist_ok=True)
        yield Place(str(root_folder), {}, scratch)


@contextmanager
def _seaweed() -> Iterator[tuple[str, dict[str, str]]]:
    """Start a SeaweedFS server, and stop it by closing its standard input."""
    command = [sys.executable, "-m", "weir.testing.seaweed"]
    with subprocess.Popen(  # noqa: S603
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        line = server.stdout.readline()
        if not line:
            assert server.stderr is not None
            words = server.stderr.read().strip().splitlines() or ["no output"]
            raise StoreError(
                f"SeaweedFS did not start: {words[-1]}; `python -m weir.testing.seaweed` prints"
                " the whole error"
            )
        about = json.loads(line)
        try:
            yield about["bucket"], about["storage_options"]
        finally:
            server.stdin.close()
