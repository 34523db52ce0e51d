"""The store as weir sees it: a few verbs with typed answers.

Paths are relative to the store's root, with `/` between parts and none at the ends. Every verb may
be called from several threads. An implementation returns a value or raises

    ObjectExists     put_if_absent: an object exists. Says nothing about whose it is (F-11)
    ObjectMissing    get, get_range: there is no object
    StoreError       the call failed; `LostAnswer` if it may have been applied nevertheless
    StoreDenied      the credentials were refused
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from weir.errors import StoreError

T = TypeVar("T")

Bytes = bytes | bytearray | memoryview


SOMETIME: Final = float("nan")
"""A time that is neither before nor after any other."""


class ObjectExists(Exception):
    """Put-if-absent found an object at that path."""


class ObjectMissing(Exception):
    """There is no object at that path."""


class RootMissing(StoreError):
    """The folder that a store must be in is not there: nothing is known of what it holds (S-1)."""


class LostAnswer(StoreError):
    """A write failed, and it is unknown whether it was applied."""


@dataclass(frozen=True, slots=True)
class Meta:
    """Metadata of an object, as a listing or a head returns it."""

    path: str
    size: int
    last_modified: float
    """Seconds since 1970 by the store's clock."""
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class Blob:
    """An object's bytes, and the metadata that identifies exactly this version of it."""

    data: bytes
    meta: Meta


Parts = Callable[[], Iterator[bytes]]
"""The bytes of an object in order, from the beginning each time it is called."""

Folder = tuple[list[str], list[Meta]]
"""Names of folders, and objects."""
Items = list
"""The store's own `list` hides it."""


class Store(Protocol):
    """One root on one object store."""

    @property
    def uri(self) -> str:
        """Where the root is; never holds credentials."""

    def put_if_absent(self, path: str, data: Bytes) -> float | None:
        """Create the object, whole or not at all, or raise `ObjectExists`. One request.

        Returns the creation time by the store's clock; None if the response does not hold it, and
        `SOMETIME` if it does not and the put had to be repeated (F-18).
        """

    def put(self, path: str, data: Bytes) -> None:
        """Create or replace the object. For hints only: nothing else is ever overwritten."""

    def put_parts(self, path: str, parts: Parts) -> None:
        """Create or replace an object of any size, whole or not at all, part by part.

        Memory holds a few parts; each is a separate request where a store limits request sizes. For
        copies of immutable objects under names of their own; a retry calls `parts` again.
        """

    def get(self, path: str) -> Blob:
        """The whole object, or `ObjectMissing`."""

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """`length` bytes from `start` on (fewer at the end of the object), or `ObjectMissing`."""

    def head(self, path: str) -> Meta | None:
        """The object's size, time and ETag, or None."""

    def list(self, prefix: str) -> Iterator[Meta]:
        """Every object below the folder `prefix`, recursively, in no promised order."""

    def list_folder(self, prefix: str) -> Folder:
        """Names of the folders directly below `prefix` and the objects directly in it.

        May include a folder that holds nothing yet, or no longer holds anything.
        """

    def delete(self, paths: Sequence[str]) -> None:
        """Delete many objects; a missing one counts as deleted (G-12)."""

    def now(self) -> float:
        """The store's clock, in seconds since 1970 (G-3)."""

    # -- many at once, each as if it were alone --------------------------------------------------

    def get_many(self, paths: Sequence[str], *, first: int | None = None) -> Items[bytes | None]:
        """The objects in the order of `paths`; None for a missing one.

        With `first`, at most that many bytes from the beginning of each.
        """

        def one(path: str) -> bytes | None:
            try:
                return self.get(path).data if first is None else self.get_range(path, 0, first)
            except ObjectMissing:
                return None

        return self.each(one, paths)

    def head_many(self, paths: Sequence[str]) -> Items[Meta | None]:
        """`head` for several paths."""
        return self.each(self.head, paths)

    def list_many(self, prefixes: Sequence[str]) -> Items[Items[Meta]]:
        """`list` for several folders: one round of requests for many shards."""
        return self.each(lambda prefix: [*self.list(prefix)], prefixes)

    def each(self, request: Callable[[str], T], names: Sequence[str]) -> Items[T]:
        """The answers to that request for each name, in order."""
        return [request(name) for name in names]


def put_new(store: Store, path: str, data: Bytes) -> None:
    """Create an object with a random name. One that exists is ours: a layer below repeated the
    request after it had been applied (F-9)."""
    with contextlib.suppress(ObjectExists):  # guard: F-9 test_repeated_puts
        store.put_if_absent(path, data)


def is_local(store: Store) -> bool:
    """True for local files: a call takes less time than handing it to another thread."""
    return store.uri.startswith("/")
