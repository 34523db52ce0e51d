"""A writer of another program, as far as a simulated history needs one.

It takes over a shard, flushes the rows in the log, and leaves. It knows nothing of exactly-once
tokens (P-6), nor of logs on another store.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from simulator.places import RETRY, SimPlaces
from simulator.scenarios import SHARD, TABLE, Role, Run
from simulator.scheduler import Actor
from simulator.store import SimStore
from weir.config import WriterConfig
from weir.errors import WeirError
from weir.format import paths
from weir.format.manifest import Status
from weir.making import open as open_table
from weir.routing.shards import Shard
from weir.store.api import Bytes
from weir.store.retry import RetryingStore

TURNS_MAX = 4


class TokenlessStore(SimStore):
    """A store that ignores writes of tokens, which a native writer would not make."""

    def put_if_absent(self, path: str, data: Bytes) -> float | None:
        """See `Store`."""
        return self._s.now if _is_token(path) else super().put_if_absent(path, data)

    def delete(self, paths: Sequence[str]) -> None:
        """See `Store`."""
        super().delete([path for path in paths if not _is_token(path)])


def _is_token(path: str) -> bool:
    return path.startswith(f"{paths.WEIR}/shards/") and path.split("/")[3] == "tokens"


class NativePlaces(SimPlaces):
    """The world as a native writer sees it."""

    def store(self, uri: str) -> RetryingStore:
        """That store, without tokens."""
        plain = TokenlessStore(self._world, uri, self.actor)
        return RetryingStore(plain, self.actor.env, RETRY)


def native(run: Run, actor: Actor, role: Role) -> None:
    """Takes over one shard after another."""
    rng = random.Random(f"native/{run.plan.seed}/{actor.name}")
    places = NativePlaces(run.world, run.schema)
    places.actor = actor
    actor.env = replace(actor.env, places=places)
    config = WriterConfig(fence_ttl=run.plan.fence_ttl, stats_log_interval=0)
    for _ in range(min(role.ops, TURNS_MAX)):
        actor.env.clock.sleep(rng.choice((0.05, 0.5, 5.0)))
        try:
            table = open_table(TABLE, env=actor.env)
            shards = sorted(shard.id for shard in table.shards())
            if not shards:
                continue
            chosen = Shard(table.core, rng.choice(shards), None, is_routed=False)
            if chosen.manifest().status is Status.SEALED:
                continue
            with chosen.writer(config) as writer:
                run.judge.opened(chosen.id, writer.epoch)
                flushed = writer.flush()
            run.note(actor, f"flushed {str(chosen.id)[:4]} through {flushed.replay_after}")
            run.judge.counts["native flushes"] += 1
        except WeirError as error:
            run.note(actor, f"native writer failed: {type(error).__name__}")
            run.judge.failed(SHARD, error, None, 0)


NATIVES = {"native": native}
