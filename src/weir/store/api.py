"""The store as weir sees it: a few verbs with typed answers.

Paths are relative to the store's root, with `/` between parts and none at the ends. Every verb may
be called from several threads. An implementation answers with a value or raises

    ObjectExists     put_if_absent: something is there. Says nothing about whose it is (F-11)
    ObjectMissing    get, get_range: nothing is there
    StoreError       the call failed; `LostAnswer` when it may have been applied all the same
    StoreDenied      the credentials were refused
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from weir.errors import StoreError

Bytes = bytes | bytearray | memoryview


SOMETIME: Final = float("nan")
"""A time that is neither before nor after any other."""


class ObjectExists(Exception):
    """Put-if-absent found an object at that path."""


class ObjectMissing(Exception):
    """There is no object at that path."""


class LostAnswer(StoreError):
    """A write failed in a way that leaves open whether it was applied."""


@dataclass(frozen=True, slots=True)
class Meta:
    """What a listing or a head tells about an object."""

    path: str
    size: int
    last_modified: float
    """Seconds since 1970 by the store's clock."""
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class Blob:
    """An object's bytes and what is needed to replace exactly it."""

    data: bytes
    meta: Meta


Parts = Callable[[], Iterator[bytes]]
"""The bytes of an object in order, from the beginning each time it is called."""

Folder = tuple[list[str], list[Meta]]
"""Names of folders, and objects."""


class Store(Protocol):
    """One root on one object store."""

    @property
    def uri(self) -> str:
        """Where the root is; never holds credentials."""

    def put_if_absent(self, path: str, data: Bytes) -> float | None:
        """Create the object, whole or not at all, or raise `ObjectExists`. One request.

        Returns when it was created, by the store's clock; None where the answer does not tell, and
        `SOMETIME` where it does not and the put had to be repeated (F-18).
        """

    def put(self, path: str, data: Bytes) -> None:
        """Create or replace the object. For hints only: what matters is never overwritten."""

    def put_parts(self, path: str, parts: Parts) -> None:
        """Create or replace an object of any size, whole or not at all, part by part.

        Memory holds a few parts; each is a request of its own where a store limits what one takes.
        For copies of immutable objects under names of their own; `parts` may be asked again.
        """

    def get(self, path: str) -> Blob:
        """The whole object, or `ObjectMissing`."""

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """`length` bytes from `start` on (fewer at the end of the object), or `ObjectMissing`."""

    def get_many(self, paths: Sequence[str], *, first: int | None = None) -> list[bytes | None]:
        """The objects in the order asked for, fetched concurrently; None for a missing one.

        Of each at most the `first` bytes, when given.
        """

    def head(self, path: str) -> Meta | None:
        """The object's size, time and ETag, or None."""

    def head_many(self, paths: Sequence[str]) -> list[Meta | None]:
        """`head` for several paths, concurrently."""

    def list(self, prefix: str) -> Iterator[Meta]:
        """Every object below the folder `prefix`, recursively, in no promised order."""

    def list_many(self, prefixes: Sequence[str]) -> Sequence[Sequence[Meta]]:
        """`list` for several folders, concurrently: of many shards in one round of requests."""

    def list_folder(self, prefix: str) -> Folder:
        """Names of the folders directly below `prefix` and the objects directly in it.

        A folder may be named that holds nothing any more, or nothing yet.
        """

    def delete(self, paths: Sequence[str]) -> None:
        """Delete many objects; a missing one counts as deleted (G-12)."""

    def now(self) -> float:
        """The store's clock, in seconds since 1970 (G-3)."""


def is_local(store: Store) -> bool:
    """True for files: they answer sooner than another thread could take over."""
    return store.uri.startswith("/")
