"""Opening Lance datasets: one session of caches per table, and a cheap check for new versions.

A handle never moves to another version: `LanceDataset.checkout_latest` would change it under other
threads that read through it. Finding the latest version costs one listing (10 microseconds on a
local disk); only a new version is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

import lance
from lance.lance import _Session

from weir.env import SYSTEM, Env, ForkGuard
from weir.errors import CorruptEntry, InvalidInput, MissingEntry, NotAWeirTable, SnapshotExpired
from weir.lake.lance_errors import lance_errors
from weir.lake.links import require_own_files, require_own_folders
from weir.lake.shared import SharedDataset, as_destination

INDEX_CACHE_BYTES: Final = 512 * 1024 * 1024
"""Limit on the opened indexes that Lance caches, for all datasets of one table together."""
METADATA_CACHE_BYTES: Final = 128 * 1024 * 1024
"""Limit on the manifests and file metadata that Lance caches, for all datasets of one table."""
_RETRIES: Final = 20  # Lance's own number


def expired(uri: str, version: int) -> SnapshotExpired:
    """The error for a base version that is gone."""
    return SnapshotExpired(
        f"{uri}: version {version} of the base was cleaned up. If this was planned before, read the"
        " table again; to read longer than min_age of gc, read at a checkpoint. If it is the"
        " version of a checkpoint, another program deleted the tag that held it: the checkpoint is"
        " lost, choose another one (table.checkpoints())"
    )


class Handles(Protocol):
    """Handles of the base table, and commits to it: what the verbs of a fold need of `Datasets`."""

    env: Env

    def own(self, version: int | None = None) -> lance.LanceDataset:
        """A handle of the base for one caller that changes something; see `weir.lake.shared`."""

    def latest(self) -> SharedDataset:
        """The base table at its latest version. One listing; a new version costs one more read."""

    def changing(self, version: int | None = None) -> lance.LanceDataset:
        """`own`, for a change of the table whose handle this is, and of no other one (C-16)."""

    def commit(self, planned: SharedDataset, transaction: lance.Transaction) -> int:
        """Commit `transaction`, planned on `planned`, to the base table; return the version."""


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
        self._latest: SharedDataset | None = None
        self._counted = (0, 0)
        self._fork_guard = ForkGuard(env)
        self.before_changes: Callable[[], object] = lambda: None
        """Raises when another table is at this place by now (C-16)."""

    def spent(self) -> tuple[int, int]:
        """Requests that Lance made for this table since the last call, and their bytes.

        For `weir.pace`, which calls it under its lock. Lance counts for the whole session.
        """
        known = self._latest
        if known is None:
            return 0, 0
        total = known.io_stats_snapshot()
        before = self._counted
        self._counted = (
            total.read_iops + total.write_iops,
            total.read_bytes + total.written_bytes,
        )
        return self._counted[0] - before[0], self._counted[1] - before[1]

    def own(self, version: int | None = None) -> lance.LanceDataset:
        """A handle of the base for one caller that changes something; see `weir.lake.shared`."""
        return self._open(self.uri, version)

    def changing(self, version: int | None = None) -> lance.LanceDataset:
        """`own`, for a change of the table whose handle this is, and of no other one (C-16)."""
        opened = self.own(version)
        self.before_changes()  # guard: C-16 test_drop
        return opened

    def _open(self, uri: str, version: int | None = None) -> lance.LanceDataset:
        self._check_home()
        require_own_files(self.uri, uri.removeprefix(self.uri).strip("/"))
        try:
            with lance_errors(f"opening {uri}" + (f" at version {version}" if version else "")):
                opened = lance.dataset(
                    uri, version=version, storage_options=self.storage_options, session=self.session
                )
        except (MissingEntry, NotAWeirTable) as gone:  # Lance says either of a missing version
            if version is None:
                raise
            raise expired(uri, version) from gone
        if opened.base_paths():
            if uri.rstrip("/") != self.uri:
                raise CorruptEntry(
                    f"SSTable {uri} refers to files outside its folder, which is not allowed"
                    ". Find out who wrote it, and restore it from a copy of the table"
                )
            if self._agree is not None:
                self._agree(int(opened.version))
        return opened

    def latest(self) -> SharedDataset:
        """The base table at its latest version. One listing; a new version costs one more read."""
        self._check_home()
        known = self._latest
        if known is not None:
            try:
                with lance_errors(f"looking for a new version of {self.uri}"):
                    newest = known.latest_version
            except MissingEntry as gone:
                raise NotAWeirTable(
                    f"{self.uri}: the base of this table is gone; it was dropped or removed. If"
                    " there is a new table, open it again with weir.open"
                ) from gone
            if newest == known.version:
                return known
        # Two threads may both open the new version; either handle is right.
        opened = self._open(self.uri)
        self._latest = opened
        return opened

    def known(self) -> SharedDataset:
        """The base table at the latest version known here. No request once one was opened."""
        known = self._latest
        return self.latest() if known is None else known  # the truth of a dataset counts its rows

    def at(self, version: int) -> SharedDataset:
        """The base table at `version`. No request when that version is already open."""
        known = self._latest
        if known is not None and known.version == version:
            return known
        return self._open(self.uri, version)

    def commit(
        self,
        planned: SharedDataset,
        transaction: lance.Transaction,
        *,
        is_repeatable: bool = False,
    ) -> int:
        """Commit `transaction`, planned on `planned`, to the base table; return the version.

        One attempt, unless it `is_repeatable`, which may be applied twice: after a lost answer,
        Lance would rebase a retry over our own commit.
        """
        require_own_folders(self.uri)
        self.before_changes()  # guard: C-16 test_drop
        retries = _RETRIES if is_repeatable else 0
        made = lance.LanceDataset.commit(as_destination(planned), transaction, max_retries=retries)
        return int(made.version)

    def forget(self) -> None:
        """Let the next `latest` open the table anew (after a restore or an overwrite)."""
        self._latest = None

    def open_sstable(self, path: str) -> SharedDataset:
        """The SSTable at `path` in the table; `MissingEntry` when it is not there."""
        uri = f"{self.uri}/{path}"
        try:
            return self._open(uri)
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
