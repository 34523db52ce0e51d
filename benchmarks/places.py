"""Where workloads run: a local folder, a private SeaweedFS server, and the same far away."""

from __future__ import annotations

import array
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks.harness import Where

BUCKET = "weir-bench"
_GET_FLAGS, _SET_FLAGS, _TOP_FOLDER = 0x80086601, 0x40086602, 0x00020000
"""`FS_IOC_GETFLAGS`, `FS_IOC_SETFLAGS` and `FS_TOPDIR_FL` of Linux (`chattr +T`)."""


@dataclass(frozen=True)
class Place:
    """A root URI and the storage options for it."""

    where: Where
    root: str
    options: dict[str, str] = field(default_factory=dict)


@contextmanager
def open_ground() -> Iterator[str]:
    """The folder of one run. Nothing that a workload wrote is removed before the run ends.

    ext4 does not reuse the inode of a removed file for a while, and creating a file nearby scans
    all such inodes first: after 20,000 files were removed, a create took 443 us instead of 23. The
    next side to run would pay for that. For the same reason the subfolders are placed far apart on
    the disk.
    """
    folder = tempfile.mkdtemp(prefix="weir-bench-")
    try:
        _lay_apart(folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _lay_apart(folder: str) -> None:
    """Ask the file system to place each subfolder in an unused area, if it supports that."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        flags = array.array("l", [0])
        fcntl.ioctl(descriptor, _GET_FLAGS, flags)
        flags[0] |= _TOP_FOLDER
        fcntl.ioctl(descriptor, _SET_FLAGS, flags)
    except OSError:
        pass  # not ext4, so there is no need for it
    finally:
        os.close(descriptor)


@contextmanager
def open_place(where: Where, ground: str) -> Iterator[Place]:
    """The place of one workload; a local one is a folder in `ground`."""
    if where == "local":
        folder = tempfile.mkdtemp(dir=ground)
        _lay_apart(folder)
        yield Place(where, folder)
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
    """The endpoint of a proxy that delays requests to the server; see `benchmarks.far`."""
    with _proxy(endpoint) as (there, _):
        yield there


@contextmanager
def counted(options: dict[str, str]) -> Iterator[tuple[dict[str, str], Callable[[], int]]]:
    """Options of the same store through a proxy, and how many requests it has forwarded; of a
    local folder none."""
    endpoint = next((v for v in options.values() if v.startswith("http://")), None)
    if endpoint is None:
        yield options, lambda: 0
        return
    with _proxy(endpoint, "--one-way", "0") as (there, requests):
        yield {k: v.replace(endpoint, there) for k, v in options.items()}, requests


@contextmanager
def _proxy(endpoint: str, *how: str) -> Iterator[tuple[str, Callable[[], int]]]:
    head, _, port = endpoint.rpartition(":")
    command = [sys.executable, "-m", "benchmarks.far", port, *how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as proxy:
        asked, told = proxy.stdin, proxy.stdout
        assert asked is not None
        assert told is not None

        def requests() -> int:
            asked.write(b"\n")
            asked.flush()
            return int(told.readline())

        yield f"{head}:{int(told.readline())}", requests
        asked.close()
