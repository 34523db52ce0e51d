"""Where workloads run: a folder of the local disk, and a private SeaweedFS server."""

from __future__ import annotations

import shutil
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
        yield Place(where, f"s3://{BUCKET}", server.storage_options())
