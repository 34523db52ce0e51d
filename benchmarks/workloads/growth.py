"""Costs that must not grow with a table's age: opening, finding the latest manifest, the tip."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import obstore

import weir
from benchmarks.harness import Ctx, Goal, Round, Workload
from benchmarks.peers import make_table, obstore_at, one_shard
from weir.format import paths
from weir.format.manifest import encode_hint, encode_manifest
from weir.format.wal_entry import encode_fence
from weir.log.manifests import Manifests
from weir.types import Epoch, Position, Version

LOGARITHMIC = 3.0
"""From 100 to 100,000 a logarithm grows by a factor of 2.5; the rest allows for noise."""
IN_FLIGHT = 64
Action = Callable[[weir.Table], Callable[[], Any]]


def _count(ctx: Ctx, wanted: int) -> int:
    return min(wanted, ctx.n(100_000, 10_000, 200))


async def put_all(store: Any, items: list[tuple[str, bytes]]) -> None:
    todo = iter(items)

    async def work() -> None:
        for path, body in todo:
            await obstore.put_async(store, path, body, use_multipart=False)

    await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))


def _make_log(ctx: Ctx, count: int) -> weir.Table:
    """A shard whose log has `count` entries after R, all of them fences."""
    table = make_table(ctx, f"log{count}")
    shard = one_shard(table).id
    body = bytes(encode_fence(Epoch(1), "0" * 32))
    items = [(paths.wal_path(shard, Position(p)), body) for p in range(1, count + 1)]
    asyncio.run(put_all(obstore_at(table.uri, ctx.options), items))
    return table


def _make_versions(ctx: Ctx, count: int) -> weir.Table:
    """A shard with `count` manifest versions and a hint that names the last."""
    table = make_table(ctx, f"versions{count}")
    shard = one_shard(table)
    first = shard.manifest()
    items = [
        (
            paths.manifest_path(shard.id, Version(version)),
            encode_manifest(replace(first, version=Version(version), writer_epoch=Epoch(version))),
        )
        for version in range(first.version + 1, count + 1)
    ]
    items.append((paths.manifest_hint_path(shard.id), encode_hint(Version(count))))
    asyncio.run(put_all(obstore_at(table.uri, ctx.options), items))
    return table


def _tip(table: weir.Table) -> Callable[[], Any]:
    # The manifest names no entry, so the search begins at the start of the log.
    return lambda: one_shard(table).tailer().tip()


def _manifest(table: weir.Table) -> Callable[[], Any]:
    site = one_shard(table).site
    return lambda: Manifests(site).latest()


@contextmanager
def side(
    ctx: Ctx, *, count: int, make: Callable[[Ctx, int], weir.Table], action: Action
) -> Iterator[Round]:
    wanted = _count(ctx, count)
    table = make(ctx, wanted)
    act = action(table)

    def run() -> float:
        taken = []
        for _ in range(ctx.n(20, 10, 1)):
            began = time.perf_counter()
            act()
            taken.append(time.perf_counter() - began)
        return statistics.median(taken) * 1e3

    run()
    yield run


@contextmanager
def open_side(ctx: Ctx, *, count: int) -> Iterator[Round]:
    """Open, claim and close a shard that has `count` manifest versions."""
    table = _make_versions(ctx, _count(ctx, count))
    shard = one_shard(table)

    def run() -> float:
        taken = []
        for _ in range(ctx.n(5, 3, 1)):
            began = time.perf_counter()
            weir.open(table.uri, storage_options=ctx.options or None)
            shard.writer().close()
            taken.append(time.perf_counter() - began)
        return statistics.median(taken) * 1e3

    run()
    yield run


def _workload(name: str, made: Callable[[int], Any]) -> Workload:
    return Workload(
        name,
        unit="ms",
        better="lower",
        goal="flat or logarithmic: 100,000 within 3 of 100",
        goals=[Goal("at 100", within=LOGARITHMIC)],
        sides={"weir": made(100_000), "at 10,000": made(10_000), "at 100": made(100)},
        rounds_max=5,
        note="weir's figure is the one at 100,000",
    )


WORKLOADS = [
    _workload(
        "tip search, by entries of the log",
        lambda count: partial(side, count=count, make=_make_log, action=_tip),
    ),
    _workload(
        "latest manifest, by versions",
        lambda count: partial(side, count=count, make=_make_versions, action=_manifest),
    ),
    _workload(
        "open and claim, by manifest versions", lambda count: partial(open_side, count=count)
    ),
]
