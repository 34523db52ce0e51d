"""Tables whose stores fail on command: the environment to open them with.

    faulty = FaultyStores()
    table = weir.create(uri, schema, env=faulty.env)
    faulty.at(table.uri).on("put_if_absent", "*/wal/*").fail_after()   # the next answer is lost

weir's own requests (the log, manifests, records) pass through a `FaultStore`. Lance's reads and
writes (files of the base and of SSTables) go to the real store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weir.env import SYSTEM, Env
from weir.format.paths import is_log_folder
from weir.store.api import Store
from weir.store.open import normalize, open_bare
from weir.store.retry import RetryingStore, RetryPolicy
from weir.testing.fault_store import FaultStore

QUICK = RetryPolicy(first_delay=0.001, longest_delay=0.01)
"""As many attempts as in production, without its pauses."""


class FaultyStores:
    """Every store that is opened with `env`, with a `FaultStore` around it."""

    def __init__(
        self,
        storage_options: Mapping[str, str] | None = None,
        *,
        retries: RetryPolicy = QUICK,
        env: Env = SYSTEM,
    ) -> None:
        self._options = dict(storage_options or {})
        self._retries = retries
        self._stores: dict[str, FaultStore] = {}
        self._lock = env.threads.lock()
        self.env = replace(env, places=self)
        """Pass it to `weir.create`, `open`, `enable`, `connect`, `exists` or `drop`: each takes
        `env`, which `help` does not show, as programs have no use for it."""

    def at(self, uri: str) -> FaultStore:
        """The store at that URI (a table's, or a `wal_uri`), on which to set faults.

        Those of a `wal_uri` hold for the folders of logs in it.
        """
        place = normalize(uri)
        above, _, name = place.rpartition("/")
        is_folder = is_log_folder(name)
        root = self.at(above) if is_folder else None
        with self._lock:
            if place not in self._stores:
                bare = open_bare(place, self._options, must_exist=is_folder)
                made = FaultStore(bare, env=self.env) if root is None else root.around(bare)
                self._stores[place] = made
            return self._stores[place]

    def store(self, uri: str) -> Store:
        """For `weir.env.Places`."""
        return RetryingStore(self.at(uri), self.env, self._retries)

    def lake(self, uri: str) -> None:
        """For `weir.env.Places`: None, since Lance is the real one."""
