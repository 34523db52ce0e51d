"""Opening a shard: its cost, the manifests it accepts, and the error of a fenced writer."""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import weir
from simulator.steps import watched
from tests.support.tables import count_requests
from weir.config import WriterConfig
from weir.format import paths
from weir.format.manifest import encode_manifest
from weir.log.fence import claim_shard
from weir.types import Position, Version

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("x", pa.int64())])


@pytest.fixture
def table(tmp_path: Path) -> weir.Table:
    return weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id", sharding=None)


def row(number: int) -> list[dict[str, int]]:
    return [{"id": number, "x": number}]


def ids(table: weir.Table) -> list[int]:
    return sorted(weir.open(table.uri).scan().to_table()["id"].to_pylist())


@pytest.mark.parametrize("memtable", [True, False], ids=["memtable", "wal-only"])
def test_f3_a_manifest_with_r_above_l_is_opened(table: weir.Table, *, memtable: bool) -> None:
    """No known native writer writes one. Positions up to R were used: L is a hint, R is not."""
    shard = table.shards()[0]
    with shard.writer() as writer:
        writer.put(row(1))
    latest = shard.manifest()
    odd = replace(
        latest,
        version=Version(latest.version + 1),
        replay_after=Position(40),
        last_seen=Position(3),
    )
    shard.site.store.put_if_absent(paths.manifest_path(shard.id, odd.version), encode_manifest(odd))
    assert ids(table) == [1]
    opened = weir.open(table.uri).shards()[0].writer(WriterConfig(enable_memtable=memtable))
    assert opened.put(row(2)).position == 42  # the fence took 41
    assert ids(table) == [1, 2]
    opened.close()
    weir.open(table.uri).compact(fold_wal=True)
    assert ids(table) == [1, 2]
    assert shard.manifest().replay_after <= shard.manifest().last_seen


def named(error: weir.FencedError, table: weir.Table, position: int) -> None:
    """F-13: the error names table, shard and position (also as a number), even when unpickled."""
    again = pickle.loads(pickle.dumps(error))
    for told in (error, again):
        assert told.position == position
        for part in (table.uri, str(table.shards()[0].id), f"position {position}"):
            assert part in str(told)


@pytest.mark.parametrize("call", ["put", "flush", "scan", "again"])
def test_f13_a_fenced_writer_is_told_table_shard_and_position(table: weir.Table, call: str) -> None:
    shard = table.shards()[0]
    old = shard.writer(WriterConfig(fence_ttl=0))
    old.put(row(1))  # at 2, behind its fence
    new = weir.open(table.uri).shards()[0].writer()
    calls: dict[str, Any] = {
        "put": lambda: old.put(row(2)),
        "flush": old.flush,
    }
    with pytest.raises(weir.FencedError) as fenced:
        calls.get(call, calls["put"])()
    named(fenced.value, table, 3)
    if call in ("scan", "again"):
        with pytest.raises(weir.FencedError) as later:
            old.scan() if call == "scan" else old.put(row(3))
        named(later.value, table, 3)
    new.close()


def test_f13_an_open_that_a_newer_one_overtook_names_its_position(table: weir.Table) -> None:
    site = table.shards()[0].site

    def overtake(step: str) -> None:
        if step == "claimed":
            claim_shard(site)

    with pytest.raises(weir.FencedError) as fenced:
        claim_shard(watched(site, "claim", overtake))
    named(fenced.value, table, 1)


def opening(table: weir.Table, **settings: Any) -> int:
    """The requests of one open by a new handle, without those Lance makes for its base."""
    handle = weir.open(table.uri)
    shard = handle.shards()[0]
    counting = count_requests(handle)
    shard.writer(WriterConfig(**settings))
    return counting.requests


@pytest.mark.parametrize("memtable", [True, False], ids=["memtable", "wal-only"])
def test_opening_a_shard_costs_what_is_told(table: weir.Table, *, memtable: bool) -> None:
    """`docs/guides/operations.md` gives these numbers."""
    assert opening(table, enable_memtable=memtable) == 20
    weir.open(table.uri).shards()[0].writer().close()
    assert opening(table, enable_memtable=memtable) == 20
    dead = table.shards()[0].writer()
    dead.put(row(1))
    dead.put(row(2))
    assert opening(table, enable_memtable=memtable) <= 20 + 12 + 2
