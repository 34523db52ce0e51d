"""Clones of a table of 5 million rows: how long they take, and how much they copy."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import weir
from benchmarks.harness import Ctx, Goal, Round, Workload
from benchmarks.tables import copy_table, drop_table, make_layers
from weir.store.open import open_store

FRESH_ROWS = 5_000
"""Uncompacted rows of each of the four generations; a clone copies them."""


def prepare(ctx: Ctx) -> dict[str, Any]:
    made = make_layers(
        ctx,
        base_rows=ctx.n(5_000_000, 500_000, 2_000),
        generations=4,
        generation_rows=ctx.n(FRESH_ROWS, 500, 20),
        btree=False,
    )
    table = weir.open(made["uri"], storage_options=ctx.options)
    return {**made, "checkpoint": str(table.checkpoint("all", name="bench").id)}


def _size(ctx: Ctx, uri: str) -> int:
    return sum(meta.size for meta in open_store(uri, ctx.options).list(""))


def _clone(ctx: Ctx) -> tuple[float, str]:
    """Clone the checkpoint; the seconds it took, and the URI of the clone."""
    table = weir.open(ctx.data["uri"], storage_options=ctx.options)
    target = ctx.uri("clone")
    began = time.perf_counter()
    copy = table.clone(target, ctx.data["checkpoint"])
    took = time.perf_counter() - began
    assert copy.scan(columns=["id"]).count() >= ctx.data["base_rows"]
    return took, target


@contextmanager
def clone_seconds(ctx: Ctx) -> Iterator[Round]:
    def run() -> float:
        took, target = _clone(ctx)
        drop_table(ctx, target)
        return took * 1000

    yield run


@contextmanager
def copy_seconds(ctx: Ctx) -> Iterator[Round]:
    """Copy every file of the table, with the file system's or the object store's own copy."""

    def run() -> float:
        began = time.perf_counter()
        target = copy_table(ctx, ctx.data["uri"])
        took = time.perf_counter() - began
        drop_table(ctx, target)
        return took * 1000

    yield run


@contextmanager
def clone_share(ctx: Ctx) -> Iterator[Round]:
    """Bytes of the clone in per cent of the table's; the base is shared by reference."""

    def run() -> float:
        _, target = _clone(ctx)
        share = 100 * _size(ctx, target) / _size(ctx, ctx.data["uri"])
        drop_table(ctx, target)
        return share

    yield run


@contextmanager
def copy_share(ctx: Ctx) -> Iterator[Round]:
    def run() -> float:
        target = copy_table(ctx, ctx.data["uri"])
        share = 100 * _size(ctx, target) / _size(ctx, ctx.data["uri"])
        drop_table(ctx, target)
        return share

    yield run


NOTE = "5 million base rows, 4 uncompacted generations of 5 thousand rows, one shard"

WORKLOADS = [
    Workload(
        "clone of a table of 5 million rows",
        unit="ms",
        better="lower",
        goal="about a second, and at least 5 times as fast as copying its files",
        goals={"local": [Goal("copy of all files", times=5)]},
        sides={"weir": clone_seconds, "copy of all files": copy_seconds},
        prepare=prepare,
        rounds_max=3,
        note=NOTE,
    ),
    Workload(
        "bytes a clone of 5 million rows copies",
        unit="% of the table",
        better="lower",
        goal="less than 1 % of the table's bytes",
        goals=[Goal("copy of all files", times=100)],
        sides={"weir": clone_share, "copy of all files": copy_share},
        prepare=prepare,
        rounds_max=1,
        note=NOTE,
    ),
]
