"""Generation tags: which entries share a MemTable when a log is replayed, and which still count.

Keeps
  F-14 tags never fall from position to position: a writer tags at or above the highest tag in the
       log and the manifest's current generation
  F-14 no entry above R is left out because of its tag alone
  F-15 no generation holds more than the table's defaults let any writer replay

The tag rule, for every writer, weir or native: the first live entry (above R, with rows) is
tagged with the manifest's current generation g, and tags rise one by one from there. pylance starts
its MemTable at g whatever the first tag is, and tags its own rows with the MemTable's number: on
a log that begins above g it would tag below existing entries. Three operations may move R or g:

  a flush       publishes generation g and covers its entries: the next begins with g + 1
  a fold        covers entries by rows in the base (L-6) and sets g to the tag of the next entry; so
                the last entry of an owner that has not left, whose tag is known, stays above R
  a claim       finds a log that breaks the rule (another program's, an older release's) and sets g
                to the first tag, or flushes everything before its first put
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from weir.config import WriterConfig
from weir.errors import FencedError, MissingEntry
from weir.format import paths
from weir.format.manifest import ShardManifest
from weir.format.wal_entry import Fill, WalEntry, decode_entry
from weir.log.fence import Claim
from weir.log.manifests import Manifests
from weir.log.rules import Evidence
from weir.log.site import ShardSite
from weir.store.api import ObjectMissing
from weir.types import Generation, Position

Change = Callable[[ShardManifest], tuple[ShardManifest, Evidence] | None]


def is_live(entry: WalEntry, current_generation: int, *, keyed: bool) -> bool:
    """True when the rows of an entry above R count, since they may be in no SSTable.

    pylance lets R lag behind what it flushed by an entry or two. With a primary key that is
    harmless: entries applied again in order give the same rows. Without one, rows would appear
    twice; but there the current generation rises only with SSTables, each of which holds every
    entry with its number, so a lower tag means that the entry was flushed (F-14).
    """
    if entry.is_fence or not entry.batches or entry.is_staged:
        return False
    # guard: F-14 first test_tags
    return keyed or entry.generation is None or entry.generation >= current_generation


def require_own(site: ShardSite, entry: WalEntry, claim: Claim) -> None:
    """F-7: an entry of a newer epoch below our fence means that a newer writer owns the shard."""
    if entry.epoch > claim.epoch:
        raise FencedError(
            f"{site}: found an entry of epoch {entry.epoch} at position {entry.position} while"
            f" opening as epoch {claim.epoch}; a newer writer owns the shard. Open the shard again"
            " to take it back",
            epoch=claim.epoch,
            fenced_by=entry.epoch,
            position=entry.position,
        )


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one generation may hold (F-15); a single larger put gets its own generation."""

    rows: int
    batches: int
    nbytes: int

    @staticmethod
    def of(config: WriterConfig) -> Bounds:
        """The bounds in a writer's settings."""
        return Bounds(
            config.max_memtable_rows, config.max_memtable_batches, config.max_memtable_size
        )

    def has_room(self, filled: Fill, more: Fill) -> bool:
        """True when a generation that holds `filled` may take `more`."""
        # Does not build the sum as a `Fill`: called twice for each put.
        return not filled.rows or (
            filled.rows + more.rows <= self.rows
            and filled.batches + more.batches <= self.batches
            and filled.nbytes + more.nbytes <= self.nbytes
        )

    def holds(self, fill: Fill) -> bool:
        """True when a generation of several puts may hold `fill`."""
        return (
            fill.rows <= self.rows and fill.batches <= self.batches and fill.nbytes <= self.nbytes
        )


class GenerationTags:
    """Tags of a writer without a MemTable: they rise where a MemTable would be full.

    So a later replay of the log, by weir or a native writer, takes bounded memory (F-8).
    Not locked: its owner calls it under a lock.
    """

    def __init__(self, generation: Generation, filled: Fill, bounds: Bounds) -> None:
        """`filled` is what the generation already holds."""
        self.generation = generation
        self.filled = filled
        self._bounds = bounds

    def following(self, more: Fill) -> tuple[Generation, Fill]:
        """The generation of the next rows, and what it holds with them; changes nothing."""
        if self._bounds.has_room(self.filled, more):
            return self.generation, self.filled + more
        return Generation(self.generation + 1), more


@dataclass(frozen=True, slots=True)
class LogEnds:
    """The live entries of a log as seen from its two ends."""

    generation: Generation
    """The highest tag in use: the next entry carries it or the one after."""
    filled: Fill
    """What that generation holds."""
    last: Position
    """Where the last live entry is; R when there is none."""
    begins: Generation | None = None
    """The tag of the first live entry, when that is above the current generation."""


def read_log_ends(
    site: ShardSite, manifests: Manifests, claim: Claim, *, keyed: bool
) -> LogEnds | None:
    """What an owner that does not replay must know of the log; None: it must be flushed first.

    Only a writer that followed the whole log notes in an entry how full its generation is: if the
    last entry has that note, the whole log keeps the rule. Two gets, and one for each fence
    on the way.
    """
    current = Generation(claim.manifest.current_generation)
    after = int(claim.manifest.replay_after)

    def find(positions: range) -> WalEntry | None:
        for position in map(Position, positions):
            path = paths.wal_path(site.shard, position)
            uri = f"{site.wal.uri}/{path}"
            entry = decode_entry(site.wal.get(path).data, position=position, path=uri)
            require_own(site, entry, claim)
            if is_live(entry, current, keyed=keyed):
                return entry
        return None

    try:
        last = find(range(claim.fence - 1, after, -1))
        if last is None:
            return LogEnds(current, Fill(), Position(after))
        first = find(range(after + 1, int(last.position))) or last
    except ObjectMissing as missing:
        latest = manifests.require()
        manifests.require_owner(latest, claim.epoch)
        if latest.replay_after == after:
            raise MissingEntry(
                f"{site}: the log has a hole between position {after} and our fence at"
                f" {claim.fence}: {missing}; restore that object or clone from a checkpoint"
            ) from missing
        # Folded and collected while we read (L-6).
        return read_log_ends(site, manifests, replace(claim, manifest=latest), keyed=keyed)
    begins, filled = first.generation, last.filled
    if begins is None or last.generation is None or filled is None or begins < current:
        return None
    raised = begins if begins > current else None
    return LogEnds(last.generation, filled, last.position, begins=raised)


def beginning_at(first: Generation) -> Change:
    """Set the current generation to the first tag of the live log; no live tag is lower."""

    def change(current: ShardManifest) -> tuple[ShardManifest, Evidence] | None:
        if current.current_generation >= first:
            return None
        return replace(current, current_generation=first), Evidence(renumbers=True)

    return change
