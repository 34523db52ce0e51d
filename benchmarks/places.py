"""Where workloads run: a local folder, a private SeaweedFS server, and one that is far away."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks.harness import Where

BUCKET = "weir-bench"


@dataclass(frozen=True)
class Place:
    """A root URI and what reaches it."""

    where: Where
    root: str
    options: dict[str, str] = field(default_factory=dict)


@contextmanager
def open_place(where: Where) -> Iterator[Place]:
    """The place for the time of one workload; everything in it is gone afterwards."""
    if where == "local":
        folder = tempfile.mkdtemp(prefix="weir-bench-")
        try:
            yield Place(where, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return
    from weir.testing.seaweed import SeaweedServer

    with SeaweedServer() as server:
        server.make_bucket(BUCKET)
        options = server.storage_options()
        if where == "s3":
            yield Place(where, f"s3://{BUCKET}", options)
            return
        with _further_away(server.endpoint) as endpoint:
            replaced = {k: v.replace(server.endpoint, endpoint) for k, v in options.items()}
            yield Place(where, f"s3://{BUCKET}", replaced)


@contextmanager
def _further_away(endpoint: str) -> Iterator[str]:
    """The same server behind a proxy that delays; see `benchmarks.far`."""
    head, _, port = endpoint.rpartition(":")
    command = [sys.executable, "-m", "benchmarks.far", port]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as proxy:
        assert proxy.stdin is not None
        assert proxy.stdout is not None
        yield f"{head}:{int(proxy.stdout.readline())}"
        proxy.stdin.close()
