"""Predicates over (next, current) manifests, run on every write; no call site can skip them.

Keeps
  F-3  versions rise by one; R and L never fall; R stays at or below L
  W-1  R moves only as far as the writer can prove covered
  W-2  and then exactly that far
  W-5  generations are published in order, none twice
  F-14 the current generation rises with what is published, or by proof that nothing live is below
  M-4  an SSTable and the R that rests on it come in one version
A broken predicate is a bug in weir or a damaged store: it raises before anything is written.
"""

from __future__ import annotations

from dataclasses import dataclass

from weir.errors import WeirError
from weir.format.manifest import ShardManifest, Status
from weir.types import Position


class RuleBroken(WeirError):
    """A manifest that must never be written was refused: a bug in weir, please report it."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the author of a manifest knows beyond the manifest itself."""

    covered: Position | None = None
    """Every entry up to here is a fence or has all its rows in published generations or the base
    (W-1). None: the author makes no claim, so R must stay."""
    renumbers: bool = False
    """No entry above the new R is tagged below the new current generation (F-14)."""
    restoring: bool = False
    """A rollback to a checkpoint: names older generations again, and covers the log it discards."""


NO_EVIDENCE = Evidence()


def check(
    following: ShardManifest, current: ShardManifest | None, evidence: Evidence = NO_EVIDENCE
) -> None:
    """Raise `RuleBroken` naming the rule unless `following` may be written after `current`."""
    _check_alone(following)
    if current is None:
        _require(following.version == 1, "F-3", "the first version must be 1", following)
        return
    _require(
        following.version == current.version + 1, "F-3", "versions must rise by one", following
    )
    _require(following.shard_id == current.shard_id, "F-3", "the shard id must stay", following)
    # guard: F-3
    _require(following.replay_after >= current.replay_after, "F-3", "R must not fall", following)
    # guard: F-3
    _require(following.last_seen >= current.last_seen, "F-3", "L must not fall", following)
    if current.dropped:
        # C-16: the first version of the next table's shard. Epochs and positions are never used
        # again; a clone that copied a log keeps the generations of its entries.
        _require(
            following.writer_epoch >= current.writer_epoch, "F-1", "epochs must not fall", following
        )
        return
    step = following.writer_epoch - current.writer_epoch
    _require(step in (0, 1), "F-1", "the epoch must stay or rise by one", following)
    _require(
        following.current_generation >= current.current_generation,
        "W-5",
        "generations must not fall",
        following,
    )
    if current.status is Status.SEALED:
        _require(
            following.status is Status.SEALED, "C-11", "a sealed shard must stay sealed", following
        )
    _check_replay_point(following, current, evidence)
    if not evidence.restoring:
        _check_new_generations(following, current, evidence)


def _check_alone(manifest: ShardManifest) -> None:
    _require(manifest.replay_after <= manifest.last_seen, "F-3", "R must be at most L", manifest)
    numbers = [table.generation for table in manifest.sstables]
    _require(numbers == sorted(set(numbers)), "W-5", "generations must ascend", manifest)
    _require(
        all(n < manifest.current_generation for n in numbers),
        "W-5",
        "published generations must be below the next one",
        manifest,
    )


def _check_replay_point(
    following: ShardManifest, current: ShardManifest, evidence: Evidence
) -> None:
    covered = evidence.covered
    if covered is None:
        _require(
            following.replay_after == current.replay_after,
            "W-1",
            "R must not move without proof of what is covered",
            following,
        )
    else:
        expected = max(covered, current.replay_after)
        _require(
            following.replay_after == expected,
            "W-2",
            f"R must be the last covered position, {expected}",
            following,
        )


def _check_new_generations(
    following: ShardManifest, current: ShardManifest, evidence: Evidence
) -> None:
    known = {table.generation for table in current.sstables}
    fresh = [t.generation for t in following.sstables if t.generation not in known]
    expected = list(range(current.current_generation, current.current_generation + len(fresh)))
    _require(fresh == expected, "W-5", f"new generations must be {expected}", following)
    _require(
        evidence.renumbers
        or following.current_generation == current.current_generation + len(fresh),
        "F-14",
        "the current generation must rise by the number of new SSTables",
        following,
    )


def _require(
    holds: bool,  # noqa: FBT001
    rule: str,
    text: str,
    manifest: ShardManifest,
) -> None:
    if not holds:
        raise RuleBroken(
            f"rule {rule} violated: {text}. Refused to write manifest {manifest.version} of shard"
            f" {manifest.shard_id} (epoch {manifest.writer_epoch}, R {manifest.replay_after}, L"
            f" {manifest.last_seen}, next generation {manifest.current_generation}). Nothing was"
            " written. This is a bug in weir; please report it."
        )
