"""A store whose requests wait for their turn (`weir.pace`): for the jobs of a keeper.

A put-if-absent is counted and never waits. It decides who holds a claim, and a claim that is
renewed too late is lost: the job would begin again, and again (L-4).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from weir.pace import Pace
from weir.store.api import Blob, Bytes, Folder, Meta, Parts, Store

PAGE: Final = 1000
"""Objects that one request lists or deletes, on the stores that do it in bulk."""
_CLOCK: Final = 3
"""Requests of a look at the store's clock: it writes an object, and deletes it."""


class PacedStore(Store):
    """Any store, at the pace of a keeper."""

    def __init__(self, inner: Store, pace: Pace) -> None:
        self.inner = inner
        self._pace = pace

    def __repr__(self) -> str:
        return f"PacedStore({self.inner!r})"

    @property
    def uri(self) -> str:
        """The inner store's."""
        return self.inner.uri

    def put_if_absent(self, path: str, data: Bytes) -> float | None:
        """Counted; never waits."""
        self._pace.charge(1, len(data))
        return self.inner.put_if_absent(path, data)

    def put(self, path: str, data: Bytes) -> None:
        """In its turn."""
        self._pace.wait()
        self._pace.charge(0, len(data))
        self.inner.put(path, data)

    def put_parts(self, path: str, parts: Parts) -> None:
        """Each part in its turn."""

        def one_by_one() -> Iterator[bytes]:
            for part in parts():
                self._pace.wait()
                self._pace.charge(0, len(part))
                yield part

        self.inner.put_parts(path, one_by_one)

    def get(self, path: str) -> Blob:
        """In its turn."""
        self._pace.wait()
        blob = self.inner.get(path)
        self._pace.charge(0, len(blob.data))
        return blob

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """In its turn."""
        self._pace.wait()
        data = self.inner.get_range(path, start, length)
        self._pace.charge(0, len(data))
        return data

    def head(self, path: str) -> Meta | None:
        """In its turn."""
        self._pace.wait()
        return self.inner.head(path)

    def list(self, prefix: str) -> Iterator[Meta]:
        """In its turn; a page of objects counts as a request."""
        self._pace.wait()
        for number, meta in enumerate(self.inner.list(prefix), 1):
            yield meta
            if number % PAGE == 0:
                self._pace.wait()

    def list_folder(self, prefix: str) -> Folder:
        """In its turn."""
        self._pace.wait()
        return self.inner.list_folder(prefix)

    def delete(self, paths: Sequence[str]) -> None:
        """A page of objects at a time, each in its turn."""
        for start in range(0, len(paths), PAGE):
            self._pace.wait()
            self.inner.delete(paths[start : start + PAGE])

    def now(self) -> float:
        """Counted; never waits: a time is old when it comes late."""
        self._pace.charge(_CLOCK)
        return self.inner.now()
