"""Objects in this process's memory, under a name: `memory://name`. For tests and experiments.

pylance cannot see them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from weir.env import SYSTEM, Env, Lock
from weir.store.api import (
    Blob,
    Bytes,
    Folder,
    Meta,
    ObjectExists,
    ObjectMissing,
    Parts,
    Store,
)
from weir.store.paths import check, check_folder

Metas = list[Meta]
"""The store's own `list` hides it."""


@dataclass
class _Shelf:
    """All objects of one named store, shared by every `MemoryStore` that opens it."""

    blobs: dict[str, Blob] = field(default_factory=dict)
    versions: Iterator[int] = field(default_factory=itertools.count)
    # Held for dictionary operations only, never while calling out: schedulers can ignore it.
    lock: Lock = field(default_factory=SYSTEM.threads.lock)


_SHELVES: dict[str, _Shelf] = {}


class MemoryStore(Store):
    """A folder of a named in-memory store; without a name it is private."""

    def __init__(self, name: str = "", prefix: str = "", *, env: Env = SYSTEM) -> None:
        self._shelf = _SHELVES.setdefault(name, _Shelf()) if name else _Shelf()
        self._name = name
        self._lead = prefix.strip("/") + "/" if prefix.strip("/") else ""
        self._env = env

    def __repr__(self) -> str:
        return f"MemoryStore({self.uri!r})"

    @property
    def uri(self) -> str:
        """`memory://name/prefix`."""
        return f"memory://{self._name}/{self._lead}".rstrip("/")

    def put_if_absent(self, path: str, data: Bytes) -> float:
        """Create under the lock."""
        with self._shelf.lock:
            if self._lead + path in self._shelf.blobs:
                raise ObjectExists(path)
            return self._set(path, data).last_modified

    def put(self, path: str, data: Bytes) -> None:
        """Create or replace."""
        with self._shelf.lock:
            self._set(path, data)

    def put_parts(self, path: str, parts: Parts) -> None:
        """Create or replace."""
        self.put(path, b"".join(parts()))

    def get(self, path: str) -> Blob:
        """The stored bytes themselves; they are immutable."""
        try:
            return self._shelf.blobs[self._lead + check(path)]
        except KeyError:
            raise ObjectMissing(path) from None

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """A slice."""
        return self.get(path).data[start : start + max(length, 0)]

    def head(self, path: str) -> Meta | None:
        """One lookup."""
        blob = self._shelf.blobs.get(self._lead + check(path))
        return None if blob is None else blob.meta

    def list(self, prefix: str) -> Iterator[Meta]:
        """A snapshot of the names below the folder, sorted."""
        folder = check_folder(prefix)
        lead = self._lead + (folder + "/" if folder else "")
        with self._shelf.lock:
            found = [
                (path, blob) for path, blob in self._shelf.blobs.items() if path.startswith(lead)
            ]
        return iter([blob.meta for _, blob in sorted(found, key=lambda item: item[0])])

    def list_folder(self, prefix: str) -> Folder:
        """The names below the folder, grouped by their next part."""
        folder = check_folder(prefix)
        skip = len(folder) + 1 if folder else 0
        folders: dict[str, None] = {}
        objects: Metas = []
        for meta in self.list(prefix):
            name, slash, _ = meta.path[skip:].partition("/")
            if slash:
                folders[name] = None
            else:
                objects.append(meta)
        return [*folders], objects

    def delete(self, paths: Sequence[str]) -> None:
        """Remove each."""
        with self._shelf.lock:
            for path in paths:
                self._shelf.blobs.pop(self._lead + check(path), None)

    def now(self) -> float:
        """This process's clock, which also stamps the objects."""
        return self._env.clock.wall()

    def _set(self, path: str, data: Bytes) -> Meta:
        etag = str(next(self._shelf.versions))
        meta = Meta(check(path), len(data), self._env.clock.wall(), etag)
        self._shelf.blobs[self._lead + path] = Blob(bytes(data), meta)
        return meta


def forget(name: str) -> None:
    """Drop a named store and its objects; a `MemoryStore` that is open keeps them."""
    _SHELVES.pop(name, None)
