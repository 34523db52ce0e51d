"""State that all shards of one collection share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from weir.env import Env
from weir.errors import WeirError
from weir.lake.api import Lake
from weir.log.site import ShardSite
from weir.store.api import Store
from weir.upkeep.gc.pins import Chains, Pins
from weir.upkeep.gc.plan import Ages
from weir.upkeep.gc.report import GcReport, Veto
from weir.upkeep.gc.tasks import Deleter

logger = logging.getLogger("weir.gc")


@dataclass
class GcRun:
    """One collection: its arguments, and the state its shards share."""

    lake: Lake | None
    ages: Ages
    kinds: frozenset[str]
    report: GcReport
    deleter: Deleter
    env: Env
    chains: Chains
    pins: Callable[[], Pins]
    now: float
    """The table store's clock, read before anything was listed: nothing looks older than it is."""
    workers: int = 1
    """Shards processed concurrently."""
    veto: Veto | None = None
    former: Mapping[UUID, Sequence[ShardSite]] = field(default_factory=dict)
    """By shard, the places that its log was moved away from (S-3)."""
    _clocks: dict[str, float] = field(default_factory=dict)

    @property
    def dry_run(self) -> bool:
        """True when nothing may be written."""
        return self.deleter.dry_run

    def clock(self, store: Store) -> float:
        """That store's time, read once, before the first of its logs is listed (G-3)."""
        if store.uri not in self._clocks:
            self._clocks[store.uri] = store.now()
        return self._clocks[store.uri]

    def fail(self, name: str, error: WeirError) -> None:
        """Report a task that failed; the others go on (G-10)."""
        logger.warning("gc.failed table=%s task=%s reason=%s", self.chains.store.uri, name, error)
        self.report.errors.append(f"{name}: {type(error).__name__}: {error}")
