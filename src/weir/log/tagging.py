"""The tags of one owner's entries, as they are appended: the one place that checks them (F-14).

See `weir.log.tags` for the rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from weir.errors import CommitConflict, InvalidInput, StoreError, UnknownOutcome
from weir.format.wal_entry import Fill
from weir.log.fence import Claim
from weir.log.intake import fill_of
from weir.log.manifests import Manifests
from weir.log.tags import Bounds, GenerationTags, LogEnds, beginning_at, look_at_ends, rising_to
from weir.types import Generation, Position


class Tagging:
    """What the log's last entry was tagged with, and what may follow it. Used under a lock."""

    def __init__(self, manifests: Manifests, claim: Claim, bounds: Bounds) -> None:
        self.claim = claim
        self.bounds = bounds
        self._manifests = manifests
        self._tag = Generation(claim.manifest.current_generation)
        self._filled = Fill()
        self._last = claim.manifest.replay_after

    def follow_log(self, *, keyed: bool) -> bool:
        """Look at the tags in the log, to go on where they end; False: it must be flushed first."""
        ends = look_at_ends(self._manifests.site, self._manifests, self.claim, keyed=keyed)
        if ends is None:
            return False
        self.begin_at(ends.begins)
        self.go_on(ends)
        return True

    def begin_at(self, first: Generation | None) -> None:
        """The live log begins with that tag, above the current generation, if any is given: commit
        it as the current one, or a native writer would tag below it."""
        if first is None:
            return
        manifest = self._manifests.update(beginning_at(first), epoch=self.claim.epoch)
        self.claim = replace(self.claim, manifest=manifest)
        self._tag = Generation(manifest.current_generation)

    def go_on(self, ends: LogEnds) -> None:
        """The next entry follows a log that ends so."""
        self._tag, self._filled, self._last = ends.generation, ends.filled, ends.last

    def without_memtable(self) -> GenerationTags:
        """Tags that go on where the log ends and rise where a MemTable would be full."""
        return GenerationTags(self._tag, self._filled, self.bounds)

    def choose(self, batches: Sequence[pa.RecordBatch]) -> Generation:
        """The tag of those rows as the next entry."""
        return self.without_memtable().tag(fill_of(batches))

    def filled(
        self, generation: Generation, more: Fill, after: tuple[Generation, Fill] | None = None
    ) -> Fill:
        """What the generation holds with `more`; `after`: an entry that comes before."""
        tag, filled = after or (self._tag, self._filled)
        return filled + more if generation == tag else more

    def require(self, tag: Generation, position: Position) -> None:
        """Return if the entry at `position` may be tagged so, announced if need be.

        Never below the log's highest tag, never more than one above. A rise of an owner without a
        MemTable is told to folds first, by one commit. `InvalidInput`, `FencedError`, or
        `StoreError` with nothing changed.
        """
        if tag == self._tag:
            return
        if tag != self._tag + 1:
            raise InvalidInput(
                f"{self._manifests.site}: an entry of generation {tag} cannot follow one of"
                f" {self._tag} at position {position}; generations neither fall nor jump (F-14)."
                " Nothing was written"
            )
        if self.claim.manifest.announced is None:
            return
        try:
            self._manifests.update(rising_to(tag, self._last), epoch=self.claim.epoch)
        except (UnknownOutcome, CommitConflict) as failed:
            # Of the manifest: the rows were not sent, and announcing again is harmless.
            raise StoreError(str(failed)) from failed

    def landed(self, tag: Generation, filled: Fill, position: Position) -> None:
        """An entry with that tag is durable."""
        self._tag, self._filled, self._last = tag, filled, position
