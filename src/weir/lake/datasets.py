"""Opening Lance datasets: one session of caches for a table, fresh handles found cheaply.

A handle never moves to another version: `LanceDataset.checkout_latest` changes it under other
threads that read through it. Asking for the latest version costs one listing (10 microseconds on
a local disk); only a new version is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import lance
from lance.lance import _Session

from weir.env import SYSTEM, Env, Home
from weir.errors import CorruptEntry, InvalidInput, MissingEntry, NotAWeirTable
from weir.lake.lance_errors import lance_errors

INDEX_CACHE_BYTES: Final = 512 * 1024 * 1024
"""Most that Lance keeps of opened indexes, for all datasets of one table together."""
METADATA_CACHE_BYTES: Final = 128 * 1024 * 1024
"""Most that Lance keeps of manifests and file metadata, for all datasets of one table together."""


class Datasets:
    """The base table and SSTables of one table as Lance datasets. Safe to share between threads."""

    def __init__(
        self,
        uri: str,
        storage_options: Mapping[str, str] | None,
        env: Env = SYSTEM,
        agree: Callable[[int], None] | None = None,
    ) -> None:
        """`agree` raises for a version of the base that names files where it may not (G-13)."""
        self._agree = agree
        self.env = env
        self.uri = uri.rstrip("/")
        self.storage_options: dict[str, str] | None = dict(storage_options or {}) or None
        self.session = _Session(
            index_cache_size_bytes=INDEX_CACHE_BYTES,
            metadata_cache_size_bytes=METADATA_CACHE_BYTES,
        )
        self._latest: lance.LanceDataset | None = None
        self._home = Home(env)

    def open(self, uri: str, version: int | None = None) -> lance.LanceDataset:
        """A new handle."""
        self._check_home()
        with lance_errors(f"opening {uri}" + (f" at version {version}" if version else "")):
            opened = lance.dataset(
                uri, version=version, storage_options=self.storage_options, session=self.session
            )
        if opened.base_paths():
            if uri.rstrip("/") != self.uri:
                raise CorruptEntry(f"SSTable {uri} names files of other places; none may (G-13)")
            if self._agree is not None:
                self._agree(int(opened.version))
        return opened

    def latest(self) -> lance.LanceDataset:
        """The base table at its latest version. One listing; a new version costs one more read."""
        self._check_home()
        known = self._latest
        if known is not None:
            with lance_errors(f"looking for a new version of {self.uri}"):
                newest = known.latest_version
            if newest == known.version:
                return known
        # Two threads may both open the new version; either handle is right.
        opened = self.open(self.uri)
        self._latest = opened
        return opened

    def known(self) -> lance.LanceDataset:
        """The base table at some version, the latest known. No request once it was opened."""
        return self._latest or self.latest()

    def at(self, version: int) -> lance.LanceDataset:
        """The base table at that version. No request when it is the one already open."""
        known = self._latest
        if known is not None and known.version == version:
            return known
        return self.open(self.uri, version)

    def commit(self, dataset: lance.LanceDataset, transaction: lance.Transaction) -> int:
        """Make `transaction`, planned on `dataset`, a version of the base table; its number.

        One attempt: Lance would rebase over our own commit when its answer was lost.
        """
        return int(lance.LanceDataset.commit(dataset, transaction, max_retries=0).version)

    def forget(self) -> None:
        """Let the next `latest` open the table anew (after a restore or an overwrite)."""
        self._latest = None

    def open_sstable(self, path: str) -> lance.LanceDataset:
        """The SSTable at that path in the table, or `MissingEntry`."""
        uri = f"{self.uri}/{path}"
        try:
            return self.open(uri)
        except NotAWeirTable as error:
            raise MissingEntry(
                f"SSTable {uri} is not there; it may have been collected after this read was"
                " planned: read the table again"
            ) from error

    def _check_home(self) -> None:
        # Lance's threads do not survive a fork: a call through the parent's handle may never end.
        if self._home.is_left:
            raise InvalidInput(
                f"{self.uri}: this handle belongs to the process that was forked, and Lance does"
                " not work in its children; start them by spawn or forkserver, and open the table"
                " there"
            )
