"""Every kind of store keeps the same contract."""

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from weir.env import SYSTEM
from weir.store.api import Store
from weir.store.local import LocalStore
from weir.store.memory import MemoryStore
from weir.store.open import open_bare, open_store
from weir.store.retry import RetryingStore
from weir.testing import contract
from weir.testing.fault_store import FaultStore

KINDS = ["memory", "local", "local-fsync", "retrying-local", "fault-memory", "retrying-s3"]
SERVERS = {"s3": "s3", "azurite": "az", "moto": "s3", "gcs": "gs"}
"""Fixtures: each is a third-party store, except `gcs`, which is our own fake."""


@pytest.fixture(params=[*KINDS, *SERVERS])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    kind = request.param
    fixture = kind.removeprefix("retrying-")
    if fixture in SERVERS:
        server = request.getfixturevalue(fixture)
        uri = f"{SERVERS[fixture]}://weir-test/contract/{uuid.uuid4().hex}"
        return (open_bare if fixture == kind else open_store)(uri, server.storage_options())
    return {
        "memory": lambda: MemoryStore(prefix="some/where"),
        "local": lambda: LocalStore(str(tmp_path / "root")),
        "local-fsync": lambda: LocalStore(str(tmp_path / "root"), fsync=True),
        "retrying-local": lambda: RetryingStore(LocalStore(str(tmp_path / "root")), SYSTEM),
        "fault-memory": lambda: FaultStore(MemoryStore()),
    }[kind]()


@pytest.mark.parametrize("check", contract.CHECKS, ids=lambda check: check.__name__)
def test_contract(store: Store, check: Callable[[Store], None]) -> None:
    check(store)


def test_contract_sees_a_store_that_ignores_the_condition() -> None:
    class Careless(MemoryStore):
        def put_if_absent(self, path, data):
            self.put(path, data)

    with pytest.raises(AssertionError):
        contract.put_if_absent_creates_once(Careless())
    with pytest.raises(AssertionError):
        contract.put_if_absent_has_one_winner(Careless())
