"""Generation tags of a WAL-only writer.

It has no MemTable to freeze, but its entries carry a generation all the same, which rises by one as
the rows since the last rise would have filled a MemTable. So whoever replays the log later, weir or
a native writer, can do it in bounded memory (F-8), and nobody takes an entry for one that was
flushed already.
"""

from __future__ import annotations

from weir.config import WriterConfig
from weir.log.fence import Claim
from weir.log.manifests import Manifests
from weir.log.site import ShardSite
from weir.log.tailer import WalTailer
from weir.shard.replay import require_own
from weir.types import Generation


class GenerationTags:
    """Hands out the tags; called under the writer's lock."""

    def __init__(self, generation: Generation, config: WriterConfig) -> None:
        self.generation = generation
        self._config = config
        self._rows = 0
        self._bytes = 0

    def tag(self, rows: int, nbytes: int) -> Generation:
        """The generation of the next rows."""
        full = self._rows and (
            self._rows + rows > self._config.max_memtable_rows
            or self._bytes + nbytes > self._config.max_memtable_size
        )
        if full:
            self.generation = Generation(self.generation + 1)
            self._rows = self._bytes = 0
        self._rows += rows
        self._bytes += nbytes
        return self.generation


def last_tag(site: ShardSite, manifests: Manifests, claim: Claim) -> Generation:
    """The generation the log ends with: tags must neither fall nor jump (see `replay`).

    Reads back from the fence to the last entry with rows: one get, plus one for each fence on the
    way.
    """
    tailer = WalTailer(site)
    current = Generation(claim.manifest.current_generation)
    for position in range(claim.fence - 1, claim.manifest.replay_after, -1):
        entry = tailer.read(position)
        if entry is None:
            break
        require_own(site, entry, claim)
        if not entry.is_fence and entry.batches:
            return Generation(max(current, entry.generation or current))
    manifests.require_owner(claim.manifest, claim.epoch)
    return current
