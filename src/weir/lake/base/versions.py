"""Versions of the base table: protected, cloned, rolled back, cleaned up, tidied."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar

import lance
from lance.optimize import Compaction, CompactionTask, RewriteResult

from weir.errors import CommitConflict, InvalidInput
from weir.format import paths
from weir.format.lance_file import parse_version_name, version_name
from weir.lake.api import Cleaned, Lake
from weir.lake.datasets import Datasets
from weir.lake.lance_errors import is_tag_gone, is_tag_taken, lance_errors
from weir.lake.manifest.clone import clone_manifest
from weir.store.api import ObjectExists, ObjectMissing, Store, is_local
from weir.types import Version

# Stored. Never change a value; add one.
RESTORE: Final = "weir.restore"
"""Property of the commit of a restore; its value is the id of the checkpoint."""

T = TypeVar("T")


@dataclass(frozen=True)
class FilePlan:
    """Tasks that rewrite files, and the handle on which their results are committed."""

    dataset: lance.LanceDataset
    tasks: tuple[str, ...]


class Versions(Lake):
    """The verbs of `Lake` for versions and their files."""

    datasets: Datasets
    store: Store

    def protect_version(self, name: str, version: int) -> None:
        """See `Lake`."""
        dataset = self.datasets.changing()
        with lance_errors(f"protecting version {version} of {self.uri}"):
            try:
                dataset.tags.create(name, version)
                return
            except ValueError as error:
                if not is_tag_taken(error):
                    raise
            protected = dataset.tags.get_version(name)
        if protected != version:
            raise CommitConflict(
                f"{self.uri}: tag {name!r} protects version {protected}, not {version};"
                " use another name"
            )

    def release_version(self, name: str) -> None:
        """See `Lake`."""
        dataset = self.datasets.own()
        with lance_errors(f"releasing {name!r} of {self.uri}"):
            try:
                dataset.tags.delete(name)
            except ValueError as error:
                if not is_tag_gone(error):
                    raise

    def protected_versions(self) -> dict[str, int]:
        """See `Lake`."""
        with lance_errors(f"listing the tags of {self.uri}"):
            tags = self._as_tags_go(self.datasets.latest().tags.list)
            return {name: tag["version"] for name, tag in tags.items()}

    def _as_tags_go(self, act: Callable[[], T]) -> T:
        """The result of a Lance call that reads the tags, repeated while tags disappear.

        Lance lists the tags and then reads each; a tag deleted in between fails the call. The next
        listing shows its replacement: a pin that is handed over has two tags for a while, and a
        reader that skipped the deleted tag would see neither (K-1).
        """
        env = self.datasets.env
        # guard: K-1 test_tag_deleted_while_tags_are_listed
        for _ in env.attempts(first_delay=0):
            try:
                return act()
            except (OSError, ValueError) as error:
                if not is_tag_gone(error):
                    raise
        return act()

    def check_version(self, version: int) -> None:
        """See `Lake`."""
        self.datasets.own(version)

    def shallow_clone(self, destination: Store, version: int) -> int:
        """See `Lake`."""
        self.datasets.at(version)
        path = paths.base_version_path(version_name(Version(version)))
        _, there = destination.list_folder(paths.VERSIONS)
        try:
            raw = clone_manifest(
                self.store.get(path).data, self.uri, path=f"{self.store.uri}/{path}"
            )
        except ObjectMissing:
            raise InvalidInput(
                f"{self.uri} names its manifests as old releases of Lance did;"
                " run `LanceDataset.migrate_manifest_paths_v2` first"
            ) from None
        if not there:
            try:
                destination.put_if_absent(path, raw)
                return version
            except ObjectExists:
                pass  # perhaps put by an earlier attempt of ours
        try:
            if destination.get(path).data == raw:
                return version
        except ObjectMissing:
            pass
        raise CommitConflict(
            f"{destination.uri}: another dataset is already there; choose an empty place"
        )

    def restore(self, version: int, checkpoint: str) -> int:
        """One commit. It names the checkpoint: Lance cannot fence a restore, so one that lands late
        has to be recognized (`weir.upkeep.compact.progress`).
        """
        latest = self.datasets.latest()
        transaction = lance.Transaction(
            read_version=latest.version,
            operation=lance.LanceOperation.Restore(version=version),
            transaction_properties={RESTORE: checkpoint},
        )
        with lance_errors(f"restoring version {version} of {self.uri}"):
            # Restoring again changes nothing.
            self.datasets.commit(latest, transaction, is_repeatable=True)
        self.datasets.forget()
        return int(self.datasets.latest().version)

    def cleanup_old_versions(
        self,
        replaced_for: timedelta,
        *,
        keep_from: int | None = None,
        dry_run: bool = False,
        released: Collection[str] = (),
    ) -> Cleaned:
        """See `Lake`."""
        if is_local(self.store):
            require_no_links(self.store)  # guard: G-13 test_inside_the_table
        dataset = self.datasets.changing()
        with lance_errors(f"cleaning up old versions of {self.uri}"):
            newest = dataset.version if keep_from is None else min(keep_from, dataset.version)
            # Lance looks for its branches under one spelling of the URI only.
            branched = {
                int(branch["parent_version"]) for branch in dataset.branches.list().values()
            }
            replaced = self._replaced(replaced_for.total_seconds())
            due = [v for v in replaced if v < newest and v not in branched]
            if not due:
                return Cleaned(0, 0)
            selection: dict[str, Any] = {
                "versions": due,
                "older_than": timedelta(0),
                "error_if_tagged_old_versions": False,
            }
            if dry_run:
                explained = self._as_tags_go(
                    lambda: dataset.explain_cleanup_old_versions(**selection)
                )
                stats = explained.stats
                tags = self.protected_versions().items() if released else ()
                held = {version for tag, version in tags if tag not in released}
                freed = {version for tag, version in tags if tag in released} - held
                more = len(freed.intersection(due))
                return Cleaned(stats.old_versions + more, stats.bytes_removed)
            stats = self._as_tags_go(lambda: dataset.cleanup_old_versions(**selection))
        return Cleaned(stats.old_versions, stats.bytes_removed)

    def written_versions(self) -> dict[int, float]:
        """See `Lake`."""
        _, objects = self.store.list_folder(paths.VERSIONS)
        return {
            int(version): meta.last_modified
            for meta in objects
            if (version := parse_version_name(meta.path.rpartition("/")[2])) is not None
        }

    def plan_files(self, *, target_rows_per_fragment: int) -> FilePlan:
        """See `Lake`."""
        dataset = self.datasets.own()
        with lance_errors(f"planning to compact the files of {self.uri}"):
            plan = Compaction.plan(dataset, {"target_rows_per_fragment": target_rows_per_fragment})
            return FilePlan(dataset, tuple(_text(task) for task in plan.tasks))

    def rewrite_files(self, task: str) -> str:
        """See `Lake`."""
        found = CompactionTask.from_json(task)  # type: ignore[attr-defined]
        dataset = self.datasets.own(found.read_version)
        with lance_errors(f"rewriting files of {self.uri}"):
            return _text(found.execute(dataset))

    def commit_files(self, plan: FilePlan, results: Sequence[str]) -> int:
        """Commits on the handle of the plan: on a newer one, rows deleted since could come back."""
        self.datasets.before_changes()  # C-16
        with lance_errors(f"compacting the files of {self.uri}"):
            made = [RewriteResult.from_json(text) for text in results]  # type: ignore[attr-defined]
            Compaction.commit(plan.dataset, made)
        return int(self.datasets.latest().version)

    def _replaced(self, seconds: float) -> list[int]:
        """The versions whose next one was written that long ago, by the store's clock. One listing.

        The age of a version itself says nothing about its readers: a table may rest for days, and
        they begin to lag only when a newer version comes.
        """
        written = self.written_versions()
        limit = self.store.now() - seconds
        ascending = sorted(written)
        return [v for v, after in itertools.pairwise(ascending) if written[after] <= limit]


def require_no_links(store: Store) -> None:
    """Raise `StoreDenied` when a folder that Lance would clean up is behind a symlink (G-13).

    Lance follows links and deletes, by path prefix, whatever no version of ours names: files of
    another dataset. So everything is listed here first, except weir's own folders.
    """
    folders, _ = store.list_folder("")
    for folder in folders:
        if folder not in (paths.SHARDS, paths.WEIR):
            for _ in store.list(folder):
                pass


def _text(part: Any) -> str:
    """As JSON; Lance's stubs do not declare this method of tasks and results."""
    return str(part.json())
