"""Opening Lance datasets: one session of caches per table, and a cheap check for new versions.

A handle never moves to another version: `LanceDataset.checkout_latest` would change it under other
threads that read through it. Finding the latest version costs one listing (10 microseconds on a
local disk); only a new version is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import lance
from lance.lance import _Session

from weir.env import SYSTEM, Env, ForkGuard
from weir.errors import CorruptEntry, InvalidInput, MissingEntry, NotAWeirTable
from weir.lake.lance_errors import lance_errors

INDEX_CACHE_BYTES: Final = 512 * 1024 * 1024
"""Limit on the opened indexes that Lance caches, for all datasets of one table together."""
METADATA_CACHE_BYTES: Final = 128 * 1024 * 1024
"""Limit on the manifests and file metadata that Lance caches, for all datasets of one table."""


class Datasets:
    """The base table and SSTables of one table as Lance datasets. Safe to share between threads."""

    def __init__(
        self,
        uri: str,
        storage_options: Mapping[str, str] | None,
        env: Env = SYSTEM,
        agree: Callable[[int], None] | None = None,
    ) -> None:
        """`agree` raises for a base version that names files in a forbidden place (G-13)."""
        self._agree = agree
        self.env = env
        self.uri = uri.rstrip("/")
        self.storage_options: dict[str, str] | None = dict(storage_options or {}) or None
        self.session = _Session(
            index_cache_size_bytes=INDEX_CACHE_BYTES,
            metadata_cache_size_bytes=METADATA_CACHE_BYTES,
        )
        self._latest: lance.LanceDataset | None = None
        self._fork_guard = ForkGuard(env)

    def open(self, uri: str, version: int | None = None) -> lance.LanceDataset:
        """A new handle."""
        self._check_home()
        with lance_errors(f"opening {uri}" + (f" at version {version}" if version else "")):
            opened = lance.dataset(
                uri, version=version, storage_options=self.storage_options, session=self.session
            )
        if opened.base_paths():
            if uri.rstrip("/") != self.uri:
                raise CorruptEntry(
                    f"SSTable {uri} refers to files outside its folder, which is not allowed"
                    " (G-13). Find out who wrote it, and restore it from a copy of the table"
                )
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
        """The base table at the latest version known here. No request once one was opened."""
        return self._latest or self.latest()

    def at(self, version: int) -> lance.LanceDataset:
        """The base table at `version`. No request when that version is already open."""
        known = self._latest
        if known is not None and known.version == version:
            return known
        return self.open(self.uri, version)

    def commit(self, dataset: lance.LanceDataset, transaction: lance.Transaction) -> int:
        """Commit `transaction`, planned on `dataset`, to the base table; return the version.

        One attempt: after a lost answer, Lance would rebase a retry over our own commit.
        """
        return int(lance.LanceDataset.commit(dataset, transaction, max_retries=0).version)

    def forget(self) -> None:
        """Let the next `latest` open the table anew (after a restore or an overwrite)."""
        self._latest = None

    def open_sstable(self, path: str) -> lance.LanceDataset:
        """The SSTable at `path` in the table; `MissingEntry` when it is not there."""
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
        if self._fork_guard.is_forked:
            raise InvalidInput(
                f"{self.uri}: this handle belongs to the parent process, and Lance does not work in"
                " a forked child; start the child with spawn or forkserver, and open the table in"
                " it"
            )
