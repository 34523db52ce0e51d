"""Collects under `_weir/`: expired checkpoints and consumers, old records, leftovers.

Keeps
  G-2  an expired checkpoint is ended by an appended record before anything it held is considered
  G-9  the latest record of a chain stays, and the first of a living checkpoint, which says what it
       holds
  G-10 each chain is a task of its own
A dead chain is deleted in two steps, its deletion record last, so it stays dead in between.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from weir.errors import WeirError
from weir.format import paths
from weir.records import codec
from weir.records.chain import Listed, list_chain
from weir.records.checkpoints import checkpoint_of_tag
from weir.records.holds import HoldKind
from weir.records.lineage import restoring
from weir.store.api import Meta
from weir.upkeep.gc.run import GcRun, Item

logger = logging.getLogger("weir.gc")

LEFTOVERS: Final = {
    paths.CLOCK: 300.0,
    paths.PROBE: 300.0,
    paths.STAGING: 86_400.0,
    paths.JOB_TOKENS: 7 * 86_400.0,
}
"""Folders of short-lived objects, and their minimum lifetime in seconds. A reader of the store's
clock needs its object for a moment, a Spark job its staged rows until it commits, and its tokens
(P-2) while one of its tasks can still wake up. An older object was left by a process that died, or
is no longer of use."""
SHARED_CHAINS: Final = (
    paths.table_chain(),
    paths.compaction_chain(),
    paths.reshard_chain(),
    paths.clone_chain(),
    paths.keep_chain(),
    paths.statement_chain(),
)
RECORDS_KEPT: Final = 16
"""Newest records of a chain that stay: a stalled appender must collide with the one it missed."""


def end_expired(job: GcRun, kind: HoldKind) -> None:
    """End everything of that kind whose lifetime is over."""
    report, uri = job.report, job.core.uri
    needed: set[str] | None = None
    for hold in job.holds.all(kind):
        try:
            if hold.is_ended or not hold.is_expired(job.now):
                continue
            if needed is None:  # after the records were read: see `require_unneeded`
                begun = restoring(job.core.store)
                needed = set() if begun is None else {str(begun.checkpoint), str(begun.undo)}
            if hold.name in needed:  # guard: K-11
                report.kind(kind).kept["unfinished restore"] += 1
                continue
            if job.dry_run or job.holds.end(hold, "expired"):
                report.ended += 1
                logger.info("gc.expired table=%s kind=%s chain=%s", uri, kind, hold.folder)
            else:
                report.kind(kind).kept["refreshed meanwhile"] += 1
        except WeirError as error:
            report.errors.append(f"{kind} {hold.folder}: {error}")


def release_tags(job: GcRun) -> list[str]:
    """Untag base versions whose checkpoint is gone; returns those tags.

    Tags are listed before the records: a checkpointer writes its record first, so a tag without a
    living record belongs to no checkpoint.
    """
    lake = job.core.lake
    tags = {tag: checkpoint_of_tag(tag) for tag in lake.protected_versions()}
    if not any(tags.values()):
        return []
    alive = {hold.name for hold in job.holds.living("checkpoints", job.expired)}
    released = [tag for tag, id_ in tags.items() if id_ is not None and str(id_) not in alive]
    for tag in released:
        if not job.dry_run:
            lake.release_version(tag)
        job.report.kind("base").kept["tag released"] += 1
    return released


def collect_chains(job: GcRun, kind: HoldKind) -> None:
    """Delete dead chains and superseded records of one kind."""
    for hold in job.holds.all(kind):
        job.count(kind, len(hold.listed), _size(hold.listed), {})
        # An appender to a checkpoint's chain checks for record 1 afterwards; others do not.
        wait = job.ages.min_age if kind == "checkpoints" else job.ages.fence_retention
        *rest, last = hold.listed.values()
        if hold.is_ended and job.now - last.last_modified >= wait:
            if not rest or _delete(job, kind, rest):  # the deletion record goes last
                _delete(job, kind, [last])
            continue
        _supersede(job, kind, hold.listed)


def _size(listed: Listed) -> int:
    return sum(meta.size for meta in listed.values())


def _supersede(job: GcRun, kind: str, listed: Listed) -> None:
    newest = max(listed)
    old = [
        meta
        for (number, meta), following in zip(
            listed.items(), list(listed.values())[1:], strict=False
        )
        if job.now - following.last_modified >= job.ages.fence_retention
        and number <= newest - RECORDS_KEPT
        and not (kind == "checkpoints" and number == 1)
    ]
    job.report.kind(kind).kept["record"] += len(listed) - len(old)
    _delete(job, kind, old)


def _delete(job: GcRun, kind: str, metas: Sequence[Meta]) -> bool:
    return job.delete(kind, ((m.path, m.size) for m in metas), total=len(metas))


def _held_files(job: GcRun) -> set[str]:
    """The staged files of open statements."""
    shares = [share for one in job.statements for share in one.shares]
    return {path for share in shares for piece in share.pieces for path in piece}


def collect_leftovers(job: GcRun) -> None:
    """Delete what dead processes left, and superseded records of the table's own chains."""
    part, store = job.report.kind("leftovers"), job.core.store

    def old(folder: str, least: float) -> Iterator[Meta]:
        for meta in store.list(folder):
            part.seen += 1
            part.seen_bytes += meta.size
            if job.now - meta.last_modified >= max(job.ages.min_age, least):
                yield meta
            else:
                part.kept["min_age"] += 1

    def items() -> Iterator[Item]:
        for folder, least in LEFTOVERS.items():
            found: Iterable[Meta] = old(folder, least)
            if folder == paths.STAGING:
                found = list(found)
                job.look_for_statements()  # after the listing: see `StatementRecords.decide`
            held = _held_files(job)
            for meta in found:
                if meta.path in held:  # guard: P-8 test_statements_over_shards
                    part.kept["statement"] += 1
                else:
                    yield meta.path, meta.size

    job.delete("leftovers", items(), total=0)
    for folder in SHARED_CHAINS:
        listed = list_chain(store, folder)
        if not listed:
            continue
        newest = listed[max(listed)]
        (data,) = store.get_many([newest.path])
        if data is None:
            continue  # another collector prunes it
        # Beside a damaged record older ones stay.
        codec.loads(data, dict, f"{store.uri}/{newest.path}")  # guard: G-11 test_gc_chains
        job.count("leftovers", len(listed), _size(listed), {})
        _supersede(job, "leftovers", listed)
