"""Gives every table a separate WAL store, in every Python process; used by `make spark-stores`.

Python imports a module of this name at startup when this folder is on PYTHONPATH, also in the
processes that Spark starts. WEIR_TEST_LOG selects the mode. With "elsewhere" each table is created
with its own WAL store. With "moved" its log is moved to one after the first write that Spark
commits or that a test makes with `tests.support.spark.put`.
WEIR_TEST_LOGS is the folder for the logs of local tables; other logs are in the table's bucket.
"""

import hashlib
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

MODE = os.environ.get("WEIR_TEST_LOG", "")


def log_of(uri: str) -> str:
    """The WAL store of the table: never below its namespace, whose folders are listed."""
    name = hashlib.sha1(uri.encode(), usedforsecurity=False).hexdigest()
    scheme, there, rest = uri.partition("://")
    if there and scheme != "file":
        return f"{scheme}://{rest.partition('/')[0]}/_logs_of_tests/{name}"
    return f"{os.environ['WEIR_TEST_LOGS']}/{name}"


def _create_elsewhere(making: ModuleType) -> None:
    """Make `weir.create` use a separate WAL store unless the caller names one."""
    real = making.create

    def create(uri: Any, *args: Any, wal_uri: str | None = None, **kwargs: Any) -> Any:
        return real(uri, *args, wal_uri=wal_uri or log_of(os.fspath(uri)), **kwargs)

    making.create = create  # type: ignore[attr-defined]


def _move_after_commit(sink: ModuleType) -> None:
    """Make the batch and stream writers of Spark move the log after a commit."""
    for kind in (sink.BatchWriter, sink.StreamWriter):
        kind.commit = _moving(kind.commit)


def _moving(commit: Callable[..., None]) -> Callable[..., None]:
    def moving(self: Any, *args: Any) -> None:
        commit(self, *args)
        _move(self._sink.place.current())

    return moving


def _move_after_put(support: ModuleType) -> None:
    """Make the tests' `put` move the log after its writer is closed."""
    real = support.put

    def put(table: Any, *args: Any) -> None:
        real(table, *args)
        _move(table)

    support.put = put  # type: ignore[attr-defined]


def _move(table: Any) -> None:
    if table.wal_uri is None:
        table.move_wal(log_of(table.uri))


PATCHES: dict[str, dict[str, Callable[[ModuleType], None]]] = {
    "elsewhere": {"weir.making": _create_elsewhere},
    "moved": {"weir.spark.sink": _move_after_commit, "tests.support.spark": _move_after_put},
}


class _Patching(importlib.abc.MetaPathFinder):
    """Finds modules in the usual way, and patches some of them after they are loaded."""

    def __init__(self, patches: dict[str, Callable[[ModuleType], None]]) -> None:
        self._patches = patches

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        patch = self._patches.get(name)
        if patch is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            real = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                real(module)
                patch(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if MODE:
    sys.meta_path.insert(0, _Patching(PATCHES[MODE]))
