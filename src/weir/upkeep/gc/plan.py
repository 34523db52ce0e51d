"""Decides what of one shard may go: pure functions over values. What is not proven dead stays.

Keeps
  G-1  the roots are the latest manifest, those superseded less than `min_age` ago, and every pin
  G-3  `min_age` only adds roots; the functions are safe without it
  G-4  an orphaned SSTable is known by its number, never by its age
  G-7a the first entry of an epoch stays for `fence_retention`; so do all entries written around the
       claim of an epoch that left no entry (a native claimant without a fence may still write
       there)
  G-9  the entry at R and the latest manifest stay
Ages are differences between two readings of one clock: that of the store which holds the object.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from weir.format.manifest import ShardManifest
from weir.records.cut import ShardCut

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class WalListing:
    """The log as listed, ascending by position. In columns, since it may be millions of entries."""

    positions: Ints
    sizes: Ints
    times: npt.NDArray[np.float64]
    now: float | None = None
    """Clock that stamped `times`, read before the listing; None: the table's own store (G-3)."""

    def __len__(self) -> int:
        return len(self.positions)


@dataclass(frozen=True, slots=True)
class Run:
    """Adjacent entries of the listing with one epoch: indexes `[first, last]`. None: unknown."""

    first: int
    last: int
    epoch: int | None


@dataclass(frozen=True, slots=True)
class Stored:
    """A manifest version or an SSTable's folder, as listed."""

    size: int
    time: float
    """Of the newest object in it."""
    objects: int = 1


@dataclass(frozen=True, slots=True)
class Ages:
    """How old objects must be before they may go, in seconds."""

    min_age: float
    fence_retention: float
    keep_first_entries: bool = True
    """False only in tests that show why it is needed (G-7)."""


@dataclass(frozen=True)
class ShardState:
    """All that is known about one shard, in the order it was read (G-4, G-5, K-1b)."""

    now: float
    wal: WalListing
    versions: Mapping[int, Stored]
    folders: Mapping[str, tuple[int, Stored]]
    """Name to generation and size; only names an SSTable can have."""
    latest: ShardManifest
    retained: Sequence[ShardManifest]
    """The latest and every readable version above the floor."""
    floor: int
    """See `floor_of`."""
    pins: Sequence[ShardCut] = ()
    unread_from: int | None = None
    """The lowest position a consumer of the change feed has not passed; None without consumers."""
    runs: Sequence[Run] = ()
    native: bool = False
    """A writer that knows no floors wrote here: old versions stay for `fence_retention`."""

    @property
    def wal_ages(self) -> npt.NDArray[np.float64]:
        """How old each entry is by the clock of the store that holds it (F-18)."""
        now = self.now if self.wal.now is None else self.wal.now  # guard: G-3 always
        return now - self.wal.times


def floor_of(versions: Mapping[int, Stored], latest: int, now: float, min_age: float) -> int:
    """Versions at or below it may go, if nothing pins them: superseded at least `min_age` ago.

    A version is superseded when the next one is written. With `min_age` 0 only the latest lives.
    """
    lowest = latest
    ended = versions[latest].time if latest in versions else now
    for version in sorted((v for v in versions if v < latest), reverse=True):
        if now - ended >= min_age:
            break
        lowest = version
        ended = versions[version].time
    return lowest - 1


def replay_point(retained: Sequence[ShardManifest]) -> int:
    """The lowest R among the living versions; entries below it belong to pins alone."""
    return min(manifest.replay_after for manifest in retained)


def plan_wal(state: ShardState, ages: Ages) -> tuple[npt.NDArray[np.intp], Counter[str]]:
    """Which entries of the listing go, by index, and why the others stay."""
    positions = state.wal.positions
    kept: Counter[str] = Counter()
    doomed = np.ones(len(positions), dtype=np.bool_)

    def keep(mask: Bools, reason: str) -> None:
        count = int(np.count_nonzero(doomed & mask))
        if count:
            kept[reason] += count
            doomed[mask] = False

    keep(positions > state.latest.replay_after, "not yet in an SSTable")
    # G-9: the entry at R itself stays, so that the log is never empty below its tip.
    keep(positions == state.latest.replay_after, "end of the log")  # guard: G-9
    keep(positions >= replay_point(state.retained), "min_age")
    for pin in state.pins:  # guard: G-1
        keep((positions > pin.replay_after) & (positions <= pin.wal_through), "checkpoint")
    if state.unread_from is not None:
        keep(positions >= state.unread_from, "change feed consumer")
    if ages.keep_first_entries:
        young = state.wal_ages < ages.fence_retention
        firsts, crowded, unknown = _tripwires(state.runs, len(positions), state.latest.writer_epoch)
        keep(firsts & young, "first entry of an epoch")
        keep(crowded & young, "before an epoch without entries")
        keep(unknown & young, "epoch not known")
    return np.flatnonzero(doomed), kept


def _tripwires(runs: Sequence[Run], count: int, newest: int) -> tuple[Bools, Bools, Bools]:
    """Entries a stalled writer may aim at: first entries, runs before a silent epoch, unknown ones.

    `newest` is the epoch of the manifest, which was read after the listing: only the manifest
    knows which epochs followed the last listed entry.
    """
    firsts = np.zeros(count, dtype=np.bool_)
    crowded = np.zeros(count, dtype=np.bool_)
    unknown = np.ones(count, dtype=np.bool_)
    for i, run in enumerate(runs):
        if run.epoch is None:
            continue
        here = slice(run.first, run.last + 1)
        unknown[here] = False
        firsts[run.first] = True
        after = runs[i + 1].epoch if i + 1 < len(runs) else newest
        if after is None or after > run.epoch + 1:
            crowded[here] = True
    return firsts, crowded, unknown


def plan_manifests(state: ShardState, ages: Ages) -> tuple[list[int], Counter[str]]:
    """Which versions go, and why the others stay."""
    pinned = {pin.manifest_version for pin in state.pins}
    doomed: list[int] = []
    kept: Counter[str] = Counter()
    for version, stored in sorted(state.versions.items()):
        if version >= state.latest.version:
            kept["latest"] += 1
        elif version > state.floor:
            kept["min_age"] += 1
        elif version in pinned:
            kept["checkpoint"] += 1
        elif state.native and state.now - stored.time < ages.fence_retention:
            kept["native writer"] += 1
        else:
            doomed.append(version)
    return doomed, kept


def plan_sstables(state: ShardState, ages: Ages) -> tuple[list[str], Counter[str]]:
    """Which folders go, and why the objects in others stay."""
    latest = {table.path for table in state.latest.sstables}
    slack = {table.path for manifest in state.retained for table in manifest.sstables}
    pinned = {table.path for pin in state.pins for table in pin.sstables}
    doomed: list[str] = []
    kept: Counter[str] = Counter()
    for name, (generation, stored) in sorted(state.folders.items()):
        if name in latest:
            reason = "in use"
        elif name in pinned:
            reason = "checkpoint"
        elif name in slack:
            reason = "min_age"
        elif generation >= state.latest.current_generation:  # guard: G-4 simulator:collection
            reason = "may still be published"  # G-4
        elif state.now - stored.time < ages.min_age:
            reason = "min_age"
        else:
            doomed.append(name)
            continue
        kept[reason] += stored.objects
    return doomed, kept
