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
from collections.abc import Iterator
from typing import Final

from weir.errors import WeirError
from weir.format import paths
from weir.records.checkpoints import checkpoint_of_tag
from weir.upkeep.gc.pins import ChainState, end_chain, load_chains
from weir.upkeep.gc.run import GcRun
from weir.upkeep.gc.tasks import Item
from weir.upkeep.pinning import versioned_lake

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
)
RECORDS_KEPT: Final = 16
"""Newest records of a chain that stay: a stalled appender must collide with the one it missed."""

_ROOTS: Final = {"checkpoints": paths.CHECKPOINTS, "consumers": paths.CONSUMERS}


def end_expired(job: GcRun, kind: str) -> None:
    """End every chain of that kind whose lifetime is over."""
    report, uri = job.report, job.core.uri
    for chain in job.chains.load(_ROOTS[kind]):
        try:
            if chain.ended or not chain.expired(job.now):
                continue
            if job.dry_run or end_chain(job.core.store, chain):
                report.ended += 1
                logger.info("gc.expired table=%s kind=%s chain=%s", uri, kind, chain.folder)
            else:
                report.kind(kind).kept["refreshed meanwhile"] += 1
        except WeirError as error:
            report.errors.append(f"{kind} {chain.folder}: {error}")


def release_tags(job: GcRun) -> None:
    """Untag base versions whose checkpoint is gone.

    Tags are listed before the records: a checkpointer writes its record first, so a tag without a
    living record belongs to no checkpoint.
    """
    lake = versioned_lake(job.core)
    tags = {tag: checkpoint_of_tag(tag) for tag in lake.protected_versions()}
    if not any(tags.values()):
        return
    chains = job.chains.load(paths.CHECKPOINTS)
    alive = {chain.folder.rpartition("/")[2] for chain in chains if chain.alive}
    for tag, checkpoint in tags.items():
        if checkpoint is not None and str(checkpoint) not in alive:
            if not job.dry_run:
                lake.release_version(tag)
            job.report.kind("base").kept["tag released"] += 1


def collect_chains(job: GcRun, kind: str) -> None:
    """Delete dead chains and superseded records of one kind."""
    for chain in job.chains.load(_ROOTS[kind]):
        _count(job, kind, chain)
        dead = chain.ended or (kind == "checkpoints" and chain.first is None)
        # An appender to a checkpoint's chain checks for record 1 afterwards; others do not.
        wait = job.ages.min_age if kind == "checkpoints" else job.ages.fence_retention
        if dead and job.now - chain.times[chain.seqs[-1]] >= wait:
            # The deletion record goes last. Planned tasks may run in any order, so they leave it to
            # the next collection.
            rest, last = chain.seqs[:-1], chain.seqs[-1:]
            if not rest or (_delete(job, kind, chain, rest) and job.deleter.immediate):
                _delete(job, kind, chain, last)
            continue
        _supersede(job, kind, chain)


def _count(job: GcRun, kind: str, chain: ChainState) -> None:
    part = job.report.kind(kind)
    part.seen += len(chain.seqs)
    part.seen_bytes += sum(chain.sizes.values())


def _supersede(job: GcRun, kind: str, chain: ChainState) -> None:
    keep_first = kind == "checkpoints"
    old = [
        seq
        for seq, following in zip(chain.seqs, chain.seqs[1:], strict=False)
        if job.now - chain.times[following] >= job.ages.fence_retention
        and not (keep_first and seq == 1)
    ]
    old = [seq for seq in old if seq <= chain.seqs[-1] - RECORDS_KEPT]
    job.report.kind(kind).kept["record"] += len(chain.seqs) - len(old)
    _delete(job, kind, chain, old)


def _delete(job: GcRun, kind: str, chain: ChainState, seqs: list[int]) -> bool:
    items = [(paths.chain_path(chain.folder, seq), chain.sizes[seq]) for seq in seqs]
    return job.deleter.run(kind, items, total=len(items))


def collect_leftovers(job: GcRun) -> None:
    """Delete what dead processes left, and superseded records of the table's own chains."""
    part, store = job.report.kind("leftovers"), job.core.store

    def items() -> Iterator[Item]:
        for folder, least in LEFTOVERS.items():
            for meta in store.list(folder):
                part.seen += 1
                part.seen_bytes += meta.size
                if job.now - meta.last_modified >= max(job.ages.min_age, least):
                    yield meta.path, meta.size
                else:
                    part.kept["min_age"] += 1

    job.deleter.run("leftovers", items(), total=0)
    for root in SHARED_CHAINS:
        for chain in load_chains(store, root):
            _count(job, "leftovers", chain)
            _supersede(job, "leftovers", chain)
