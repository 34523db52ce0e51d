"""The tables below a prefix: `weir ls` and `weir keep` find them alike.

A folder may belong to anyone. One that cannot be searched is reported and hides no other one, and
no link is followed: its target may be a table of somebody who did not ask to have it kept (G-13).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from weir import making
from weir.env import SYSTEM, Env
from weir.errors import WeirError
from weir.format import paths
from weir.store.api import Folder, RootMissing, Store
from weir.store.open import is_normal, open_store

WORKERS: Final = 16
DEEPEST: Final = 8
"""Folders between a prefix and a table."""

StorageOf = Callable[[str], Mapping[str, str]]
"""The storage options for a URI."""


@dataclass(frozen=True)
class Skipped:
    """A folder that was not searched."""

    uri: str
    said: str
    """Why not."""
    is_link: bool = False
    """Nothing is wrong: it leads elsewhere."""
    result: Literal["failed", "damaged"] = "failed"

    @staticmethod
    def because(uri: str, error: WeirError) -> Skipped:
        """The folder whose search met that error."""
        return Skipped(uri, str(error), result="damaged" if error.kind == "data" else "failed")


@dataclass(frozen=True)
class Found:
    """What a search found."""

    tables: list[str]
    """Sorted."""
    skipped: list[Skipped]

    @property
    def failed(self) -> list[Skipped]:
        """The folders that could not be searched; not the links."""
        return [each for each in self.skipped if not each.is_link]


def tables_in(prefix: str, storage: StorageOf, env: Env = SYSTEM) -> Found:
    """The tables directly in a folder. A listing, and three requests for each table."""
    return _below(prefix, storage, env, 1)


def tables_below(prefix: str, storage: StorageOf, env: Env = SYSTEM) -> Found:
    """The table at `prefix` itself, or all tables below it, at any depth.

    A listing for each folder that is no table, three requests for each table. Folders whose names
    begin with '_' or '.' are passed over, and so are the folders of tables and other datasets.
    `RootMissing` when there is no such folder or bucket, or no object below a prefix: it may be
    mistyped, or its disk not mounted (S-1).
    """
    if _is_table(prefix, storage, env):
        return Found([open_store(prefix, storage(prefix), env=env).uri], [])
    return _below(prefix, storage, env, DEEPEST, must_exist=True)


def is_behind_link(uri: str, root: str) -> bool:
    """True when a symbolic link below `root` leads to `uri`. The root itself may be one: the caller
    chose it."""
    if not uri.startswith("/"):
        return False
    return os.path.realpath(uri) != os.path.realpath(root) + uri[len(root) :]


def _below(
    prefix: str, storage: StorageOf, env: Env, depth: int, *, must_exist: bool = False
) -> Found:
    store = open_store(prefix, storage(prefix), env=env, must_exist=must_exist)
    try:
        top = store.list_folder("")
        if must_exist and _needs_objects(store.uri) and not any(top):
            raise RootMissing("it holds no object")
    except RootMissing as gone:
        raise RootMissing(
            f"there is no {store.uri}, so no table is looked after there ({gone}). Look how it is"
            " spelled, and whether its disk is mounted"
        ) from None
    level = _folders(store, _names(top))
    tables: list[str] = []
    skipped: list[Skipped] = []
    for left in range(depth - 1, -1, -1):
        looked = env.threads.map(lambda uri: _look(uri, storage, env), level, workers=WORKERS)
        tables += [uri for uri, inner in zip(level, looked, strict=True) if inner is None]
        skipped += [inner for inner in looked if isinstance(inner, Skipped)]
        inside = [uri for inner in looked if isinstance(inner, list) for uri in inner]
        level = inside if left else []
    return Found(sorted(tables), skipped)


def _look(uri: str, storage: StorageOf, env: Env) -> list[str] | Skipped | None:
    """None for a table, otherwise the folders to look into, or why that cannot be done."""
    if is_behind_link(uri, uri.rpartition("/")[0]):
        return Skipped(uri, "a symbolic link is not followed; search its target", is_link=True)
    try:
        store = open_store(uri, storage(uri), env=env)
        names = _names(store.list_folder(""))
        if paths.WEIR in names and _is_table(uri, storage, env):
            return None
        if paths.VERSIONS in names or paths.WEIR in names:
            return []  # another dataset, a dropped table, or the store of a log
        return _folders(store, names)
    except WeirError as error:
        return Skipped.because(uri, error)
    except Exception as error:  # noqa: BLE001 (of a library below, or a bug: hides no other table)
        return Skipped(uri, f"unexpected {type(error).__name__}: {error}")


def _needs_objects(uri: str) -> bool:
    """True for a prefix of an object store, which is there while an object is below it; a bucket or
    a folder may be empty."""
    return "://" in uri and uri.count("/") > 2


def _names(inside: Folder) -> list[str]:
    return sorted(folder.rstrip("/").rpartition("/")[2] for folder in inside[0])


def _folders(store: Store, names: list[str]) -> list[str]:
    """The folders to look into. No table has a name that `weir.create` would refuse."""
    base = store.uri.rstrip("/")
    shown = [f"{base}/{name}" for name in names if not name.startswith(("_", "."))]
    return [uri for uri in shown if is_normal(uri)]


def _is_table(uri: str, storage: StorageOf, env: Env) -> bool:
    return making.exists(uri, storage_options=storage(uri), env=env)
