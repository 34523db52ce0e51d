"""The tags of one owner's entries as they are appended: the only place that checks them (F-14).

See `weir.log.tags` for the rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from weir.errors import InvalidInput
from weir.format.wal_entry import Fill
from weir.log.fence import Claim
from weir.log.intake import fill_of
from weir.log.manifests import Manifests
from weir.log.tags import Bounds, GenerationTags, LogEnds, beginning_at, read_log_ends
from weir.types import Generation, Position


class Tagging:
    """The tag of the log's last entry, and which tags may follow it. Used under a lock."""

    def __init__(self, manifests: Manifests, claim: Claim, bounds: Bounds) -> None:
        self.claim = claim
        self.bounds = bounds
        self._manifests = manifests
        self._tag = Generation(claim.manifest.current_generation)
        self._filled = Fill()
        self.last = claim.manifest.replay_after
        """Where the last entry with rows is; R when there is none."""

    def follow_log(self, *, keyed: bool) -> bool:
        """Read the tags in the log and continue after them; False: it must be flushed first."""
        ends = read_log_ends(self._manifests.site, self._manifests, self.claim, keyed=keyed)
        if ends is None:
            return False
        self.begin_at(ends.begins)
        self.go_on(ends)
        return True

    def begin_at(self, first: Generation | None) -> None:
        """Commit `first`, the first tag of the live log, as the current generation, unless None.

        It is above the current one, and a native writer would tag below it."""
        if first is None:
            return
        manifest = self._manifests.update(beginning_at(first), epoch=self.claim.epoch)
        self.claim = replace(self.claim, manifest=manifest)
        self._tag = Generation(manifest.current_generation)

    def go_on(self, ends: LogEnds) -> None:
        """Let the next entry follow a log with these ends."""
        self._tag, self._filled, self.last = ends.generation, ends.filled, ends.last

    def without_memtable(self) -> GenerationTags:
        """Tags that continue where the log ends and rise where a MemTable would be full."""
        return GenerationTags(self._tag, self._filled, self.bounds)

    def choose(self, batches: Sequence[pa.RecordBatch]) -> Generation:
        """The tag of the next entry if it holds these rows."""
        return self.without_memtable().following(fill_of(batches))[0]

    def filled(self, generation: Generation, more: Fill) -> Fill:
        """What the generation holds with `more`."""
        return self._filled + more if generation == self._tag else more

    def require(self, tag: Generation, position: Position) -> None:
        """Return if the entry at `position` may have that tag; `InvalidInput` otherwise.

        Never below the log's highest tag, never more than one above.
        """
        if tag not in (self._tag, self._tag + 1):
            raise InvalidInput(
                f"{self._manifests.site}: cannot write an entry of generation {tag} at position"
                f" {position}, after one of generation {self._tag}; the generation must stay or"
                " rise by one. Nothing was written"
            )

    def landed(self, tag: Generation, filled: Fill, position: Position) -> None:
        """Record that an entry with that tag is durable."""
        self._tag, self._filled, self.last = tag, filled, position
