"""Versions of the base table: protected, cloned, rolled back, cleaned up, tidied."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar

import lance
from lance.optimize import Compaction, CompactionTask, RewriteResult

from weir.errors import CommitConflict, InvalidInput, MissingEntry, SnapshotExpired
from weir.format import paths
from weir.format.lance_file import parse_version_name, version_name
from weir.lake.api import Cleaned
from weir.lake.datasets import Datasets
from weir.lake.lance_errors import is_tag_gone, is_tag_taken, lance_errors
from weir.lake.manifest.clone import clone_manifest
from weir.store.api import ObjectExists, ObjectMissing, Store
from weir.types import Version

# Stored. Never change a value; add one.
RESTORE: Final = "weir.restore"
"""Property of the commit of a restore; its value is the id of the checkpoint."""

_RETRIES: Final = 20  # Lance's own number
_LISTINGS: Final = 16
"""How often tags are listed again because one was deleted between the listing and its read."""

T = TypeVar("T")


def protect_version(datasets: Datasets, name: str, version: int) -> None:
    """Keep `version` from Lance's clean-up, by a tag, until `release_version`. Idempotent.

    `CommitConflict` when the name protects another version, `MissingEntry` when `version` is gone.
    """
    dataset = datasets.own()
    with lance_errors(f"protecting version {version} of {datasets.uri}"):
        try:
            dataset.tags.create(name, version)
            return
        except ValueError as error:
            if not is_tag_taken(error):
                raise
        protected = dataset.tags.get_version(name)
    if protected != version:
        raise CommitConflict(
            f"{datasets.uri}: tag {name!r} protects version {protected}, not {version};"
            " use another name"
        )


def release_version(datasets: Datasets, name: str) -> None:
    """Undo `protect_version`; a name that protects nothing is left alone."""
    dataset = datasets.own()
    with lance_errors(f"releasing {name!r} of {datasets.uri}"):
        try:
            dataset.tags.delete(name)
        except ValueError as error:
            if not is_tag_gone(error):
                raise


def protected_versions(datasets: Datasets) -> dict[str, int]:
    """Each tag and the version it protects, weir's tags and others."""
    with lance_errors(f"listing the tags of {datasets.uri}"):
        tags = _as_tags_go(datasets.latest().tags.list)
        return {name: tag["version"] for name, tag in tags.items()}


def _as_tags_go(act: Callable[[], T]) -> T:
    """The result of a Lance call that reads the tags, repeated while tags disappear.

    Lance lists the tags and then reads each; a tag deleted in between fails the call. The next
    listing shows its replacement: a pin that is handed over has two tags for a while, and a reader
    that skipped the deleted tag would see neither (K-1).
    """
    for _ in range(_LISTINGS):  # guard: K-1 test_tag_deleted_while_tags_are_listed
        try:
            return act()
        except (OSError, ValueError) as error:
            if not is_tag_gone(error):
                raise
    return act()


def shallow_clone(datasets: Datasets, source: Store, destination: Store, version: int) -> int:
    """Make `destination` (the root of the new table) a base that shares the files of `version`.

    One read, one put-if-absent; any two kinds of store. The clone names its parent by URI, so the
    version must stay protected there, and readers of the clone need credentials for both.
    Idempotent; `CommitConflict` when another dataset is there.
    """
    datasets.at(version)
    path = paths.base_version_path(version_name(Version(version)))
    _, there = destination.list_folder(paths.VERSIONS)
    try:
        raw = clone_manifest(source.get(path).data, datasets.uri, path=f"{source.uri}/{path}")
    except ObjectMissing:
        raise InvalidInput(
            f"{datasets.uri} names its manifests as old releases of Lance did;"
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


def restore(datasets: Datasets, version: int, checkpoint: str) -> int:
    """Make the content of `version` the latest again, as a new version. One commit.

    The commit names the checkpoint: Lance cannot fence a restore, so one that lands late has to be
    recognized (`weir.upkeep.compact.progress`).
    """
    latest = datasets.latest()
    transaction = lance.Transaction(
        read_version=latest.version,
        operation=lance.LanceOperation.Restore(version=version),
        transaction_properties={RESTORE: checkpoint},
    )
    with lance_errors(f"restoring version {version} of {datasets.uri}"):
        datasets.commit(latest, transaction, retries=_RETRIES)  # restoring again changes nothing
    datasets.forget()
    return int(datasets.latest().version)


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


def cleanup_old_versions(
    datasets: Datasets,
    source: Store,
    replaced_for: timedelta,
    *,
    keep_from: int | None = None,
    dry_run: bool = False,
    released: Collection[str] = (),
) -> Cleaned:
    """Remove versions replaced at least that long ago, and files only they name; or count them.

    Protected versions stay, and so do `keep_from` and all later ones (a fold whose mark is not yet
    recorded is found by its commit). A dry run counts as if the tags `released` were gone, but not
    the bytes of versions that only they protect: Lance does not tell them.
    """
    dataset = datasets.own()
    with lance_errors(f"cleaning up old versions of {datasets.uri}"):
        newest = dataset.version if keep_from is None else min(keep_from, dataset.version)
        # Lance looks for its branches under one spelling of the URI only.
        branched = {int(branch["parent_version"]) for branch in dataset.branches.list().values()}
        replaced = _replaced(source, replaced_for.total_seconds())
        due = [v for v in replaced if v < newest and v not in branched]
        if not due:
            return Cleaned(0, 0)
        selection: dict[str, Any] = {
            "versions": due,
            "older_than": timedelta(0),
            "error_if_tagged_old_versions": False,
        }
        if dry_run:
            stats = _as_tags_go(lambda: dataset.explain_cleanup_old_versions(**selection)).stats
            tags = protected_versions(datasets).items() if released else ()
            held = {version for tag, version in tags if tag not in released}
            freed = {version for tag, version in tags if tag in released} - held
            return Cleaned(stats.old_versions + len(freed.intersection(due)), stats.bytes_removed)
        stats = _as_tags_go(lambda: dataset.cleanup_old_versions(**selection))
    return Cleaned(stats.old_versions, stats.bytes_removed)


def written_at(source: Store) -> dict[int, float]:
    """Each version that is still there, and when it was written, by the store's clock. One
    listing."""
    _, objects = source.list_folder(paths.VERSIONS)
    return {
        int(version): meta.last_modified
        for meta in objects
        if (version := parse_version_name(meta.path.rpartition("/")[2])) is not None
    }


def _replaced(source: Store, seconds: float) -> list[int]:
    """The versions whose next one was written that long ago, by the store's clock. One listing.

    The age of a version itself says nothing about its readers: a table may rest for days, and they
    begin to lag only when a newer version comes.
    """
    written = written_at(source)
    limit = source.now() - seconds
    ascending = sorted(written)
    return [v for v, after in itertools.pairwise(ascending) if written[after] <= limit]


def compact_files(
    datasets: Datasets,
    *,
    target_rows_per_fragment: int | None = None,
    max_bytes_per_file: int | None = None,
    materialize_deletions_threshold: float | None = None,
    max_source_bytes: int | None = None,
    threads: int | None = None,
) -> int:
    """Rewrite fragments that are small or have many deletes; return the new version.

    Changes no row. `CommitConflict` when a fold changed one of the fragments since: try again.
    """
    # A separate handle: compaction moves the handle it is called on.
    dataset = datasets.own()
    with lance_errors(f"compacting the files of {datasets.uri}"):
        dataset.optimize.compact_files(
            target_rows_per_fragment=target_rows_per_fragment,
            max_bytes_per_file=max_bytes_per_file,
            materialize_deletions_threshold=materialize_deletions_threshold,
            max_source_bytes=max_source_bytes,
            num_threads=threads,
        )
    return int(datasets.latest().version)


@dataclass(frozen=True)
class FilePlan:
    """Tasks that rewrite files, and the handle on which their results are committed."""

    dataset: lance.LanceDataset
    tasks: tuple[str, ...]


def _text(part: Any) -> str:
    """As JSON; Lance's stubs do not declare this method of tasks and results."""
    return str(part.json())


def plan_files(datasets: Datasets, *, target_rows_per_fragment: int) -> FilePlan:
    """What `compact_files` would do, as tasks for `rewrite_files`."""
    dataset = datasets.own()
    with lance_errors(f"planning to compact the files of {datasets.uri}"):
        plan = Compaction.plan(dataset, {"target_rows_per_fragment": target_rows_per_fragment})
        return FilePlan(dataset, tuple(_text(task) for task in plan.tasks))


def rewrite_files(datasets: Datasets, task: str) -> str:
    """Run one task: write new files, which nothing names yet; return what to commit."""
    found = CompactionTask.from_json(task)  # type: ignore[attr-defined]
    dataset = datasets.own(found.read_version)
    with lance_errors(f"rewriting files of {datasets.uri}"):
        return _text(found.execute(dataset))


def commit_files(datasets: Datasets, plan: FilePlan, results: Sequence[str]) -> int:
    """Replace the old files with the new ones; `CommitConflict` as in `compact_files`.

    Commits on the handle of the plan: on a newer one, rows deleted since could come back.
    """
    with lance_errors(f"compacting the files of {datasets.uri}"):
        made = [RewriteResult.from_json(text) for text in results]  # type: ignore[attr-defined]
        Compaction.commit(plan.dataset, made)
    return int(datasets.latest().version)


def optimize_indices(datasets: Datasets, names: Sequence[str] | None = None) -> int:
    """Extend the base's indexes to the rows added since; return the new version."""
    dataset = datasets.own()
    options: dict[str, Any] = {} if names is None else {"index_names": list(names)}
    with lance_errors(f"updating the indexes of {datasets.uri}"):
        dataset.optimize.optimize_indices(**options)
    return int(datasets.latest().version)


def index_names(datasets: Datasets) -> list[str]:
    """Names of the base's own indexes, without the MemWAL entry."""
    with lance_errors(f"listing the indexes of {datasets.uri}"):
        described = datasets.latest().describe_indices()
    return [index.name for index in described if not index.name.startswith("__")]


def borrowed_indexes(datasets: Datasets) -> list[str]:
    """Names of the base's indexes with files in another table's place."""
    with lance_errors(f"listing the indexes of {datasets.uri}"):
        described = datasets.latest().describe_indices()
    return sorted(
        index.name
        for index in described
        if not index.name.startswith("__")
        and any(segment.base_id is not None for segment in index.segments)
    )


def check_version(datasets: Datasets, version: int) -> None:
    """Raise `MissingEntry` when `version` can no longer be read."""
    try:
        datasets.own(version)
    except SnapshotExpired as error:
        raise MissingEntry(
            f"{datasets.uri}: version {version} is gone; it was cleaned up"
        ) from error
