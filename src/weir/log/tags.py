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
  a claim       finds a log that breaks the rule (another program's) and sets g
                to the first tag, or flushes everything before its first put
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from weir.config import WriterConfig
from weir.errors import FencedError, InvalidInput, MissingEntry
from weir.format import paths
from weir.format.manifest import ShardManifest
from weir.format.wal_entry import Fill, WalEntry, decode_entry
from weir.log.manifests import ON_PURPOSE, Manifests
from weir.log.ownership import Claim
from weir.log.rules import Evidence
from weir.log.site import ShardSite
from weir.store.api import ObjectMissing
from weir.types import Generation, Position


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
            f" opening as epoch {claim.epoch}; a newer writer owns the shard. {ON_PURPOSE}",
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


class GenerationTags:
    """The tag of the last rows, and the one of the next: it rises where a MemTable would be full.

    So a later replay of the log, by weir or a native writer, takes bounded memory (F-8).
    Not locked: its owner calls it under a lock.
    """

    def __init__(self, ends: LogEnds, bounds: Bounds) -> None:
        self.bounds = bounds
        self.landed(ends.generation, ends.filled, ends.last)

    def landed(self, tag: Generation, filled: Fill, last: Position) -> None:
        """The last entry with rows has that tag, and is there."""
        self.generation, self.filled, self.last = tag, filled, last

    def ahead(self) -> GenerationTags:
        """A cursor that goes on from here, for rows that get their tag before they are written."""
        return GenerationTags(LogEnds(self.generation, self.filled, self.last), self.bounds)

    def following(self, more: Fill) -> tuple[Generation, Fill]:
        """The generation of the next rows, and what it holds with them; changes nothing."""
        if self.bounds.has_room(self.filled, more):
            return self.generation, self.filled + more
        return Generation(self.generation + 1), more

    def filled_with(self, tag: Generation, more: Fill) -> Fill:
        """What the generation `tag`, this one or the next, holds with `more`."""
        return self.filled + more if tag == self.generation else more

    def require(self, tag: Generation, site: ShardSite, position: Position) -> None:
        """Return if the entry at `position` may have that tag; `InvalidInput` otherwise.

        Never below the log's highest tag, never more than one above.
        """
        if tag not in (self.generation, self.generation + 1):
            raise InvalidInput(
                f"{site}: cannot write an entry of generation {tag} at position {position}, after"
                f" one of generation {self.generation}; the generation must stay or rise by one."
                " Nothing was written"
            )


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


def begin_at(manifests: Manifests, claim: Claim, first: Generation | None) -> Claim:
    """The claim, with `first` committed as the current generation, unless it is None: the first tag
    of the live log, which is above. No live tag is lower, and a native writer would tag below it.
    """

    def change(current: ShardManifest) -> tuple[ShardManifest, Evidence] | None:
        if first is None or current.current_generation >= first:
            return None
        return replace(current, current_generation=first), Evidence(renumbers=True)

    if first is None:
        return claim
    return replace(claim, manifest=manifests.update(change, epoch=claim.epoch))


def follow_log(manifests: Manifests, claim: Claim, *, keyed: bool) -> tuple[Claim, LogEnds] | None:
    """What an owner that does not replay begins with, its current generation set (F-14); None: the
    log must be flushed first."""
    ends = read_log_ends(manifests.site, manifests, claim, keyed=keyed)
    return None if ends is None else (begin_at(manifests, claim, ends.begins), ends)
