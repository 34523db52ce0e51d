"""The stores and tables of a simulated world, as the product opens them by URI."""

from __future__ import annotations

from typing import Final

from simulator.model_fragments import FragmentLake
from simulator.model_lake import ModelLake
from simulator.scheduler import Actor
from simulator.store import SimStore
from simulator.world import World
from weir.format.schema import TableSchema
from weir.store.retry import RetryingStore, RetryPolicy

RETRY: Final = RetryPolicy(attempts=4, first_delay=0.05, longest_delay=0.5, deadline=30.0)


class SimPlaces:
    """`weir.env.Places` of one actor."""

    actor: Actor

    def __init__(self, world: World, schema: TableSchema, *, has_fragments: bool = False) -> None:
        self._world = world
        self._schema = schema
        self._has_fragments = has_fragments

    def store(self, uri: str) -> RetryingStore:
        """That store as the actor sees it, retries included."""
        return RetryingStore(SimStore(self._world, uri, self.actor), self.actor.env, RETRY)

    def lake(self, uri: str) -> ModelLake:
        """The Lance side of the table there."""
        if self._has_fragments:
            env = self.actor.env
            return FragmentLake(self.store(uri), self._schema, env)
        return ModelLake(self.store(uri), self._schema, self.store, f"-{self.actor.name}")
